"""Llama 3's syntax: a JSON object with a name and parameters, without marks, at the end of the turn."""

from __future__ import annotations

import re

from offline_agent.rendering.parsing import BadJson, Parsed, answer, before_call, decode, from_value

EXAMPLE = '{"name": "<tool>", "parameters": {…}}'


def parse(text: str, separator: str = "\n") -> Parsed:
    """Parse a turn in the Llama-3 style: a thought, then a JSON object with a `name` that ends the turn."""
    stripped = text.rstrip()
    for match in re.finditer(r'\{\s*"name"\s*:', text):
        try:
            value, end = decode(text[match.start() :])
        except BadJson as error:
            thought = before_call(text[: match.start()], separator)
            return Parsed(thought, None, "invalid_json", f"The tool call is not valid JSON: {error}")
        # a call ends the turn; JSON with text after it is part of an answer
        end += match.start()
        if end >= len(stripped):
            # Llama 3 writes parameters where others write arguments
            if "parameters" in value and "arguments" not in value:
                value = {("arguments" if key == "parameters" else key): item for key, item in value.items()}
            return from_value(before_call(text[: match.start()], separator), value, EXAMPLE)
        if re.match(r'[\s;,]*\{\s*"name"\s*:', text[end:]):
            return Parsed(text, None, "several_calls", "Make one tool call per turn; the turn had more than one.")
        break
    return answer(text)
