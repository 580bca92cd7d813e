"""Scripted analysts: one that knows the right query, and one that writes it carelessly."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from offline_agent.records import Message, call_message

_ERRORS: tuple[tuple[str, str | Callable[[re.Match[str], random.Random], str]], ...] = (
    (r" > ", " < "),
    (r" < ", " > "),
    (r"\bDESC\b", "ASC"),
    (r"\bMAX\b", "MIN"),
    (r"\bAVG\b", "SUM"),
    (r"\bSUM\b", "COUNT"),
    (r"\bNOT EXISTS\b", "EXISTS"),
    (r" WHERE [^()]*$", ""),
    (r" AND .*$", ""),
    (r"\bLIMIT (\d+)$", lambda found, rng: f"LIMIT {int(found[1]) + rng.choice((-1, 1))}"),
    (r"(?<=[<>=] )(\d+)\b", lambda found, rng: str(int(found[1]) + rng.choice((-7, 5, 11)))),
    (r"\bCOUNT\(\*\)", "COUNT(*) + 1"),
    (r"\bFROM (\w+)", lambda found, rng: f"FROM {found[1]}s"),  # a table that there is not: an error
)


def next_turn(
    tables: Sequence[str], task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float
) -> Message:
    """Return the next assistant message.

    Args:
        tables: Names of the database's tables.
        task: `reset`'s arguments.
        messages: The conversation so far.
        rng: The source of carelessness.
        noise: Probability, in [0, 1], that what it writes next is wrong, and half of it that it skips a look.
    """
    gold = str(task["gold"])
    made = [call["function"] for message in messages for call in message.get("tool_calls") or ()]
    names = [call["name"] for call in made]
    if "list_tables" not in names and rng.random() >= noise / 2:
        return call_message("list_tables", {})
    described = {str(call["arguments"].get("table")) for call in made if call["name"] == "describe"}
    used = [name for name in tables if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", gold)]
    missing = [name for name in used if name not in described]
    if missing and "query" not in names and rng.random() >= noise / 2:
        return call_message("describe", {"table": missing[0]})
    writes = not gold.lstrip().lower().startswith(("select", "with"))
    text = careless(gold, rng) if rng.random() < noise else gold
    if "query" not in names or (noise > 0 and names[-1] == "query" and rng.random() < noise / 3):
        return call_message("query", {"sql": text})
    return call_message("answer", {"sql": "done" if writes else text})


def careless(gold: str, rng: random.Random) -> str:
    """Return the query with one usual mistake in it."""
    fitting = [(pattern, change) for pattern, change in _ERRORS if re.search(pattern, gold)]
    pattern, change = rng.choice(fitting) if fitting else (r"$", " LIMIT 1")
    written = change if isinstance(change, str) else lambda found: change(found, rng)
    return re.sub(pattern, written, gold, count=1)
