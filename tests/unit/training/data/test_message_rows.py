"""Rows of messages: what is trained is what the row says, and what is not understood is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from offline_agent.errors import DataError
from offline_agent.records import Action, Context, ToolCall
from offline_agent.rendering.columns import trajectory_columns
from offline_agent.rendering.renderer import Renderer
from offline_agent.rendering.styles import template_text
from offline_agent.training.data.conversations import Encoder
from tests.helpers import rendering as kit
from tests.helpers import rows

RENDERER = Renderer(kit.byte_level(kit.CONTROLS[:3], template_text("qwen")))
ENCODER = Encoder(RENDERER)
GO = {"role": "user", "content": "go"}
CALL = {"type": "function", "function": {"name": "s", "arguments": {"q": "1"}}}
RESULT = {"role": "tool", "content": "r", "tool_call_id": "c1"}
CALLED = '<tool_call>\n{"name": "s", "arguments": {"q": "1"}}\n</tool_call><|im_end|>'


def trained(*messages: dict[str, Any]) -> list[str]:
    """Return the texts of the spans that are trained."""
    ids, mask, starts = ENCODER.trajectory([GO, *messages], None, False).values()
    assert not starts
    spans, at = [], 0
    while at < len(ids):
        stop = at
        while stop < len(ids) and mask[stop]:
            stop += 1
        if stop > at:
            spans.append(RENDERER.decode(ids[at:stop]))
        at = stop + 1
    return spans


def said(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


@pytest.mark.parametrize(
    "messages, spans",
    [
        ([said(None, tool_calls=[CALL]), RESULT, said("Done.")], [CALLED, "Done.<|im_end|>"]),
        ([said(None, tool_calls=[CALL], reasoning_content="So.")], [f"<think>\nSo.\n</think>\n\n\n{CALLED}"]),
        ([said("Done.", reasoning="So.")], ["<think>\nSo.\n</think>\n\nDone.<|im_end|>"]),
        ([said(None, function_call={"name": "s", "arguments": '{"q": "1"}'})], [CALLED]),
        ([said(None, tool_calls=[{"function": {"name": "s", "arguments": ""}}])], [CALLED.replace('{"q": "1"}', "{}")]),
        ([said("bad", weight=0), GO, said("good", weight=1)], ["good<|im_end|>"]),
        ([said("bad", train=False), GO, said("good", loss=True)], ["good<|im_end|>"]),
        ([said("", train=False), GO, said("good")], ["good<|im_end|>"]),
    ],
)
def test_what_the_row_says_is_trained(messages: list[dict[str, Any]], spans: list[str]) -> None:
    assert trained(*messages) == spans


@pytest.mark.parametrize(
    "message, words",
    [
        (said(""), "neither content nor a call"),
        (said(None), "neither content nor a call"),
        (said(None, tool_calls=[{"function": {"name": "s", "arguments": '"{}"'}}]), "JSON text in JSON text"),
        (said(None, tool_calls=[{"function": {"name": "s", "arguments": "[1]"}}]), "got list [1], wanted an object"),
        (said("x", thoughts="So."), "has thoughts, read are content"),
        (said("x", weight=0.5), "weight: got 0.5"),
        (said("x", reasoning_content={"a": "So."}), "reasoning_content: got dict"),
        ({"role": "critic", "content": "x"}, "role: got 'critic', allowed: system, developer, user"),
        (said('<tool_call>\n{"name": "s"'), "is not read back"),
    ],
)
def test_what_is_not_understood_is_refused(message: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words.replace("[", r"\[")):
        trained(message, GO, said("Done."))


def _of_search() -> Context:
    start = kit.root("Find red shoes.\n\nQuickly.", "You shop.", rows.schemas())
    search = start.child(Action("", "", ToolCall("search", {"query": "red shoes"})), "2 hits.\n\n")
    return search.child(Action("Done.\n\n", "Done.\n\n"), None)


def test_rows_of_messages_have_the_ids_of_a_search() -> None:
    """Qwen's pattern of words takes `.` and what follows as one, so that the whole text at once has other ids."""
    renderer = Renderer(kit.byte_level(kit.CONTROLS[:3], template_text("qwen"), split=kit.QWEN_SPLIT))
    encoder, context = Encoder(renderer), _of_search()
    row = trajectory_columns(renderer, context)
    messages, tools = context.messages(), list(context.tools)
    made = encoder.trajectory(messages, tools, False)
    assert made == {"input_ids": row["input_ids"], "action_mask": row["action_mask"], "starts": []}
    assert (encoder.differs, encoder.one_text) == (True, False)
    side = {"role": "assistant", "content": "No."}
    pair = encoder.pair({"prompt": messages[:4], "chosen": messages[4:], "rejected": [side], "tools": tools}, False)
    given = renderer.context_ids(context.lineage()[1])
    assert pair["prompt_ids"] == given and given + pair["chosen_ids"] == row["input_ids"]
    encoder.trajectory([*messages[:2], messages[1], *messages[2:]], tools, False)
    assert (encoder.differs, encoder.one_text) == (False, True)


def test_parallel_results_are_one_turn_of_the_user() -> None:
    turn = said(None, tool_calls=[{**CALL, "id": "c1"}, {**CALL, "id": "c2"}])
    made = ENCODER.trajectory([GO, turn, RESULT, {**RESULT, "tool_call_id": "c2"}, said("Done.")], None, False)
    ids = made["input_ids"]
    responses = "\n".join(["<tool_response>\nr\n</tool_response>"] * 2)
    assert f"<|im_start|>user\n{responses}<|im_end|>\n<|im_start|>assistant\nDone." in RENDERER.decode(ids)


def test_a_developer_is_the_system() -> None:
    instructed = [{"role": "developer", "content": "Be brief."}, GO, said("Yes.")]
    same = [{**instructed[0], "role": "system"}, *instructed[1:]]
    assert ENCODER.trajectory(instructed, None, False) == ENCODER.trajectory(same, None, False)


def test_turns_of_a_pairs_prompt_are_not_trained() -> None:
    row = {"prompt": [GO, said(""), GO], "chosen": [said("Yes.")], "rejected": [said("No.")]}
    pair = ENCODER.pair(row, False)
    assert RENDERER.decode(pair["chosen_ids"]) == "Yes.<|im_end|>" and set(pair["chosen_mask"]) == {1}
    with pytest.raises(DataError, match="neither content nor a call"):
        ENCODER.pair({**row, "rejected": [said("")]}, False)
