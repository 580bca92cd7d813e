"""The syntax of this package's template `compact`: a last line `> name(key=JSON value, …)`."""

from __future__ import annotations

import re
from typing import Any

from offline_agent.rendering.parsing import BadJson, Parsed, answer, before_call, decode, from_value, quote

_CALL = re.compile(r"^(> )([\w.-]+)\(", re.MULTILINE)
_KEY = re.compile(r"([^\s=(),\"']+)=")
_COMMA = re.compile(r", ?(?=[^)])")


def parse(text: str, separator: str = "\n") -> Parsed:
    """Parse a turn in the compact style: a thought, then a last line `> name(key=JSON value, …)`."""
    found = _CALL.search(text)
    if found is None:
        return answer(text)
    thought, body = before_call(text[: found.start(1)], separator), text[found.end() :].rstrip()
    arguments: dict[str, Any] = {}
    # read one by one: a JSON value may hold commas, brackets and what looks like the next key
    while key := _KEY.match(body):
        if key[1] in arguments:
            return Parsed(thought, None, "invalid_json", f"The tool call has the argument {quote(key[1])} twice.")
        try:
            arguments[key[1]], end = decode(body[key.end() :])
        except BadJson as error:
            return Parsed(thought, None, "invalid_json", f"The argument {quote(key[1])} is not valid JSON: {error}")
        body = body[key.end() + end :]
        if not (comma := _COMMA.match(body)):
            break
        body = body[comma.end() :]
    if body != ")":
        detail = f"A call is a turn's last line, > name(key=value, …); got {quote(body) or 'its end'} after it began."
        return Parsed(thought, None, "bad_call", detail)
    return from_value(thought, {"name": found[2], "arguments": arguments}, "> <tool>(<argument>=<JSON value>, …)")
