"""Text for the page: what tools and models wrote is shown letter by letter and never interpreted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from offline_agent import pictures

MOST_BYTES = 100_000  # of a picture in the page


def calls_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the calls of a message, each with `name` and `arguments`; arguments may be JSON text."""
    out = []
    for call in message.get("tool_calls") or ():
        call = call if isinstance(call, Mapping) else read(call)
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            out.append({"name": str(function.get("name")), "arguments": read(function.get("arguments"))})
    return out


def read(value: Any) -> Any:
    """Return the value of JSON text; anything else, and text that is no JSON, as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def call_text(name: str, arguments: Any) -> str:
    """Return a call as it is written in code: `search(query="red shoes")`."""
    if isinstance(arguments, Mapping):
        return f"{name}({', '.join(f'{key}={_json(value)}' for key, value in arguments.items())})"
    return f"{name}({'' if arguments is None else _json(arguments)})"


def turn(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as the page shows it: `role`, the `name` of a tool, `text`, and the calls on lines of their own.

    Nothing is cut. With the name stands how the policy's history goes on, where it does so anew (`records.Anew`).
    Pictures are named in the text, and `pictures` has data URLs of those that are at hand and small. Content that is no
    text is shown as JSON.
    """
    content = message.get("content")
    shown = content if isinstance(content, str) else "" if content is None else _json(content)
    parts = pictures.split(shown) if message.get("role") != "assistant" else [shown]
    shown = "".join(f"[picture {part[:12]}]" if at % 2 else part for at, part in enumerate(parts))
    there = [hash for hash in parts[1::2] if pictures.known(hash) and len(pictures.data(hash)) <= MOST_BYTES]
    calls = "\n".join(call_text(call["name"], call["arguments"]) for call in calls_of(message))
    name = " ".join(str(message[key]) for key in ("name", "anew") if message.get(key))
    told = {"role": str(message.get("role")), "name": name, "text": shown, "calls": calls}
    return {**told, "pictures": list(map(pictures.url, there))} if there else told


def brief(text: str, most: int = 60) -> str:
    """Return the beginning and the end of a text on one line, for labels beside which the whole text stands."""
    flat, end = " ".join(text.split()), most // 3
    return flat if len(flat) <= most else f"{flat[: most - end - 1]}…{flat[-end:]}"


def pretty(value: Any) -> str:
    """Return a JSON value over several lines; text as it is."""
    return value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False, default=str)


def number(value: Any, digits: int = 2) -> str:
    """Return a number for a table; a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if value and abs(value) < 10**-digits:
        return f"{value:.1e}"
    return f"{value:,.{digits}f}"


def percent(value: float | None) -> str:
    """Return a share as a percentage; a dash for None."""
    return "–" if value is None else f"{100 * value:.1f} %".replace(".0 %", " %")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
