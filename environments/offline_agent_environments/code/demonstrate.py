"""A scripted programmer: writes the known solution, runs the tests, submits; with noise it errs and mends."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from offline_agent.records import Message, call_message
from offline_agent_environments.mutation import mutated


def next_turn(task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float) -> Message:
    """Return the next assistant message.

    Args:
        task: `reset`'s arguments.
        messages: The conversation so far.
        rng: The source of its errors.
        noise: Probability, in [0, 1], that a program has an error, and that it is submitted without being tested.
    """
    last = ""
    for message in messages:
        for made in message.get("tool_calls") or ():
            last = made["function"]["name"]
    heard = str(messages[-1].get("content") or "") if messages else ""
    mend = last == "run_tests" and not heard.startswith("All ")
    if last not in ("write", "run_tests") or mend:
        wrong = noise > 0 and rng.random() < noise
        return call_message("write", {"code": mutated(task["solution"], rng) if wrong else task["solution"]})
    if last == "write" and task["shown"] and not (noise > 0 and rng.random() < noise):
        return call_message("run_tests", {})
    return call_message("submit", {})
