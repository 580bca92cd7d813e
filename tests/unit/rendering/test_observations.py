"""Observation spans: exact, disjoint from the actions, and certified with the row."""

import json

import pytest

from offline_agent.errors import DataError
from offline_agent.records import Action
from offline_agent.rendering import observations
from offline_agent.rendering.columns import check_row, check_tokens, trajectory_columns
from offline_agent.rendering.renderer import Renderer
from tests.helpers import rendering as kit
from tests.helpers.rows import renderer as embedded
from tests.helpers.rows import trajectory
from tests.unit.rendering.test_renderer import FAMILIES, act

REPLIES = ["2 hits: <|im_end|> and <tool_call>", "bought"]


def found(renderer, context, given=0):
    row = trajectory_columns(renderer, context, given=given)
    entry = json.loads(row["certificate"])["sequence"]
    seen = observations.find(renderer, row["input_ids"], entry["spans"], context.messages(), given)
    assert entry["observations"] == seen.entry()
    return row, seen


@pytest.mark.parametrize("family", FAMILIES)
def test_spans_hold_the_contents_and_nothing_else_up_to_the_reply_to_the_last_action(family):
    renderer = Renderer(FAMILIES[family]())
    context = kit.root()
    for reply in REPLIES:
        context = context.child(act(renderer), reply)
    row, seen = found(renderer, context)
    ids = [*row["input_ids"], *seen.tail]
    assert ids == renderer.context_ids(context)[: len(ids)], "the tail is what the policy would have been shown"
    got = [renderer.decode(ids[start:end]) for start, end in seen.spans]
    assert got == REPLIES
    mask = [*row["action_mask"], *(0 for _ in seen.tail)]
    assert not any(any(mask[start:end]) for start, end in seen.spans) and seen.spans[-1][1] == len(ids)


def test_replies_to_turns_that_were_not_executed_and_those_of_the_prompt_do_not_count():
    renderer = Renderer(kit.qwen())
    broken = renderer.parse(renderer.encode_action(Action("<tool_call>{no json</tool_call>")))
    assert broken.fault is not None
    context = kit.root().child(act(renderer), "first").child(broken, "no JSON").child(act(renderer), "last")
    assert found(renderer, context)[1].texts == ("first", "last")
    assert found(renderer, context, given=1)[1].texts == ("last",)
    assert found(renderer, context.child(broken, "no JSON"))[1].tail == (), "nothing of the last reply counts"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda entry: entry["observations"]["spans"].__setitem__(0, entry["spans"][0]), r"observations \(spans\)"),
        (lambda entry: entry["observations"].update(tokens=1), r"observations \(tokens\)"),
        (lambda entry: entry["observations"]["texts"].reverse(), r"observations \(texts\)"),
        (lambda entry: entry["observations"]["tail"].update(ids="0"), r"observations \(tail\)"),
        (lambda entry: entry.update(observations=[]), "observations"),
    ],
)
def test_a_certificate_that_says_otherwise_is_refused(change, said):
    row = trajectory(1)
    data = json.loads(row["certificate"])
    change(data["sequence"])
    with pytest.raises(DataError, match=said):
        check_tokens(embedded(), {**row, "certificate": json.dumps({k: v for k, v in data.items() if k not in
                                                                    ("columns", "digest")})})  # fmt: skip


def test_messages_without_the_last_reply_prove_the_replies_before_it():
    renderer = Renderer(kit.qwen())
    context = kit.root()
    for reply in REPLIES:
        context = context.child(act(renderer), reply)
    row, _ = found(renderer, context)
    row |= {"messages": context.messages()[:-1]}
    assert row["messages"][-1]["role"] == "assistant"
    check_row(renderer, row)
    data = json.loads(row["certificate"])
    data["sequence"]["observations"]["spans"][0][0] -= 1
    with pytest.raises(DataError, match=r"observations \(spans"):
        check_row(renderer, {**row, "certificate": json.dumps(data)})


def test_an_observation_that_the_ids_do_not_hold_is_refused():
    row = trajectory(1)
    data = json.loads(row["certificate"])["sequence"]
    messages = [dict(message) for message in row["messages"]]
    next(message for message in messages if message["role"] == "tool")["content"] = "page of something else"
    with pytest.raises(DataError, match="the ids after turn 0 are not those of the message"):
        observations.find(embedded(), row["input_ids"], data["spans"], messages)


def test_an_observation_never_shares_a_token_with_an_action():
    row = trajectory(1)
    data = json.loads(row["certificate"])["sequence"]
    seen = observations.find(embedded(), row["input_ids"], data["spans"], row["messages"])
    start, end = seen.spans[0]
    with pytest.raises(DataError, match="shares tokens with a span of an action"):
        observations.check(seen.entry(), seen, [[0, 3], [end - 1, end + 4]])
