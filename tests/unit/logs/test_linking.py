"""Linking of logged episodes into trees, and what is mined of them."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offline_agent.errors import DataError
from offline_agent.logs.conversation import conversation
from offline_agent.logs.episode import Fields, LoggedEpisode, TurnTokens, turn_tokens
from offline_agent.logs.linking import Linked, link
from offline_agent.logs.sessions import Outcomes
from offline_agent.logs.tokens import TokenCheck
from offline_agent.policies.base import DEFAULT_MODEL
from offline_agent.preferences.dataset.export import trajectory_row
from offline_agent.preferences.mining import Miner
from offline_agent.preferences.pairs.trajectory import trajectories
from offline_agent.preferences.settings import PairRules
from offline_agent.records import Action, Context, Task, Trajectory, Verdict
from offline_agent.rendering.columns import has_ids, starts_of, trajectory_columns
from offline_agent.rendering.renderer import Renderer
from offline_agent.search.serialization import tree_from_json, tree_to_json
from tests.helpers import whole_prompts

USER = {"role": "user", "content": "go"}
OTHER = {"role": "user", "content": "sum up"}


def call(name: str, said: str = "", **arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": said, "tool_calls": [{"function": {"name": name, "arguments": arguments}}]}


def result(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text}


def say(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def episode(*turns: dict[str, Any], success: bool | None = None, name: str = "log:1", **more: Any) -> LoggedEpisode:
    score = None if success is None else float(success)
    return LoggedEpisode(name, conversation([USER, *turns]), task="t", success=success, score=score, **more)


def texts(linked: Linked) -> Counter[str]:
    """Return the conversations that end in the trees."""
    return Counter(json.dumps(one.context.messages()) for tree in linked.trees for one in trajectories(tree))


TURNS = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy")), max_size=3)


@given(st.lists(st.tuples(TURNS, st.sampled_from("pq"), st.sampled_from((True, False, None))), min_size=1, max_size=12))
def test_every_episode_is_an_end_of_a_tree_word_by_word(drawn: list[tuple[Any, str, bool | None]]) -> None:
    """Every world: turns that are answered differently, equal episodes, contradicting outcomes, no outcomes."""
    episodes = [
        episode(*(m for name, answer in turns for m in (call(name), result(answer))), say(last), success=won,
                name=f"log:{number}", session=str(number))
        for number, (turns, last, won) in enumerate(drawn)
    ]  # fmt: skip
    linked = link(episodes)
    assert linked.counts["episodes"] == len(episodes) and not linked.counts["parts"] and not linked.refusals
    judged: dict[str, set[bool]] = {}
    for one in episodes:
        judged.setdefault(json.dumps(list(one.messages)), set()).update({one.success} - {None})
    sound = {text for text, outcomes in judged.items() if len(outcomes) < 2}
    assert texts(linked).keys() == sound
    for tree in linked.trees:
        again = tree_from_json(json.loads(json.dumps(tree_to_json(tree))))
        assert [n.context.messages() for n in again.nodes] == [n.context.messages() for n in tree.nodes]
        for end in trajectories(tree):
            (won,) = judged[json.dumps(end.context.messages())] or {None}
            assert (None if end.verdict is None else end.verdict.success) == won
    known = [one for one in episodes if one.success is not None and json.dumps(list(one.messages)) in sound]
    roots = [edge for tree in linked.trees for edge in tree.root.edges]
    assert sum(edge.verified for edge in roots) == len(known) == linked.counts["judged"]
    assert sum(edge.successes for edge in roots) == sum(bool(one.success) for one in known)
    assert sum(edge.count for edge in roots) == len(episodes)


def test_a_pair_of_logs_shares_its_prompt_word_by_word() -> None:
    linked = link([
        episode(call("a", "first I look"), result("r"), call("b", q=1), result("s"), say("done"), success=True),
        episode(call("a", "first I look"), result("r"), call("c"), result("s"), say("done"), success=False),
        episode(call("a", "let me see"), result("r"), call("b", q=1), result("s"), say("done"), success=False),
    ])  # fmt: skip
    mined = Miner(None).mine(linked.trees[0])
    shared = {tuple(json.dumps(m) for m in pair.prefix.messages()) for pair in mined.pairs}
    assert Counter(pair.kind for pair in mined.pairs) == {"trajectory": 2}
    assert {len(prompt) for prompt in shared} == {1, 3}
    assert [len(one.steps) for one in mined.filtered] == [3]
    assert mined.filtered[0].origin == "rollout"


def test_a_step_pair_needs_enough_attempts_on_both_sides() -> None:
    def tried(name: str, number: int, won: bool) -> LoggedEpisode:
        return episode(call(name), result("r"), call("x", n=number), result("s"), say("done"), success=won)

    good = [tried("good", number, True) for number in range(8)]
    bad = [tried("bad", number, False) for number in range(8)]
    few = Miner(None, PairRules(kinds=("step",))).mine(link([*good, *bad[:2]]).trees[0])
    assert not few.pairs and "fewer than 3 rollouts" in {refusal.reason for refusal in few.refusals}
    (pair,) = Miner(None, PairRules(kinds=("step",))).mine(link([*good, *bad]).trees[0]).pairs
    assert (pair.chosen[0].key, pair.rejected[0].key) == ("good{}", "bad{}")
    assert (pair.visits_chosen, pair.visits_rejected) == (8, 8)


def test_what_the_world_answered_is_not_the_turns_merit() -> None:
    lucky = [episode(call("try"), result("heads"), say("done"), success=True, session=str(n)) for n in range(6)]
    unlucky = [episode(call("try"), result("tails"), say("done"), success=False, session=str(n + 9)) for n in range(6)]
    other = [episode(call("wait"), result("r"), say("done"), success=False, session=str(n + 19)) for n in range(6)]
    linked = link([*lucky, *unlucky, *other])
    assert len(linked.trees) == 1
    mined = Miner(None, PairRules(kinds=("step", "trajectory"))).mine(linked.trees[0])
    turns = [(pair.chosen[0].action.text, pair.rejected[0].action.text) for pair in mined.pairs]
    assert turns and all(one != other for one, other in turns)
    assert "step" not in {pair.kind for pair in mined.pairs}
    assert any("the world answered it differently" in refusal.reason for refusal in mined.refusals)


def test_calls_of_one_session_are_one_episode() -> None:
    whole = (call("a"), result("r"), call("b"), result("s"), say("done"))
    parts = [episode(*whole[:end], session="s", name=f"log:{end}") for end in (1, 3)]
    linked = link([*parts, episode(*whole, session="s", success=True)])
    assert (linked.counts["parts"], linked.counts["episodes"], sum(texts(linked).values())) == (2, 1, 1)
    told = [episode(*whole[:end], session="s", success=True) for end in (1, 3, 5)]
    assert (link(told).counts["parts"], link(told).counts["judged"]) == (2, 1)


def test_an_episode_that_ended_earlier_in_another_session_is_no_part() -> None:
    whole = (call("a"), result("r"), say("done"))
    linked = link([episode(*whole[:1], session="1", success=False), episode(*whole, session="2", success=True)])
    assert (linked.counts["parts"], linked.counts["episodes"], linked.counts["judged"]) == (0, 2, 2)
    assert sum(texts(linked).values()) == 2


def test_a_session_that_comes_twice_is_counted_once() -> None:
    twice = [episode(say("done"), session="s", success=True, name=f"log:{n}") for n in (1, 2)]
    linked = link(twice)
    assert (linked.counts["episodes"], linked.counts["judged"]) == (1, 1)
    assert [(refusal.name, refusal.kind) for refusal in linked.refusals] == [("log:2", "log")]
    assert link([episode(say("done"), success=True)] * 2).counts["episodes"] == 2  # without ids they are two attempts


def told(*records: dict[str, Any]) -> Outcomes:
    outcomes = Outcomes(Fields())
    for number, record in enumerate(records):
        assert outcomes.take(record, f"outcomes:{number}")
    return outcomes


def scores(linked: Linked) -> dict[str, bool | None]:
    """Return the outcome of each end, by the text of its last turn."""
    ends = [one for tree in linked.trees for one in trajectories(tree)]
    return {one.steps[-1].action.text: None if one.verdict is None else one.verdict.success for one in ends}


def test_an_outcome_of_a_session_belongs_to_its_ends() -> None:
    """Alone catches an outcome on a turn that the agent asked for again, or on its calls one by one."""
    outcomes = told({"session_id": "s", "reward": 1.0, "task_id": "t"})
    first, again = (call("a"), result("r"), say("cut off")), (call("a"), result("r"), say("done"))
    calls = [first[:1], first, again]
    linked = link([episode(*turns, session="s", name=f"log:{n}") for n, turns in enumerate(calls)], outcomes=outcomes)
    assert (linked.counts["parts"], linked.counts["judged"], scores(linked)) == (1, 1, {"cut off": None, "done": True})
    helper = episode(say("summary"), session="s", name="log:9")  # another conversation of the session ends as it does
    linked = link([episode(*again, session="s"), replace(helper, messages=conversation([OTHER, say("summary")]))],
                  outcomes=outcomes)  # fmt: skip
    assert scores(linked) == {"done": True, "summary": True}
    assert scores(link([episode(*again, session="another")], outcomes=outcomes)) == {"done": None}


def test_an_outcome_of_a_session_leaves_choices_that_nobody_took() -> None:
    outcomes = told({"session_id": "s", "success": False})
    one, two = (replace(episode(say(text), session="s"), name=f"log:1/{n}", choice=n) for n, text in enumerate("ab"))
    assert scores(link([one, two], outcomes=outcomes)) == {"a": None, "b": None}
    went_on = episode(say("a"), {"role": "user", "content": "and?"}, say("done"), session="s", name="log:2")
    assert scores(link([one, two, went_on], outcomes=outcomes)) == {"b": None, "done": False}


def test_a_session_with_two_outcomes_has_none() -> None:
    outcomes = told({"session_id": "s", "success": False})
    assert outcomes.take({"session_id": "s", "success": False}, "outcomes:1")  # sent twice
    assert outcomes.take({"session_id": "s", "reward": 0.0}, "outcomes:1")  # by another field
    with pytest.raises(DataError, match="another outcome or task in outcomes:0"):
        outcomes.take({"session_id": "s", "success": True}, "outcomes:2")
    assert scores(link([episode(say("done"), session="s")], outcomes=outcomes)) == {"done": None}
    assert not outcomes.take({"success": True}, "f") and not outcomes.take({"session_id": "x"}, "f")
    with pytest.raises(DataError, match="got dialogue, turns, allowed"):
        outcomes.take({"session_id": "x", "success": True, "time": 1, "turns": [], "dialogue": []}, "f")
    assert Outcomes(Fields(outcome="info.won")).take({"id": "x", "info": {"won": 1}, "task": "t"}, "f")


def test_contradicting_outcomes_are_in_quarantine() -> None:
    linked = link([episode(say("done"), success=won, name=f"log:{won}") for won in (True, False)])
    (edge,) = linked.trees[0].edges
    assert "log:True" in str(edge.quarantined) and "log:False" in str(edge.quarantined)
    assert not Miner(None).mine(linked.trees[0]).filtered


def test_a_turn_that_the_token_limit_cut_is_a_failure() -> None:
    linked = link([episode(say("and so"), cut=True), episode(say("done"), success=True)])
    mined = Miner(None).mine(linked.trees[0])
    (pair,) = mined.pairs
    assert pair.verdict_rejected is not None and pair.verdict_rejected.verifier == "tokens"
    assert link([episode(say("and so"), cut=True, success=True)]).trees[0].edges[0].successes == 1  # the log knows


def test_other_tools_or_another_request_are_another_tree() -> None:
    tool = {"type": "function", "function": {"name": "a"}}
    linked = link([episode(say("x"), success=True), episode(say("y"), success=False, tools=(tool,))])
    assert len({tree.tree_id for tree in linked.trees}) == 2
    assert {tree.task.task_id for tree in linked.trees} == {"t"}


def test_a_judge_is_asked_where_the_log_does_not_tell() -> None:
    asked: list[list[dict[str, Any]]] = []

    def judge(trajectory: Trajectory) -> Verdict:
        asked.append(trajectory.context.messages())
        won = trajectory.context.messages()[-1]["content"] == "yes"
        return Verdict(float(won), won, "mine") if asked[-1][-1]["content"] != "?" else Verdict(
            None, None, "mine", error="cannot say")  # fmt: skip

    linked = link([episode(say(t)) for t in ("yes", "no", "?")] + [episode(say("told"), success=True)], judge)
    assert len(asked) == 3 and linked.counts["judged"] == 3
    assert [refusal.reason for refusal in linked.refusals] == ["mine: cannot say"]
    assert Miner(None).mine(linked.trees[0]).pairs


def test_the_order_of_the_logs_changes_no_count() -> None:
    rng = random.Random(3)
    episodes = [
        episode(call(rng.choice("ab")), result(rng.choice("xy")), say(rng.choice("pq")), success=rng.random() < 0.5,
                session=str(number))
        for number in range(40)
    ]  # fmt: skip
    counts = []
    for _ in range(3):
        rng.shuffle(episodes)
        (tree,) = link(episodes).trees
        counts.append(Counter((json.dumps(e.child.context.messages()), e.count, e.visits, e.successes)
                              for e in tree.edges if e.child is not None))  # fmt: skip
    assert counts[0] == counts[1] == counts[2]


def test_the_same_messages_in_other_ids_are_no_second_proof() -> None:
    renderer = Renderer.load(DEFAULT_MODEL)
    context = Context(Task("t", "train", {}), "", (), "go")
    prompt, answer = tuple(renderer.context_ids(context)), tuple(renderer.encode_action(Action("done done")))
    letters = (*(id for letter in "done done" for id in renderer.encode_action(Action(letter))[:-1]), renderer.end_id)
    assert renderer.decode(letters) == renderer.decode(answer) and letters != answer
    told = [episode(say("done done"), success=True, tokens=(TurnTokens(prompt, ids, (-0.5,) * len(ids)),))
            for ids in (answer, letters, answer)]  # fmt: skip
    linked = link(told, tokens=TokenCheck(renderer))
    assert linked.counts["exact"] == 2
    assert linked.doubts == {"another episode has other ids for the same messages": 1}
    (end,) = trajectories(linked.trees[0])
    columns = trajectory_columns(renderer, end.context)
    assert columns["input_ids"] == [*prompt, *answer] and sum(columns["action_mask"]) == len(answer)
    (again,) = trajectories(tree_from_json(json.loads(json.dumps(tree_to_json(linked.trees[0])))))
    assert trajectory_columns(renderer, again.context) == columns


def test_nothing_is_rendered_where_a_log_has_no_ids() -> None:
    renderer = Renderer.load(DEFAULT_MODEL)
    (end,) = trajectories(link([episode(call("a"), result("r"), say("done"))]).trees[0])
    assert not has_ids(end.context)
    with pytest.raises(DataError, match="has no token ids at depth 0"):
        trajectory_columns(renderer, end.context)


@pytest.mark.parametrize(
    ("prompt", "sampled", "logps"),
    [([1], [2, 3], [-0.1]), ([1], [2], [0.1]), ([1], [True], None), ([-1], [2], None), ("12", [2], None),
     ([], [2], None)],
)
def test_ids_that_are_none_are_refused(prompt: Any, sampled: Any, logps: Any) -> None:
    with pytest.raises(DataError):
        turn_tokens(prompt, sampled, logps)


def test_the_drift_of_rendering_is_told_of_messages_alone() -> None:
    """Alone catches a template that writes a turn in another way once it is not the last one."""
    plain = Renderer.load(DEFAULT_MODEL)
    forgetful = (
        "{% for m in messages %}<{{ m.role }}>{% if m.role != 'assistant' or loop.last %}{{ m.content }}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    check = TokenCheck(plain)
    two = [episode(say("one"), {"role": "user", "content": "and?"}, say("two"), session=str(n)) for n in range(2)]
    assert link(two, tokens=check).rendered == {"episodes": 2, "same_ids": 2, "same_text": 2}
    own, plain.tokenizer.chat_template = plain.tokenizer.chat_template, forgetful
    try:
        linked = link([*two, episode(say("one"), session="3")], tokens=TokenCheck(plain))
    finally:
        plain.tokenizer.chat_template = own
    assert linked.rendered["episodes"] == 3 and linked.rendered["same_ids"] == 1 == linked.rendered["same_text"]


def test_a_history_that_a_server_rendered_anew_is_a_sequence_of_its_own() -> None:
    last = whole_prompts.trajectory(words="red SO tea")[1]
    asked = whole_prompts.given(last)
    turns = tuple(TurnTokens(tuple(prompt), tuple(ids), (-0.5,) * len(ids)) for prompt, ids in asked)
    messages = last.messages()
    messages[2] = dict(messages[2], content="I say red.", reasoning_content="red")  # as servers tell a thought
    told = LoggedEpisode("log:1", tuple(messages), last.tools, "t", "1", "train", 1.0, True, "ok", tokens=turns)
    linked = link([told], tokens=TokenCheck(whole_prompts.renderer()))
    assert linked.counts["exact"] == 1 and not linked.doubts
    (end,) = trajectories(tree_from_json(tree_to_json(linked.trees[0])))
    row = trajectory_row(end, whole_prompts.renderer())
    edges = pairwise((0, *starts_of(row, "sequence"), len(row["input_ids"])))
    sequences = [(row["input_ids"][a:b], row["action_mask"][a:b]) for a, b in edges]
    assert whole_prompts.shown(sequences) == asked and len(sequences) > 1
