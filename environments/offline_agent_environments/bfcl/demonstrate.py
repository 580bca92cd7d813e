"""Scripted expert that follows the ground truth, with a given rate of careless turns."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from offline_agent.records import Message, ToolCall
from offline_agent_environments.bfcl import data

_HALLUCINATED = ("search_web", "confirm_action", "get_current_user", "run_task", "undo")


def next_turn(task: data.Entry, messages: Sequence[Message], rng: random.Random, noise: float) -> Message:
    """Return the next assistant message.

    With noise 0 the ground truth of the turn, call by call, then an answer. With probability `noise` each time, one
    of: a call out of order, a call with one argument changed, an unneeded or invented call, the turn ended early. It
    tries again after a changed call that failed, and sometimes goes back for a call it passed over.

    Args:
        task: The task.
        messages: The conversation so far; its last user message begins the present turn.
        rng: Source of its careless turns.
        noise: In [0, 1].
    """
    turn, made = _position(task, messages)
    truth = data.possible(task.id)
    calls = truth[turn] if turn < len(truth) else ()
    done = _done(calls, made)
    left = [i for i in range(len(calls)) if i not in done]
    if noise > 0:
        # A call that was passed over is given up with probability 1/2.
        left = [i for i in left if i > max(done, default=-1) or rng.random() < 0.5]
    if noise > 0 and rng.random() < noise:
        careless = _careless(task, calls, left, rng)
        if careless is not None:
            return careless
    if not left:
        return _answer(calls)
    return _call(calls[left[0]])


def _position(task: data.Entry, messages: Sequence[Message]) -> tuple[int, list[tuple[ToolCall, str]]]:
    """Return the number of the user's turn, and the calls made in it with their answers."""
    turn = -1
    made: list[tuple[ToolCall, str]] = []
    pending: ToolCall | None = None
    for message in messages:
        if message["role"] == "user" and not str(message["content"]).startswith("Error: "):
            turn, made = turn + 1, []
        elif message["role"] == "assistant" and message.get("tool_calls"):
            function = message["tool_calls"][0]["function"]
            arguments = function["arguments"]
            pending = ToolCall(function["name"], json.loads(arguments) if isinstance(arguments, str) else arguments)
        elif message["role"] == "tool" and pending is not None:
            made.append((pending, str(message["content"])))
            pending = None
    return max(turn, 0), made


def _done(calls: Sequence[ToolCall], made: Iterable[tuple[ToolCall, str]]) -> set[int]:
    """Return the calls of the ground truth that count as made: exactly, or changed but accepted by the tool."""
    done: set[int] = set()
    for call, answer in made:
        same = [i for i, c in enumerate(calls) if i not in done and c.name == call.name]
        exact = [i for i in same if dict(calls[i].arguments) == dict(call.arguments)]
        if exact:
            done.add(exact[0])
        elif same and "error" not in answer.lower():
            done.add(same[0])
    return done


def _careless(task: data.Entry, calls: Sequence[ToolCall], left: Sequence[int], rng: random.Random) -> Message | None:
    kind = rng.choice(("skip", "change", "extra", "stop"))
    if kind == "skip" and len(left) > 1:
        return _call(calls[rng.choice(left[1:])])
    if kind == "change" and left:
        return _changed(task, calls[left[0]], rng)
    if kind == "stop" and left:
        return _answer(calls)
    if kind == "extra":
        return _extra(task, rng)
    return None


def _changed(task: data.Entry, call: ToolCall, rng: random.Random) -> Message | None:
    """Return the call with one argument replaced by another value of its type seen in the task, or left out."""
    if not call.arguments:
        return None
    name = rng.choice(sorted(call.arguments))
    value, arguments = call.arguments[name], dict(call.arguments)
    others = sorted({json.dumps(v) for v in _values(task) if type(v) is type(value) and v != value})
    if isinstance(value, bool):
        arguments[name] = not value
    elif isinstance(value, int | float) and rng.random() < 0.7:
        arguments[name] = value + rng.choice((-10, -1, 1, 10))
    elif others:
        arguments[name] = json.loads(rng.choice(others))
    else:
        del arguments[name]
    return _call(ToolCall(call.name, arguments))


def _extra(task: data.Entry, rng: random.Random) -> Message:
    """Return an unneeded call: another one of the task with its own arguments, or an invented one."""
    known = [call for turn in data.possible(task.id) for call in turn]
    if known and rng.random() < 0.7:
        return _call(rng.choice(known))
    return _call(ToolCall(rng.choice(_HALLUCINATED), {}))


def _values(task: data.Entry) -> Iterable[Any]:
    for turn in task.truth:
        for call in turn:
            for value in call.arguments.values():
                if isinstance(value, str | int | float | list):
                    yield value


def _call(call: ToolCall) -> Message:
    function: Mapping[str, Any] = {"name": call.name, "arguments": dict(call.arguments)}
    return {
        "role": "assistant",
        "content": f"I use {call.name}.",
        "tool_calls": [{"type": "function", "function": function}],
    }


def _answer(calls: Sequence[ToolCall]) -> Message:
    told = "Done." if calls else "I cannot do this yet: a function or a detail that it needs is missing."
    return {"role": "assistant", "content": told}
