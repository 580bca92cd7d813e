from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.preferences.pairs.minimal import delete_steps, minimal_pair, pruned_trajectory
from offline_agent.preferences.pairs.trajectory import trajectories
from offline_agent.preferences.records import Refusal, Replay
from offline_agent.preferences.replayer import Replayer
from offline_agent.records import Action, Verdict
from tests.helpers import preferences as kit


def prune(
    turns: str | Sequence[Action], calls: int | None = None, spec: EnvSpec = kit.SPEC
) -> tuple[Replay | Refusal | None, Replayer]:
    tree = kit.grow([turns], spec, max_steps=20)
    replayer = Replayer(spec, None)
    replayer.begin(calls)
    return delete_steps(next(trajectories(tree)), replayer), replayer


def words(found: Replay | Refusal | None) -> list[str]:
    assert isinstance(found, Replay)
    return [step.action.text for step in found.steps]


def test_steps_that_do_nothing_are_left_out() -> None:
    found, _ = prune("look A look B leave")
    assert words(found) == ["A", "B"]  # not leaving is judged by the state all the same


LONG = "look look A look look look B look look look look leave"


def test_what_versions_have_in_common_is_executed_once() -> None:
    found, replayer = prune(LONG)
    assert words(found) == ["A", "B"]
    # Replaying every version from the start, one step at a time, takes 12 + 12 * 11 calls for the first pass alone.
    assert replayer.tool_calls <= 40


class Printed(kit.Vault):
    """A vault that tells its states apart by what was pressed."""

    @property
    def fingerprint(self) -> str:
        return f"{self._wanted} {self._pressed} {self.terminated}"


def test_a_version_that_comes_to_a_known_state_is_not_replayed_on() -> None:
    plain, printed = prune(LONG)[1], prune(LONG, spec=kit.EnvSpec(Printed))
    assert words(printed[0]) == ["A", "B"]
    # 12 for the whole, one to begin each way that is new; the last version is run once without fingerprints.
    assert printed[1].tool_calls <= 20 < plain.tool_calls


def test_fingerprints_that_mislead_shorten_nothing() -> None:
    class Forgetful(kit.Vault):
        @property
        def fingerprint(self) -> str:
            return self._pressed[-1:]

        def get_reward(self) -> float:
            return super().get_reward() if self.terminated else 0.0

    found, _ = prune("A B leave", spec=kit.EnvSpec(Forgetful))
    assert isinstance(found, Refusal) and "by the environment's fingerprints, but is none" in found.reason


@pytest.mark.parametrize("calls", range(0, 40, 3))
@pytest.mark.parametrize("replay_only", [False, True])
def test_the_budget_of_calls_holds_and_what_was_found_by_then_counts(calls: int, replay_only: bool) -> None:
    spec = kit.EnvSpec(Printed)
    spec.replay_only = replay_only
    found, replayer = prune(LONG, calls=calls, spec=spec)
    assert replayer.tool_calls <= calls and replayer.left == calls - replayer.tool_calls
    assert found is None or (isinstance(found, Replay) and found.verified and len(found.steps) < 12)
    if calls < 12:
        assert found is None and replayer.tool_calls == 0
    if calls == 39:  # calls are kept to run the version once without fingerprints
        assert found is not None


def test_only_verified_successes() -> None:
    found, replayer = prune("B leave")
    assert isinstance(found, Refusal) and replayer.count == 0 and "verified success" in found.reason


def test_a_success_that_is_none_on_replay_says_so() -> None:
    tree = kit.grow(["B leave"])
    end = next(tree.terminals())
    end.verdict = Verdict(1.0, True, "kit")
    found = delete_steps(next(trajectories(tree)), Replayer(kit.SPEC, None))
    assert isinstance(found, Refusal) and "not verified when it is replayed" in found.reason


def test_a_version_that_makes_new_errors_is_no_version() -> None:
    class Picky(kit.Vault):
        _looked = False

        def press(self, button: str) -> str:
            """Press a button.

            Args:
                button: A, B or C.
            """
            answer = super().press(button)
            if not self._looked:
                raise ValueError("look first")
            return answer

        def look(self) -> str:
            """Look around."""
            self._looked = True
            return super().look()

    spec = kit.EnvSpec(Picky)
    found = delete_steps(next(trajectories(kit.grow(["look A B leave"], spec))), Replayer(spec, None))
    assert words(found) == ["look", "A", "B"]


def test_a_version_whose_replay_breaks_is_no_version() -> None:
    class Fragile(kit.Vault):
        def press(self, button: str) -> str:
            """Press a button.

            Args:
                button: A, B or C.
            """
            if button == "B" and not self._pressed:
                raise RuntimeError("the hinge broke")
            return super().press(button)

    spec = kit.EnvSpec(Fragile)
    found = delete_steps(next(trajectories(kit.grow(["A B leave"], spec))), Replayer(spec, None))
    assert words(found) == ["A", "B"]


def minimal(words: str) -> object:
    tree = kit.grow([words])
    success = next(trajectories(tree))
    found = delete_steps(success, Replayer(kit.SPEC, None))
    assert isinstance(found, Replay)
    return minimal_pair(tree, next(tree.terminals()), success, found)


def test_a_minimal_pair_starts_where_the_versions_part() -> None:
    pair = minimal("A look B leave")
    assert pair.kind == "minimal" and pair.prefix.depth == 1  # type: ignore[attr-defined]
    assert [s.action.text for s in pair.chosen] == ["B"]  # type: ignore[attr-defined]
    assert [s.action.text for s in pair.rejected] == ["look", "B", "leave"]  # type: ignore[attr-defined]
    assert pair.rest_confidence == 1.0 and pair.q_chosen == pair.q_rejected == 1.0  # type: ignore[attr-defined]


def test_a_version_that_is_a_beginning_of_the_whole_makes_no_pair() -> None:
    assert minimal("A B leave") is None


def test_no_pair_where_the_shared_actions_were_answered_differently() -> None:
    tree = kit.grow(["A look B leave"])
    success = next(trajectories(tree))
    found = delete_steps(success, Replayer(kit.SPEC, None))
    assert isinstance(found, Replay)
    first, *rest = found.steps
    other = replace(found, steps=(replace(first, observation="jammed"), *rest))
    assert minimal_pair(tree, next(tree.terminals()), success, other) is None


def test_ids_stay_and_log_probabilities_go() -> None:
    actions = [
        Action(a.text, a.thought, a.call, token_ids=(7, 8), logps=(-0.1, -0.2)) for a in kit.acts("A look B leave")
    ]
    found, _ = prune(actions)
    assert isinstance(found, Replay)
    shorter = pruned_trajectory(found)
    assert shorter.origin == "pruned" and shorter.verdict is not None
    assert [s.action.token_ids for s in shorter.steps] == [(7, 8)] * 2
    assert [a.logps for a in shorter.context.actions()] == [None, None]
    assert [s.observation for s in shorter.steps] == ["A is down", "B is down"]
