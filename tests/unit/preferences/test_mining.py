from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.errors import EnvironmentFault
from offline_agent.preferences.balance import Balance, balance
from offline_agent.preferences.mining import Miner
from offline_agent.preferences.replay import Replayer
from offline_agent.records import Step, Task, Verdict
from tests import preferences_kit as kit

ROLLOUTS = ["A look B leave", "A C leave", "B leave", "C A leave", "A B leave"] * 4


def miner(spec: EnvSpec = kit.SPEC, **options: Any) -> Miner:
    return Miner(spec, step_seconds=None, **options)


def test_one_tree_gives_everything() -> None:
    mined = miner().mine(kit.grow(ROLLOUTS))
    assert set(Counter(p.kind for p in mined.pairs)) == {"step", "trajectory", "hindsight", "minimal"}
    assert Counter(t.origin for t in mined.trajectories) == {"search": 5, "hindsight": 3, "pruned": 2}
    assert {t.origin for t in mined.filtered} == {"search", "hindsight"}
    assert mined.replays > 0 and mined.tool_calls > mined.replays
    measured = [t for t in mined.trajectories if t.criticality is not None]
    assert [t.criticality for t in measured] == [(1.0, 0.0, 1.0, 0.0), (1.0, 1.0, 0.0)]


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


def test_counterfactual_rollouts_replace_deletion() -> None:
    def rollout(task: Task, steps: Sequence[Step], n: int) -> list[Verdict]:
        return [Verdict(len(steps) / 10, False, "k")] * n

    mined = miner(rollout=rollout, rollouts=2).mine(kit.grow(["A look B leave"]))
    (measured,) = [t for t in mined.trajectories if t.criticality is not None]
    assert measured.criticality == pytest.approx((0.1, 0.1, 0.1, 0.7))


def test_balancing_is_over_all_trees() -> None:
    one = miner()
    pairs = [p for name in ("AB", "CA") for p in one.mine(kit.grow(ROLLOUTS, of=kit.task(name))).pairs]
    kept, refusals = balance(pairs, Balance())
    assert 0 < len(kept) <= len(pairs) and len(kept) + len(refusals) == len(pairs)
    assert {p.tree_id for p in kept} == {"vault-AB", "vault-CA"}
    one.close()


def test_replays_run_in_fresh_episodes_and_end_with_the_episode() -> None:
    replayer = Replayer(kit.SPEC, None)
    replay = replayer.run(kit.task(), kit.acts("A B leave look"))
    assert replay.verified and replay.terminated and len(replay.steps) == 3
    assert replay.start_verdict.score == 0.0 and replay.start_goal is None
    assert [goal and goal["wanted"] for goal in replay.goals] == ["A", "AB", "AB"]
    again = replayer.run(kit.task(), kit.acts("B"))
    assert not again.terminated and again.verdict.score == 0.0 and replayer.count == 2
    assert replayer.run(kit.task(), []).verdict == again.start_verdict


def test_environments_dear_to_start_are_kept_and_reset() -> None:
    class Dear(kit.Vault):
        replay_only = True
        opened = 0

        def __init__(self) -> None:
            super().__init__()
            Dear.opened += 1

    replayer = Replayer(EnvSpec(Dear), None)
    first = replayer.run(kit.task(), kit.acts("A B leave"))
    second = replayer.run(kit.task(), kit.acts("A B leave"))
    assert first.verified and second.verified and Dear.opened == 1
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
    with pytest.raises(EnvironmentFault, match="a replay of 2 actions took longer than 0.15 s"):
        replayer.run(kit.task(), kit.acts("A leave"))
    release.set()
    assert replayer.run(kit.task(), kit.acts("A")).steps


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
