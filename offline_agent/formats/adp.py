"""ADP, the Agent Data Protocol: a trajectory as one list of actions and observations, in versions 1 and without one.

Actions that follow one another are the calls of one turn; a code action is a call of `code_action` with `language` and
`content`. Observations after calls are their results, by `tool_call_id` or in order. ADP has no schemas of tools. The
outcome is a field of the record or of its `details`, else the `reward` of the one step that has one other than 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from offline_agent.errors import DataError, located
from offline_agent.logs.conversation import conversation
from offline_agent.logs.episode import Fields, LoggedEpisode, at, has_objects, inner

NAME = "adp"

_CALLS = ("api_action", "code_action")
_OBSERVATIONS = ("text_observation", "web_observation", "json_observation")
_KINDS = (*_CALLS, "message_action", *_OBSERVATIONS)
_SOURCES = {"user": "user", "user_msg": "user", "environment": "user", "system": "system"}
_PAGE = ("url", "axtree", "html")


def recognised(record: Mapping[str, Any]) -> str | None:
    """See `formats.Format`."""
    return "content of actions and observations with class_" if has_objects(record.get("content"), "class_") else None


def read(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    """See `formats.Format`."""
    version = record.get("schema_version")
    if version is not None and not str(version).startswith("1."):
        raise DataError(f"schema_version: got {version!r:.60}, read are versions 1.x and records without one")
    told = {**inner(record, "details"), **record}
    reward = _reward(record["content"])
    if reward is not None:
        told.setdefault("reward", reward)
    yield LoggedEpisode(name, conversation(_messages(record["content"])), **fields.read(told))


def _messages(content: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the items as messages of OpenAI's form."""
    out: list[dict[str, Any]] = []
    before, open_calls = None, 0  # the kind of the item before; calls of the last turn that have no result yet
    for number, item in enumerate(content):
        with located(f"item {number}"):
            kind = at(item, "class_")
            if kind not in _KINDS:
                raise DataError(f"class_: got {kind!r:.60}, allowed: {', '.join(_KINDS)}; images cannot be read")
            if kind in _CALLS:
                if before not in _CALLS:
                    out.append(_turn(item, ""))
                    open_calls = 0
                _extend(out[-1], item)
                open_calls += 1
            elif kind == "message_action":
                out.append(_turn(item, _text(item, "content")))
                if item.get("description") and "reasoning_content" not in out[-1]:
                    out[-1]["reasoning_content"] = _text(item, "description")
                open_calls = 0
            elif open_calls or item.get("tool_call_id") is not None:
                out.append({"role": "tool", "content": _observed(item), "tool_call_id": item.get("tool_call_id")})
                open_calls -= 1
            else:
                out.append({"role": _role(item), "content": _observed(item)})
            before = kind
    return out


def _turn(item: Mapping[str, Any], content: str) -> dict[str, Any]:
    thought = item.get("reasoning_content")
    return {"role": "assistant", "content": content, **({"reasoning_content": thought} if thought else {})}


def _extend(turn: dict[str, Any], item: Mapping[str, Any]) -> None:
    """Add a call to a turn; its description is what the turn says beside its calls."""
    if item["class_"] == "api_action":
        function = {"name": item.get("function"), "arguments": item.get("kwargs")}
        if not isinstance(item.get("kwargs"), Mapping):
            raise DataError(f"kwargs: got {item.get('kwargs')!r:.60}, wanted an object")
    else:
        arguments = {name: _text(item, name) for name in ("language", "content")}
        function = {"name": "code_action", "arguments": arguments}
    turn.setdefault("tool_calls", []).append({"id": item.get("tool_call_id"), "function": function})
    if item.get("description"):
        turn["content"] = "\n".join(filter(None, (turn["content"], _text(item, "description"))))


def _role(item: Mapping[str, Any]) -> str:
    if item["class_"] == "web_observation":
        return "user"
    source = item.get("source")
    role = _SOURCES.get(source) if isinstance(source, str) else None
    if role is None:
        raise DataError(
            f"source: got {source!r:.60}, allowed: {', '.join(_SOURCES)}; what an agent said is read from actions alone"
        )
    return role


def _observed(item: Mapping[str, Any]) -> str:
    if item["class_"] == "text_observation":
        return _text(item, "content")
    if item["class_"] == "json_observation":
        return json.dumps(item.get("content"), ensure_ascii=False)
    if item.get("image_observation") is not None:
        raise DataError("image_observation: a page with an image; only text can be read")
    page = {name: _text(item, name) for name in _PAGE if item.get(name) is not None}
    if not page:
        raise DataError(f"a web_observation without {', '.join(_PAGE)}")
    return json.dumps(page, ensure_ascii=False)


def _text(item: Mapping[str, Any], name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise DataError(f"{name}: got {value!r:.60}, wanted text")
    return value


def _reward(content: Sequence[Any]) -> Any:
    """Return the reward of the steps; None where none has one, or several have one other than 0."""
    found = [reward for item in content if (reward := at(item, "reward")) is not None]
    several = [value for value in found if value != 0]
    return None if not found or len(several) > 1 else several[0] if several else found[-1]
