from __future__ import annotations

import random
from collections import Counter
from copy import copy
from typing import Any

import pytest

from offline_agent.envs import pool
from offline_agent.envs.base import EnvSpec
from offline_agent.errors import EnvironmentFault
from offline_agent.preferences.dataset.balance import Balance
from offline_agent.preferences.mining import Miner
from offline_agent.preferences.replayer import Replayer
from offline_agent.preferences.revaluation import rejudge
from offline_agent.preferences.settings import ALL_KINDS, PairRules
from offline_agent.records import Action, Verdict
from tests.helpers import preferences as kit
from tests.helpers.balance_reference import balanced

ROLLOUTS = ["A look B leave", "A C leave", "B leave", "C A leave", "A B leave"] * 4


def miner(spec: EnvSpec = kit.SPEC, kinds: Any = ALL_KINDS, **options: Any) -> Miner:
    return Miner(spec, PairRules(kinds=kinds), step_seconds=None, **options)


def test_one_tree_gives_everything() -> None:
    mined = miner().mine(kit.grow(ROLLOUTS))
    assert set(Counter(p.kind for p in mined.pairs)) == {"step", "trajectory", "hindsight", "minimal"}
    assert Counter(t.origin for t in mined.trajectories) == {"search": 5, "hindsight": 3, "pruned": 2}
    assert {t.origin for t in mined.filtered} == {"search", "hindsight"}
    assert mined.replays > 0 and mined.tool_calls > mined.replays


def test_kinds_left_out_are_left_out() -> None:
    mined = miner(kinds=("step",)).mine(kit.grow(ROLLOUTS))
    assert {p.kind for p in mined.pairs} == {"step"}
    assert {t.origin for t in mined.trajectories} == {"search"}


def test_a_tree_in_quarantine_gives_one_refusal() -> None:
    tree = kit.grow(ROLLOUTS)
    tree.quarantined = "it answered differently"
    mined = miner().mine(tree)
    assert not mined.pairs and not mined.trajectories and not mined.filtered
    (refusal,) = mined.refusals
    assert refusal.kind == "tree" and "it answered differently" in refusal.reason


def test_a_quarantined_branch_is_reported() -> None:
    tree = kit.grow(ROLLOUTS)
    tree.edges[0].quarantined = "noise"
    mined = miner().mine(tree)
    (refusal,) = [r for r in mined.refusals if r.kind == "branch"]
    assert refusal.name == "vault-AB/edge 0" and refusal.to_json()["action"] == tree.edges[0].key
    assert all(t.steps[0].key != tree.edges[0].key for t in mined.trajectories)


def test_a_noisy_verifier_shortens_nothing_and_is_never_certain() -> None:
    class Noisy(kit.Vault):
        deterministic_verifier = False

    mined = miner(EnvSpec(Noisy)).mine(kit.grow(ROLLOUTS, EnvSpec(Noisy)))
    assert not [p for p in mined.pairs if p.kind == "minimal"]
    assert mined.pairs and all((p.confidence or 0.0) < 1.0 for p in mined.pairs)
    assert all(p.rest_confidence < 1.0 for p in mined.pairs if p.rest_confidence is not None)


def test_balancing_is_over_all_trees() -> None:
    one = miner()
    pairs = [p for name in ("AB", "CA") for p in one.mine(kit.grow(ROLLOUTS, of=kit.task(name))).pairs]
    kept, refusals = balanced(Balance(), pairs)
    assert 0 < len(kept) <= len(pairs) and len(kept) + len(refusals) == len(pairs)
    assert {p.tree_id for p in kept} == {"vault-AB", "vault-CA"}
    one.close()


def test_replays_run_in_fresh_episodes_and_end_with_the_episode() -> None:
    replayer = Replayer(kit.SPEC, None)
    replay = replayer.run(kit.task(), kit.acts("A B leave look"))
    assert replay.verified and replay.terminated and len(replay.steps) == 3
    assert replay.start.verdict.score == 0.0 and replay.start.goal is None
    assert replay.end.goal["wanted"] == "AB" and replayer.run(kit.task(), kit.acts("A")).end.goal["wanted"] == "A"
    again = replayer.run(kit.task(), kit.acts("B"))
    assert not again.terminated and again.verdict.score == 0.0 and replayer.count == 2
    assert replayer.run(kit.task(), []).verdict == again.start.verdict


def test_environments_dear_to_start_are_kept_and_reset() -> None:
    class Dear(kit.Vault):
        replay_only = True
        opened = 0

        def __init__(self) -> None:
            super().__init__()
            Dear.opened += 1

    replayer = Replayer(EnvSpec(Dear), None)
    first = replayer.run(kit.task(), kit.acts("A B leave"))
    second = replayer.run(kit.task(), kit.acts("A look B"))
    third = replayer.run(kit.task("BC"), kit.acts("B C leave"))
    replayer.begin(None)
    fourth = replayer.run(kit.task(), kit.acts("look A B"))
    assert first.verified and second.verified and third.verified and fourth.verified and Dear.opened == 1
    replayer.close()


def test_a_replay_that_hangs_is_given_up() -> None:
    import threading

    release = threading.Event()

    class Stuck(kit.Vault):
        def leave(self) -> str:
            """Leave."""
            release.wait(30)
            return "bye"

    replayer = Replayer(EnvSpec(Stuck), seconds=0.05)
    with pytest.raises(EnvironmentFault, match="no answer within 0.1 s"):
        replayer.run(kit.task(), kit.acts("A leave"))
    release.set()
    assert replayer.run(kit.task(), kit.acts("A")).steps


def test_however_many_replays_hung_the_next_one_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    gate = threading.Event()
    monkeypatch.setattr(pool, "_TICK", 0.001)

    class Stuck(kit.Vault):
        def leave(self) -> str:
            """Leave."""
            gate.wait(30)
            return "bye"

    replayer = Replayer(EnvSpec(Stuck), seconds=0.002)
    for _ in range(260):
        with pytest.raises(EnvironmentFault, match="no answer within"):
            replayer.run(kit.task(), kit.acts("leave"))
    gate.set()


def test_a_replay_has_time_for_each_of_its_actions() -> None:
    import time

    class Slow(kit.Vault):
        def look(self) -> str:
            """Look around."""
            time.sleep(0.1)
            return "nothing"

    assert len(Replayer(EnvSpec(Slow), 0.2, 1.0).run(kit.task(), kit.acts("look " * 20)).steps) == 20


def test_a_replay_that_breaks_is_a_fault_and_the_next_one_runs() -> None:
    class Breaks(kit.Vault):
        def look(self) -> str:
            """Look around."""
            raise RuntimeError("no eyes")

    replayer = Replayer(EnvSpec(Breaks), seconds=10)
    with pytest.raises(EnvironmentFault, match="no eyes"):
        replayer.run(kit.task(), kit.acts("A look"))
    assert replayer.run(kit.task(), kit.acts("A B leave")).verified


@pytest.mark.parametrize("replay_only", [False, True])
@pytest.mark.parametrize("budget", [0.0, 0.3, 1.0])
def test_replays_of_a_tree_never_make_more_calls_than_the_budget_allows(budget: float, replay_only: bool) -> None:
    spec = EnvSpec(kit.Vault)
    spec.replay_only = replay_only
    tree = kit.grow(ROLLOUTS, spec)
    tree.counters["tool_calls"] = sum(edge.child is not None for edge in tree.edges)
    mined = miner(spec, replay_budget=budget).mine(tree)
    assert mined.tool_calls <= budget * tree.counters["tool_calls"] and (mined.left_out > 0 or budget == 1)
    assert {"step", "trajectory"} <= {pair.kind for pair in mined.pairs}


def test_a_call_that_is_made_again_after_its_state_was_given_up_shows_the_same() -> None:
    few, many = Replayer(kit.SPEC, None, live_states=1), Replayer(kit.SPEC, None)
    for words in ("A look B leave", "A look C leave", "A B C", "look A"):
        assert few.run(kit.task(), kit.acts(words)).verdict == many.run(kit.task(), kit.acts(words)).verdict
    assert many.tool_calls < few.tool_calls


def test_no_copy_is_made_where_none_is_to_be_kept() -> None:
    class Large(kit.Vault):
        copies = 0

        def __deepcopy__(self, memo: object) -> Large:
            Large.copies += 1
            return copy(self)

    replayer = Replayer(EnvSpec(Large), None, live_states=0)
    for words in ("A look", "A look B leave", "A C leave"):
        assert len(replayer.run(kit.task(), kit.acts(words)).steps) == len(words.split())
    assert Large.copies == 0 and replayer.tool_calls == 7


def test_faulty_turns_are_told_apart_by_their_text() -> None:
    replayer = Replayer(kit.SPEC, None)
    one, other = (Action("x", fault="invalid_json", detail=told) for told in ("write JSON", "close the bracket"))
    seen = [replayer.run(kit.task(), [action]).steps[0] for action in (one, other)]
    assert seen[0].key == seen[1].key and seen[0].observation != seen[1].observation


def test_copies_that_share_state_are_a_fault_and_no_error_of_the_program() -> None:
    class Sharing(kit.Vault):
        def __deepcopy__(self, memo: object) -> Sharing:
            return self

    replayer = Replayer(EnvSpec(Sharing), None)
    assert replayer.run(kit.task(), kit.acts("A B leave")).verified
    with pytest.raises(EnvironmentFault, match="when the episode is over"):
        replayer.run(kit.task(), kit.acts("A C"))


# -- judging again ---------------------------------------------------------------------------------------------------


class Counting(kit.Vault):
    """A vault whose reward counts its own calls, over all episodes."""

    calls = 0

    def get_reward(self) -> float:
        Counting.calls += 1
        return float(Counting.calls % 3 == 0)


class Drawing(kit.Vault):
    """A vault whose reward is drawn."""

    rng = random.Random(0)

    def get_reward(self) -> float:
        return Drawing.rng.random()


@pytest.mark.parametrize("environment", [Counting, Drawing, kit.Moody])
@pytest.mark.parametrize("replay_only", [False, True])
def test_a_tree_whose_verdicts_do_not_repeat_gives_no_data(environment: type, replay_only: bool) -> None:
    spec = EnvSpec(environment)
    spec.replay_only = replay_only
    mined = miner(spec).mine(kit.grow(ROLLOUTS, spec))
    assert not mined.pairs and not mined.filtered and not mined.trajectories
    (refusal,) = mined.refusals
    assert refusal.kind == "tree" and "did not repeat after a fresh replay" in refusal.reason
    assert mined.rejudged is not None and mined.rejudged.disagreements
    assert miner(spec, rejudge=0.0, kinds=("step", "trajectory")).mine(kit.grow(ROLLOUTS, spec)).trajectories


def test_verdicts_that_repeat_cost_no_data() -> None:
    kinds = ("step", "trajectory")
    asked, unasked = (miner(kinds=kinds, rejudge=share).mine(kit.grow(ROLLOUTS)) for share in (None, 0.0))
    edges = [[(p.kind, p.chosen_edge, p.rejected_edge) for p in mined.pairs] for mined in (asked, unasked)]
    assert edges[0] == edges[1] and edges[0]
    assert asked.rejudged is not None and unasked.rejudged is None
    assert (asked.rejudged.verdicts, asked.rejudged.judged, asked.rejudged.disagreements) == (5, 4, ())


def test_a_verifier_that_is_said_to_be_noisy_is_not_held_to_its_verdicts() -> None:
    class Noisy(Drawing):
        deterministic_verifier = False

    mined = miner(EnvSpec(Noisy)).mine(kit.grow(ROLLOUTS, EnvSpec(Noisy)))
    assert mined.rejudged is None and mined.trajectories


def test_a_score_may_differ_by_rounding_only() -> None:
    tree = kit.grow(["A B leave", "A C leave"])
    end = next(tree.terminals())
    end.verdict = Verdict(1.0 - 5e-10, True, "kit")
    assert not rejudge(tree, Replayer(kit.SPEC, None), 1.0).disagreements
    end.verdict = Verdict(1.0 - 2e-9, True, "kit")
    (reason,) = rejudge(tree, Replayer(kit.SPEC, None), 1.0).disagreements
    assert "node 3: the verdict was 0.999999998 (success) and is 1 (success)" in reason


def test_a_replay_that_breaks_says_nothing_of_the_verdict() -> None:
    class Breaking(kit.Vault):
        def leave(self) -> str:
            """Leave."""
            raise RuntimeError("the hinge broke")

    found = rejudge(kit.grow(["A B leave", "A C leave"]), Replayer(EnvSpec(Breaking), None), 1.0)
    assert (found.verdicts, found.judged, found.broken, found.disagreements) == (2, 0, 2, ())


def test_the_replay_of_a_success_serves_its_deletion_as_well() -> None:
    both = miner(kinds=("minimal",)).mine(kit.grow(["A look B leave"]))
    alone = miner(kinds=("minimal",), rejudge=0.0).mine(kit.grow(["A look B leave"]))
    assert both.rejudged is not None and both.rejudged.judged == 1 and both.tool_calls == alone.tool_calls
