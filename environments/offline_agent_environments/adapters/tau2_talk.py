"""Words in tau2's conversations: calls that are written in them, and the scripted agent that follows gold actions."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from offline_agent.records import Message
from offline_agent_environments.retail.users import Turn

_DO = "Please do this on your side and tell me what you see:"
_END = "Is there anything else?"
_GIVE_UP = "I cannot do that. You are being transferred to a human agent."
_LOOKS = 0.7  # share of mistakes in words, and of those without effect, that look something up


class Call(NamedTuple):
    """A call that is written in words; `fault` says why it cannot be read."""

    name: str
    arguments: dict[str, Any]
    fault: str | None = None


def written_calls(text: str, tools: Mapping[str, Sequence[str]], most: int) -> list[Call]:
    """Return the first calls in a text, each written as `name(argument=value)`, in their order.

    Args:
        text: The words.
        tools: The names of tools, and of the parameters of each in order.
        most: Calls after which the text is read no further.
    """
    if not tools:
        return []
    found = []
    for match in islice(re.finditer(rf"(?<!\w)({'|'.join(map(re.escape, tools))})\(", text), most):
        name, start = match.group(1), match.end()
        ends = [place for place in range(start, min(len(text), start + 2000)) if text[place] == ")"]
        read = next((call for end in ends if (call := _read(text[start:end])) is not None), None)
        if read is None:
            found.append(Call(name, {}, f"write it as {name}({', '.join(f'{one}=...' for one in tools[name])})"))
            continue
        placed, named = read
        found.append(Call(name, {**dict(zip(tools[name], placed, strict=False)), **named}))
    return found


def _read(inside: str) -> tuple[list[Any], dict[str, Any]] | None:
    """Return the arguments in the brackets of a call; None where they are no literals."""
    try:
        call = ast.parse(f"f({inside})", mode="eval").body
        if not isinstance(call, ast.Call):
            return None
        named = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords if one.arg is not None}
        return [ast.literal_eval(one) for one in call.args], named
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def in_words(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as it is written in words."""
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def given(arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a gold action's arguments, without those that say nothing."""
    return {key: value for key, value in (arguments or {}).items() if value is not None}


def plan(task: Any) -> Iterator[Turn]:
    """Yield the turns of an agent that knows a task's gold actions."""
    criteria = task.evaluation_criteria
    for action in criteria.actions or ():
        arguments = given(action.arguments)
        if action.requestor == "user":
            yield Turn(None, {}, f"{_DO} {in_words(action.name, arguments)}")
        else:
            yield Turn(action.name, arguments, "")
    told = "; ".join(map(str, criteria.communicate_info or ()))
    yield Turn(None, {}, f"All of it is done. {told} {_END}")


def next_turn(domain: Any, task: Any, messages: Sequence[Message], rng: random.Random, noise: float) -> Message:
    """Return the scripted agent's next message.

    Args:
        domain: The `tau2_domain.Domain`; other tasks' calls are the source of mistakes.
        task: The task.
        messages: The conversation so far.
        rng: The source of mistakes.
        noise: Probability, in [0, 1], of a mistake in a turn; some do harm, others cost a turn.
    """
    turns = list(plan(task))
    turn = turns[min(_position(turns, messages), len(turns) - 1)]
    if rng.random() < noise:
        turn = _mistaken(turn, domain, rng)
    return turn.message()


def _position(turns: Sequence[Turn], messages: Sequence[Message]) -> int:
    """Return how many planned turns the conversation has behind it: calls that were made, words that were said."""
    at = 0
    for message in messages:
        if message["role"] != "assistant" or at >= len(turns):
            continue
        turn, calls = turns[at], message.get("tool_calls")
        if calls:
            function = calls[0]["function"]
            at += function["name"] == turn.name and dict(function["arguments"]) == dict(turn.arguments)
        else:
            at += turn.name is None and str(message.get("content", "")).strip() == turn.words.strip()
    return at


def _mistaken(turn: Turn, domain: Any, rng: random.Random) -> Turn:
    """Return another task's values in a write, an answer without its facts, a look-up, or giving up."""
    actions = [
        action
        for task in domain.tasks.values()
        for action in task.evaluation_criteria.actions or ()
        if action.requestor != "user"
    ]
    kit = domain.environment.tools
    if turn.name is not None and kit.has_tool(turn.name) and kit.tool_mutates_state(turn.name):
        wrong = []
        for key, value in turn.arguments.items():
            others = [given(one.arguments).get(key, value) for one in actions if one.name == turn.name]
            wrong += [(key, other) for other in others if other != value]
        if wrong:
            key, other = rng.choice(wrong)
            return turn._replace(arguments={**turn.arguments, key: other})
    if turn.name is None and _END in turn.words and rng.random() < _LOOKS:
        return turn._replace(words=f"I do not know. {_END}")
    looks = [one for one in actions if kit.has_tool(one.name) and not kit.tool_mutates_state(one.name)]
    if looks and rng.random() < _LOOKS:
        look = rng.choice(looks)
        return Turn(look.name, given(look.arguments), "")
    return Turn(None, {}, _GIVE_UP)
