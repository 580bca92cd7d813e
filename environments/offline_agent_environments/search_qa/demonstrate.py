"""Scripted readers: one that knows the passages that hold the answer, and one that takes others."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from offline_agent.records import Message, call_message


def next_turn(task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float) -> Message:
    """Return the next assistant message.

    Args:
        task: `reset`'s arguments.
        messages: The conversation so far.
        rng: The source of carelessness.
        noise: Probability, in [0, 1], of a careless turn: another passage, or an answer taken from what was read last.
    """
    made = [call["function"] for message in messages for call in message.get("tool_calls") or ()]
    read = {str(call["arguments"].get("title")) for call in made if call["name"] == "read"}
    last = str(messages[-1].get("content", "")) if messages else ""
    wanted = [title for title in task.get("support") or () if title not in read]
    searched = bool(made) and made[-1]["name"] == "search"
    hits = re.findall(r"^\d+\. (.+?): ", last, re.MULTILINE) if searched else []
    if rng.random() < noise:
        if hits:
            return call_message("read", {"title": rng.choice(hits)})
        if made and rng.random() < 0.5:
            return call_message("answer", {"text": _guess(last, rng)})
    if not wanted and (made or not task.get("support")):
        return call_message("answer", {"text": task["gold"][0]})
    if wanted[0] in hits:
        return call_message("read", {"title": wanted[0]})
    if searched and made[-1]["arguments"].get("query") == wanted[0]:
        return call_message("read", {"title": wanted[0]})  # not among the first hits, and still there by its title
    return call_message("search", {"query": wanted[0]})


def _guess(text: str, rng: random.Random) -> str:
    """Return a name that stands in the text."""
    names = re.findall(r"(?:[A-Z][\w-]+)(?: (?:of |the )?[A-Z][\w-]+)*", text)
    return rng.choice(names) if names else "unknown"
