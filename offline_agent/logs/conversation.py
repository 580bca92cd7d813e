"""Conversations of logs in one form: TRL's conversational format, without ids, with parsed arguments.

Providers write the same conversation in many ways: contents as text or as parts, arguments as JSON text or as objects,
results in any order with the ids of their calls. Equal conversations must be equal here, so that logs are linked by
equal prefixes. Nothing is guessed: a message that cannot be read is refused with its number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from offline_agent.errors import DataError, located
from offline_agent.messages import arrow, brief, parsed, read, schemas
from offline_agent.records import Message

SYSTEM = ("system", "system_prompt", "system_message")
"""Fields of a record that may have the system prompt of its messages."""
TOOLS = ("tools", "functions", "oai_tools", "available_tools", "tool_definitions")
_ANSWERS = ("response", "output", "completion", "choices")
_NAMED = {"function", "name"}  # one of which a schema has
_DEPTH = 3  # objects around tools


def is_turn(message: Mapping[str, Any]) -> bool:
    """Return whether a message is a turn of the policy; an assistant's that is not to be learnt is of the request."""
    return message["role"] == "assistant" and message.get("train", True)


class Conversation(tuple[Message, ...]):
    """Messages in one form.

    Attributes:
        by_place: Number of the results that name no call though calls have ids: each is taken for the first open call.
    """

    by_place = 0


def conversation(messages: Any, ignored: Collection[str] = (), places: Sequence[str] = ()) -> Conversation:
    """Return messages in one form.

    `tool_calls` have `type` and `function` with `name` and `arguments` (an object). Results of one turn are in the
    order of its calls, each with the tool's `name`; ids, which differ between equal conversations, are left out. So is
    everything else but `content`, `reasoning_content`, and `train` (False) of turns that are not to be learnt, which
    may stand before the first that is.

    Args:
        messages: A list of messages (`messages.read`).
        ignored: Keys of messages that are passed over.
        places: Where each message stands, for errors; without them its number, from 0.

    Raises:
        DataError: A message is not readable, or a result answers no call; the text has its place.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise DataError(f"messages: got {brief(messages)}, wanted a list of objects with role and content")
    if not messages:
        raise DataError("messages: the list is empty")
    loose = arrow(messages)
    out: list[Message] = []
    pending: list[dict[str, Any]] = []
    results: dict[int, Message] = {}
    by_place = 0
    for number, given in enumerate(messages):
        with located(places[number] if places else f"message {number}"):
            message = read(given, loose, ignored)
            if not message.pop("trained", True):
                if any(map(is_turn, out)):
                    raise DataError(
                        "weight: 0, loss: false or train: false after a turn that is to be learnt, and a tree has no "
                        "mark for it; train with data.files=[FILE], which has"
                    )
                message["train"] = False
            if message["role"] == "tool":
                place, named = _answered(pending, results, message, parsed(given, "it").get("id"))
                by_place += not named and any("id" in call for call in pending)
                results[place] = {**message, "name": pending[place]["function"]["name"]}
                results[place].pop("tool_call_id", None)
                continue
            _close(out, pending, results, final=False)
        pending, results = message.get("tool_calls", []), {}
        message.pop("name", None)
        if pending:
            message["tool_calls"] = [{key: call[key] for key in ("type", "function")} for call in pending]
        out.append(message)
    _close(out, pending, results, final=True)
    made = Conversation(out)
    made.by_place = by_place
    return made


def with_system(messages: Any, ignored: Collection[str], *records: Mapping[str, Any]) -> Any:
    """Return messages with the system prompt that stands beside them as their first.

    Args:
        messages: A list of messages.
        ignored: Keys of records that are passed over.
        records: The objects that the messages stand in.

    Raises:
        DataError: The prompt is no text, or the messages have another one.
    """
    names = [name for name in SYSTEM if name not in ignored]
    found = ((name, record[name]) for record in records for name in names if record.get(name) not in (None, "", []))
    name, told = next(found, ("", None))
    if told is None or not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        return messages
    with located(name):
        system = read({"role": "system", "content": told})
    first = messages[0]
    said = isinstance(first, Mapping) and first.get("role") in ("system", "developer")
    if said and read({"role": "system", "content": first.get("content")}) != system:
        raise DataError(
            f"{name}: another text than the system message has, and nothing says which the model read; take one "
            f"out, or let import_logs pass it over: log.ignore=[{name}]"
        )
    return messages if said else [system, *messages]


def told_tools(loose: bool, *records: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the schemas of the tools that records tell: their own, else those of an object within.

    Args:
        loose: Whether nulls in them are Arrow's.
        records: The first that has tools of its own tells them.

    Raises:
        DataError: The tools are not readable, or two objects within tell different ones.
    """
    for record in records:
        for name in TOOLS:
            if record.get(name):
                return schemas(record[name], loose)
    found: dict[str, tuple[dict[str, Any], ...]] = {}
    for record in records:
        for place, tools in _within(record, "", _DEPTH):
            found.setdefault(place, schemas(tools, loose))
    (first, tools), *others = found.items() or [("", ())]
    for place, other in others:
        if other != tools:
            raise DataError(f"tools: {first} and {place} tell different ones, and nothing says which the model had")
    return tools


def _within(value: Any, place: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield places and lists of tools in the objects within a value, which may be JSON text; answers are passed over.
    """
    for key, item in value.items() if depth else ():
        if isinstance(item, str) and item.lstrip().startswith("{") and any(f'"{name}"' in item for name in TOOLS):
            item = parsed(item, f"{place}{key}")
        if key in _ANSWERS or not isinstance(item, Mapping):
            continue
        for name in TOOLS:
            tools = item.get(name)
            if isinstance(tools, list) and tools and isinstance(tools[0], Mapping) and tools[0].keys() & _NAMED:
                yield f"{place}{key}.{name}", tools
        yield from _within(item, f"{place}{key}.", depth - 1)


def _answered(
    pending: Sequence[Mapping[str, Any]], results: Mapping[int, Message], message: Message, own: Any
) -> tuple[int, bool]:
    """Return the place of the call that a result answers, and whether the result names it by its id.

    Args:
        pending: The calls of the turn before.
        results: The results so far, by place.
        message: The result.
        own: Its `id`, which is that of a call in some logs, and its own in others.
    """
    if not pending:
        raise DataError("a tool's result, and no call before it asks for one")
    open_calls = [place for place in range(len(pending)) if place not in results]
    known = [call["id"] for call in pending if "id" in call]
    id, name = message.get("tool_call_id"), message.get("name")
    if id is None:
        id = next((one for one in (str(own), name) if one in known), None)
    if id is not None and known:
        places = [place for place in open_calls if pending[place].get("id") == id]
        if not places:
            why = "was answered already" if id in known else f"is of no call before it (there are {', '.join(known)})"
            raise DataError(f"tool_call_id {id!r:.60} {why}")
        return places[0], True
    places = [place for place in open_calls if name is None or pending[place]["function"]["name"] == name]
    if not places:
        raise DataError(f"a result of {name or 'a tool'} beyond the calls before it")
    return places[0], False


def _close(
    out: list[Message], pending: Sequence[Mapping[str, Any]], results: Mapping[int, Message], final: bool
) -> None:
    """Append the results of a turn in the order of its calls."""
    missing = [call["function"]["name"] for place, call in enumerate(pending) if place not in results]
    if missing and not (final and not results):  # an episode may end with its last calls
        raise DataError(f"the turn before it called {', '.join(missing)}, and no result came")
    out.extend(results[place] for place in sorted(results))
