"""Messages of logs in one form: TRL's conversational format, without ids, with parsed arguments.

Providers write the same conversation in many ways: contents as text or as parts, arguments as JSON text or as objects,
results in any order with the ids of their calls. Equal conversations must be equal here, so that logs are linked by
equal prefixes. Nothing is guessed: a message that cannot be read is refused with its number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from offline_agent.errors import DataError
from offline_agent.logs import strict_json
from offline_agent.records import Message

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool",
          "function": "tool"}  # fmt: skip
"""Roles that are read, and the role each becomes: `developer` and `function` are OpenAI's other names."""


def conversation(messages: Any) -> tuple[Message, ...]:
    """Return messages in one form.

    `tool_calls` have `type` and `function` with `name` and `arguments` (an object). Results of one turn are in the
    order of its calls, each with the tool's `name`; ids, which differ between equal conversations, are left out. So is
    everything else but `content` and `reasoning_content`.

    Raises:
        DataError: A message is not readable, or a result answers no call; the text has its number, from 0.
    """
    if isinstance(messages, Sequence) and not isinstance(messages, str) and not messages:
        raise DataError("messages: the list is empty")
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise DataError(f"messages: got {_brief(messages)}, wanted a list of objects with role and content")
    out: list[Message] = []
    pending: list[_Call] = []
    results: dict[int, Message] = {}
    for number, given in enumerate(messages):
        try:
            message, calls, answers = _message(given)
            if message["role"] == "tool":
                place = _answered(pending, results, answers, message.get("name"))
                results[place] = {**message, "name": pending[place].name}
                continue
            _close(out, pending, results, final=False)
        except DataError as error:
            raise DataError(f"message {number}: {error}") from error
        out.append(message)
        pending, results = calls, {}
    _close(out, pending, results, final=True)
    return tuple(out)


def results_by_place(messages: Sequence[Any]) -> int:
    """Return how many results have no `tool_call_id` though the calls before them have ids.

    Args:
        messages: Messages that `conversation` has read, as they were given.
    """
    count, ids = 0, False
    for message in messages:
        if not isinstance(message, Mapping):
            continue
        if message.get("role") == "tool":
            count += ids and message.get("tool_call_id") is None
        else:
            calls = message.get("tool_calls")
            ids = isinstance(calls, list) and any(isinstance(call, Mapping) and call.get("id") for call in calls)
    return count


def schemas(tools: Any) -> tuple[dict[str, Any], ...]:
    """Return the schemas of tools in OpenAI's form; bare functions (`name`, `parameters`) are wrapped.

    Args:
        tools: A list of schemas, its JSON text, or None.

    Raises:
        DataError: A tool is no object with a name.
    """
    if isinstance(tools, str):
        tools = _json(tools, "tools") if tools.strip() else None
    if tools is None:
        return ()
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise DataError(f"tools: got {_brief(tools)}, wanted a list of schemas")
    out = []
    for number, tool in enumerate(tools):
        tool = _json(tool, f"tool {number}") if isinstance(tool, str) else tool
        if isinstance(tool, Mapping) and "function" not in tool and "name" in tool:
            tool = {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise DataError(f"tool {number}: got {_brief(tool)}, wanted a function with a name")
        out.append({"type": "function", "function": dict(function)})
    return tuple(out)


class _Call:
    """A call that waits for its result."""

    def __init__(self, name: str, id: str | None) -> None:
        self.name = name
        self.id = id


def _message(given: Any) -> tuple[Message, list[_Call], str | None]:
    """Return a message, its calls, and the id of the call that it answers."""
    if isinstance(given, str):
        given = _json(given, "it")
    if not isinstance(given, Mapping):
        raise DataError(f"got {_brief(given)}, wanted an object with role and content")
    role = _ROLES.get(given["role"]) if isinstance(given.get("role"), str) else None
    if role is None:
        raise DataError(f"role: got {given.get('role')!r:.60}, allowed: {', '.join(_ROLES)}")
    content = _text(given.get("content"))
    message: Message = {"role": role, "content": content}
    if role == "tool":
        name = given.get("name")
        if name is not None and not isinstance(name, str):
            raise DataError(f"name: got {name!r:.60}, wanted a tool's name")
        answers = given.get("tool_call_id")
        return {**message, **({} if name is None else {"name": name})}, [], None if answers is None else str(answers)
    if given.get("content") is None and role != "assistant":
        raise DataError(f"it has no content, which a {role} message must have")
    if role != "assistant":
        return message, [], None
    reasoning = given.get("reasoning_content", given.get("reasoning"))
    if reasoning:
        message["reasoning_content"] = _text(reasoning)
    given_calls = given.get("tool_calls")
    if isinstance(given_calls, str):
        given_calls = _json(given_calls, "tool_calls")
    if given_calls is None and given.get("function_call") is not None:
        given_calls = [given["function_call"]]
    if given_calls is not None and not isinstance(given_calls, Sequence):
        raise DataError(f"tool_calls: got {_brief(given_calls)}, wanted a list")
    read = [_call(call) for call in given_calls or ()]
    if read:
        message["tool_calls"] = [call for call, _ in read]
    elif given.get("content") is None:
        raise DataError("an assistant message without content and calls")
    return message, [_Call(call["function"]["name"], id) for call, id in read], None


def _call(given: Any) -> tuple[dict[str, Any], str | None]:
    if isinstance(given, str):
        given = _json(given, "a tool call")
    function = given.get("function", given) if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise DataError(f"a tool call: got {_brief(given)}, wanted a function with name and arguments")
    name, arguments = function["name"], function.get("arguments")
    if isinstance(arguments, str):
        arguments = _json(arguments, f"the arguments of {name}") if arguments.strip() else {}
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, Mapping):
        raise DataError(f"the arguments of {name}: got {_brief(arguments)}, wanted an object")
    id = given.get("id", given.get("tool_call_id"))
    call = {"type": "function", "function": {"name": name, "arguments": dict(arguments)}}
    return call, None if id in (None, "") else str(id)


def _answered(pending: Sequence[_Call], results: Mapping[int, Message], id: str | None, name: str | None) -> int:
    """Return the place of the call that a result answers: by its id, else the first that is open, of its name."""
    if not pending:
        raise DataError("a tool's result, and no call before it asks for one")
    open_calls = [place for place in range(len(pending)) if place not in results]
    known = [call.id for call in pending if call.id is not None]
    if id is not None and known:
        places = [place for place in open_calls if pending[place].id == id]
        if not places:
            why = "was answered already" if id in known else f"is of no call before it (there are {', '.join(known)})"
            raise DataError(f"tool_call_id {id!r:.60} {why}")
        return places[0]
    places = [place for place in open_calls if name is None or pending[place].name == name]
    if not places:
        raise DataError(f"a result of {name or 'a tool'} beyond the calls before it")
    return places[0]


def _close(out: list[Message], pending: Sequence[_Call], results: Mapping[int, Message], final: bool) -> None:
    """Append the results of a turn in the order of its calls."""
    missing = [call.name for place, call in enumerate(pending) if place not in results]
    if missing and not (final and not results):  # an episode may end with its last calls
        raise DataError(f"the turn before it called {', '.join(missing)}, and no result came")
    out.extend(results[place] for place in sorted(results))


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, Sequence) and not isinstance(content, str):
        parts = []
        for part in content:
            text = part if isinstance(part, str) else part.get("text") if isinstance(part, Mapping) else None
            if not isinstance(text, str):
                kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
                raise DataError(f"content: a part of type {kind!r:.60}; only text can be read")
            parts.append(text)
        return "".join(parts)
    if not isinstance(content, str):
        raise DataError(f"content: got {_brief(content)}, wanted text")
    return content


def _json(text: str, what: str) -> Any:
    try:
        return strict_json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{what}: no JSON ({error}): {text[:60]!r}") from error


def _brief(value: Any) -> str:
    return f"{type(value).__name__} {value!r:.60}"
