"""Scripted experts of the pages: what they do next follows from what was asked for and from the page's text alone."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from offline_agent.records import Message
from offline_agent_environments.browser import demonstrate_miniwob, demonstrate_shop
from offline_agent_environments.browser.view import View, careless


def next_turn(task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float) -> Message:
    """Return the next assistant message.

    Args:
        task: `reset`'s arguments.
        messages: The conversation so far.
        rng: The source of its carelessness.
        noise: Probability, in [0, 1], of a careless call on a MiniWoB page; the carelessness of the shop's customer.
    """
    views = View.of(messages)
    if task["suite"] == "shop":
        call = demonstrate_shop.decide(task["goal"], views, rng, noise)
    elif noise > 0 and rng.random() < noise:
        call = careless(views[-1], rng)
    else:
        call = demonstrate_miniwob.decide(task["level"], views[-1])
    if call is None:
        return {"role": "assistant", "content": "I give up."}
    name, arguments = call
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
