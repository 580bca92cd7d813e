from __future__ import annotations

from dataclasses import replace

from offline_agent.preferences.dataset.filters import RejectionFilter, impossible
from offline_agent.preferences.pairs.trajectory import trajectories
from offline_agent.preferences.settings import FilteredSection
from offline_agent.records import Trajectory
from tests.helpers import preferences as kit


def branches(*rollouts: str) -> list[Trajectory]:
    return list(trajectories(kit.grow(rollouts)))


def words(kept: list[Trajectory]) -> list[str]:
    return [" ".join(step.action.text for step in t.steps) for t in kept]


def test_verified_successes_shortest_first() -> None:
    kept, refusals = RejectionFilter().select(branches("A look B leave", "B leave", "A B leave"), "t")
    assert words(kept) == ["A B leave", "A look B leave"] and not refusals


def test_one_per_canonical_action_sequence() -> None:
    both = branches("A B leave") + [t for t in trajectories(kit.grow([[kit.act("A", "well "), *kit.acts("B leave")]]))]
    kept, refusals = RejectionFilter().select(both, "t")
    assert words(kept) == ["A B leave"]
    assert "same canonical actions" in refusals[0].reason and refusals[0].facts["actions"][2] == "leave{}"


def test_at_most_n_per_task() -> None:
    many = branches("A B leave", "A look B leave", "A look look B leave")
    kept, refusals = RejectionFilter(FilteredSection(per_task=2)).select(many, "t")
    assert len(kept) == 2 and len(refusals) == 1 and "more than 2 of its task" in refusals[0].reason
    other = list(trajectories(kit.grow(["C A leave"], of=kit.task("CA"))))
    assert len(RejectionFilter(FilteredSection(per_task=2)).select(many + other, "t")[0]) == 3


def test_unscored_and_truncated_are_never_kept() -> None:
    tree = kit.grow(["A B leave", "look look look look"], max_steps=4)
    kit.end(tree.path(next(tree.terminals()))[-1], None)
    assert RejectionFilter().select(trajectories(tree), "t") == ([], [])


def test_a_success_with_faults_is_kept() -> None:
    recovered = branches("X A fly B leave")
    assert [s.fault for s in recovered[0].steps] == ["tool_error", None, "unknown_tool", None, None]
    assert len(RejectionFilter().select(recovered, "t")[0]) == 1


def test_negatives_refuse_what_has_become_impossible() -> None:
    kept, _ = RejectionFilter(FilteredSection(negatives=True)).select(branches("A B leave", "A look B leave"), "t")
    negative = kept[-1]
    assert len(kept) == 3 and negative.origin == "demonstration" and negative.verdict is None
    names = [tool["function"]["name"] for tool in negative.context.tools]
    assert sorted(names) == ["leave", "look"] and "press" in [
        t["function"]["name"] for t in kept[0].context.tools
    ]  # fmt: skip
    turn = negative.context.messages()[-1]
    assert turn["role"] == "assistant" and "tool_calls" not in turn
    assert "Press a button" in turn["content"] and all(name in turn["content"] for name in names)
    assert RejectionFilter().select(branches("A B leave"), "t")[0][-1].origin == "search"


def test_no_negative_where_no_tool_is_left() -> None:
    start = kit.grow(["A B leave"]).root.context
    assert impossible(start, "nothing") is None
    start.tools = [tool for tool in start.tools if tool["function"]["name"] == "press"]
    assert impossible(start, "press") is None


def test_shortened_successes_are_kept_only_on_request() -> None:
    tree = kit.grow(["A B leave"])
    found = [replace(t, origin="pruned") for t in trajectories(tree)]
    kept, refused = RejectionFilter().select(found, "t")
    assert kept == [] and {refusal.reason for refusal in refused} == {"its origin is pruned"}
    kept, _ = RejectionFilter(FilteredSection(origins=("pruned",))).select(found, "t")
    assert kept
