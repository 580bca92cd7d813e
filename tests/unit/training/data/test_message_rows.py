"""Rows of messages: what is trained is what the row says, and what is not understood is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from offline_agent.errors import DataError
from offline_agent.rendering.renderer import Renderer
from offline_agent.rendering.styles import template_text
from offline_agent.training.data.conversations import Encoder
from tests.helpers import rendering as kit

RENDERER = Renderer(kit.byte_level(kit.CONTROLS[:3], template_text("qwen")))
ENCODER = Encoder(RENDERER)
GO = {"role": "user", "content": "go"}
CALL = {"type": "function", "function": {"name": "s", "arguments": {"q": "1"}}}
RESULT = {"role": "tool", "content": "r", "tool_call_id": "c1"}
CALLED = '<tool_call>\n{"name": "s", "arguments": {"q": "1"}}\n</tool_call><|im_end|>'


def trained(*messages: dict[str, Any]) -> list[str]:
    """Return the texts of the spans that are trained."""
    ids, mask = ENCODER.trajectory([GO, *messages], None, False)
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
        (said(None, tool_calls=[{"function": {"name": "s", "arguments": "[1]"}}]), "are list, allowed: an object"),
        (said("x", reasoning_details=[{}]), "has reasoning_details, allowed: role, content"),
        (said("x", weight=0.5), "weight: got 0.5"),
        (said("x", reasoning_content=["So."]), "reasoning is list"),
        ({"role": "critic", "content": "x"}, "the role 'critic', allowed: system, user"),
        (said('<tool_call>\n{"name": "s"'), "is not read back"),
    ],
)
def test_what_is_not_understood_is_refused(message: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words.replace("[", r"\[")):
        trained(message, GO, said("Done."))


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
