"""A scripted solver: runs the known calculation cell by cell, then answers; with noise it miscalculates."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from offline_agent.records import Message, call_message

_NUMBER = re.compile(r"-?\d+(?:/\d+|\.\d+)?")
_PART = re.compile(r"\d+|//|[-+*/]")
_CONFUSED = {"+": "-", "-": "+", "*": "+", "/": "*", "//": "*"}


def next_turn(task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float) -> Message:
    """Return the next assistant message.

    Args:
        task: `reset`'s arguments.
        messages: The conversation so far.
        rng: The source of its errors.
        noise: Probability, in [0, 1], of an error in each cell; the last thing printed is then the answer. With 0 the
            answer is the right one.
    """
    ran = [made for message in messages for made in message.get("tool_calls") or () if _is_cell(made)]
    cells = task["cells"]
    if len(ran) < len(cells):
        cell = cells[len(ran)]
        wrong = noise > 0 and rng.random() < noise
        return call_message("python", {"code": miscalculated(cell, rng) if wrong else cell})
    if noise <= 0:
        return call_message("answer", {"value": task["gold"]})
    printed = str(messages[-1].get("content") or "") if ran else ""
    numbers = _NUMBER.findall(printed.splitlines()[-1]) if printed.strip() else []
    if cells and numbers:
        return call_message("answer", {"value": numbers[-1]})
    return call_message("answer", {"value": task["gold"] if rng.random() >= noise else f"{task['gold']}+1"})


def miscalculated(cell: str, rng: random.Random) -> str:
    """Return a calculation with one number or operator changed; as it is where it has none."""
    parts = list(_PART.finditer(cell))
    if not parts:
        return cell
    part = rng.choice(parts)
    wrong = _CONFUSED.get(part[0]) or str(int(part[0]) + 1)
    return cell[: part.start()] + wrong + cell[part.end() :]


def _is_cell(made: Mapping[str, Any]) -> bool:
    return bool(made["function"]["name"] == "python")
