"""Turns of several messages, each with a channel or a recipient: gpt-oss's harmony, and Muse Glimmer.

The formats are those that the chat templates of gpt-oss and Muse Glimmer write.
"""

from __future__ import annotations

import re
from dataclasses import replace

from offline_agent.rendering.calls.xml import ATEM
from offline_agent.rendering.parsing import BadJson, Parsed, answer, from_value, load_json, thinking

_NEXT = re.compile(r"<\|(?:end|eom)\|>\s*<\|start\|>assistant")
_TO = re.compile(r"to=(?:functions\.)?([^\s<]+)")
_HARMONY = "<|channel|>commentary to=functions.<tool> <|constrain|>json<|message|><JSON object>"


def parse(text: str, separator: str = "") -> Parsed:
    """Parse a turn: messages of thought, then one call, or an answer. Reasoning is returned between <think> tags."""
    reasons: list[str] = []
    words: list[str] = []
    parts = _NEXT.split(text)
    for index, part in enumerate(parts):
        header, mark, body = part.partition("<|message|>")
        recipient = _TO.search(header)
        if not mark:  # words without a header, as a cut turn has them
            words.append(part)
        elif recipient is not None and recipient[1] not in ("self", "user"):
            thought = thinking("\n\n".join(reasons), "\n\n".join(words))
            # a call ends the turn: what follows it was sampled without its answer
            if index + 1 < len(parts):
                return Parsed(thought, None, "several_calls", "Make one tool call per turn, as its last message.")
            return _call(thought, recipient[1], body)
        elif "analysis" in header or (recipient is not None and recipient[1] == "self"):
            reasons.append(body)
        else:
            words.append(body)
    return answer(thinking("\n\n".join(reasons), "\n\n".join(words)))


def _call(thought: str, name: str, body: str) -> Parsed:
    if ATEM.open in body or "<atem:" in body:
        return replace(ATEM.parse(body), thought=thought)
    try:
        value = {"name": name, "arguments": load_json(body)}
    except BadJson as error:
        return Parsed(thought, None, "invalid_json", f"The tool call is not valid JSON: {error} Write {_HARMONY}.")
    return from_value(thought, value, _HARMONY)
