"""Recovery splices: a failed prefix as prompt, the actions that mend it as what is learnt, verified by replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.config.loading import load
from offline_agent.errors import DataError
from offline_agent.pipelines.stages.miners import miner_of
from offline_agent.preferences.dataset.export import trajectory_row
from offline_agent.preferences.dataset.filters import RejectionFilter
from offline_agent.preferences.mining import Miner
from offline_agent.preferences.pairs.recovery import Recoveries
from offline_agent.preferences.replay import Replayer
from offline_agent.records import Trajectory
from offline_agent.search.tree import SearchTree
from offline_agent.store.columns import known
from offline_agent.training.data.rows import load_trajectories
from tests.helpers.preferences import SPEC, grow
from tests.helpers.rows import renderer, run, trajectory


def mine(tree: SearchTree, **rules: int) -> tuple[list[Trajectory], list[str]]:
    replayer = Replayer(SPEC)
    try:
        found, refusals = Recoveries(**{"per_tree": 9, **rules}).mine(tree, replayer)
    finally:
        replayer.close()
    return found, [refusal.reason for refusal in refusals]


def words(one: Trajectory) -> tuple[str, str]:
    """Return the buttons and calls before the recovery, and those of it."""
    texts = [action.text for action in one.context.actions()]
    cut = len(texts) - len(one.steps)
    return " ".join(texts[:cut]), " ".join(texts[cut:])


def test_the_right_sibling_mends_a_failed_prefix_where_a_replay_says_so() -> None:
    found, refused = mine(grow(["A B leave", "look C leave"]))
    assert [words(one) for one in found] == [("look", "A B leave")]
    assert refused == ["the actions that should recover do not lead to success"], "after look C it is too late"
    (one,) = found
    assert one.verdict is not None and one.verdict.success is True and one.origin == "recovery" and one.terminated


def test_an_equal_state_of_the_tree_says_how_to_go_on() -> None:
    tree = grow(["A B leave", "look A C leave"])
    for node in tree.nodes:
        node.fingerprint = "".join(a.text for a in node.context.actions() if len(a.text) == 1)
    assert [words(one) for one in mine(tree, failed=2)[0]] == [("look", "A B leave"), ("look A", "B leave")]
    assert [words(one) for one in mine(tree, failed=1)[0]] == [("look", "A B leave")]
    assert len(mine(tree, per_tree=1)[0]) == 1


def test_of_equal_states_the_one_nearest_to_success_says_how_to_go_on() -> None:
    tree = grow(["A look look B leave", "look look look A B leave", "look A C leave"])
    for node in tree.nodes:
        node.fingerprint = "".join(a.text for a in node.context.actions() if len(a.text) == 1)
    assert ("look A", "B leave") in [words(one) for one in mine(tree)[0]]


def test_equal_states_are_joined_without_a_call_where_fingerprints_are_trusted() -> None:
    """Alone catches splices that cost calls though both halves were executed, or that are not as the replayed ones."""
    tree = grow(["A B leave", "look A look leave"])
    for node in tree.nodes:
        node.fingerprint = "".join(a.text for a in node.context.actions() if len(a.text) == 1)
    replayed, _ = mine(tree)
    replayer = Replayer(SPEC)
    try:
        joined, refusals = Recoveries(9, join=True).mine(tree, replayer)
        assert replayer.tool_calls == 0 and refusals == []
    finally:
        replayer.close()
    assert [words(one) for one in joined] == [words(one) for one in replayed]
    for one, other in zip(joined, replayed, strict=True):
        assert one.steps == other.steps and list(one.context.actions()) == list(other.context.actions())
        assert one.context.observation == other.context.observation
        assert one.verdict is not None and other.verdict is not None and "joined" in one.verdict.evidence
        assert (one.verdict.success, one.verdict.score) == (other.verdict.success, other.verdict.score)


@pytest.mark.parametrize("trust", ["close", "keep"])
def test_fingerprints_are_trusted_where_the_search_trusts_them(trust: str) -> None:
    """Alone catches a run that joins states by fingerprints which its search was not told to trust."""
    keys = ["filtered.origins=[search,recovery]", f"search.repeated_states={trust}"]
    miner = miner_of(load(BuildPrefsConfig, overrides=keys), SPEC, None)
    try:
        assert miner._recoveries is not None and miner._recoveries.join == (trust == "close")
    finally:
        miner.close()


@pytest.mark.parametrize("rollouts", [["A B leave"], ["look C leave", "A C leave"], ["A B leave", "leave"],
                                      ["A B leave", "look A B leave"]])  # fmt: skip
def test_none_is_made_without_a_success_or_a_failure_that_goes_on(rollouts: list[str]) -> None:
    assert mine(grow(rollouts)) == ([], [])


def test_only_the_recovering_actions_are_trained_on_and_messages_alone_are_refused(tmp_path: Path) -> None:
    (one,), _ = mine(grow(["A B leave", "look C leave"]))
    row = known(trajectory_row(one, renderer()))
    wanted: list[int] = []
    for turn, node in enumerate(one.context.lineage()):
        sampled = len(renderer().action_ids(node.action)) if node.action is not None else 0
        after = len(renderer().segment(node)) - sampled
        wanted += [int(turn > one.context.depth - len(one.steps))] * sampled + [0] * after
    assert row["action_mask"] == wanted[: len(row["input_ids"])] and not any(wanted[len(row["input_ids"]) :])
    assert "look" in renderer().decode(row["input_ids"]) and row["success"] is True and row["steps"] == 3
    with pytest.raises(DataError, match=r"policy\.tokenizer.*filtered\.origins"):  # the mistakes would be learnt
        trajectory_row(one, None)
    data = run(tmp_path / "r", filtered=[row, trajectory(1)])
    rows, _ = load_trajectories([data], (), renderer(), max_length=2048)
    assert [learnt.action_mask for learnt in rows] == [tuple(row["action_mask"]), rows[1].action_mask]
    rows, report = load_trajectories([data], (), renderer(), max_length=2048, from_messages=True)
    assert len(rows) == report.unusable == 1 and "its first turns failed" in report.left_out[0][1]


def test_they_are_mined_on_request_and_leave_the_other_successes_of_a_task_alone() -> None:
    def filtered(recoveries: Recoveries | None, origins: tuple[str, ...]) -> list[str]:
        miner = Miner(SPEC, kinds=("step",), recoveries=recoveries, filtered=RejectionFilter(1, origins=origins))
        try:
            return [one.origin for one in miner.mine(grow(["A B leave", "look C leave"])).filtered]
        finally:
            miner.close()

    assert filtered(Recoveries(), ("search", "recovery")) == ["search", "recovery"]
    assert filtered(Recoveries(), ("search",)) == ["search"] == filtered(None, ("search", "recovery"))
