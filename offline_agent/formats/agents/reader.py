"""Formats that share a module: a reader each, and what readers of runs, spans and events have in common."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from offline_agent.errors import DataError
from offline_agent.formats import openai
from offline_agent.logs.episode import OUTCOMES, Fields, LoggedEpisode, at
from offline_agent.logs.files import Record
from offline_agent.messages import brief

_CUT = ("max_tokens", "MAX_TOKENS", "length")  # providers' words for the limit of tokens


class Reader(NamedTuple):
    """A format of a module that has several; see `formats.Format`."""

    NAME: str
    recognised: Callable[[Mapping[str, Any]], str | None]
    read: Callable[[Mapping[str, Any], str, Fields], Iterator[LoggedEpisode]]


def as_openai(
    record: Mapping[str, Any], name: str, fields: Fields, left: str | None = None, **places: str
) -> Iterator[LoggedEpisode]:
    """Yield the episodes of a record whose `messages`, and perhaps `choices` and `tools`, are in OpenAI's form.

    Args:
        record: With the fields that tell of the episode.
        name: `file:line`, for messages.
        fields: The fields that the configuration names.
        left: What the model read or wrote and the episodes do not have (`LoggedEpisode.left`).
        places: Where the format has `outcome`, `task` and `session`; the usual fields where it has nothing there.
    """
    if not isinstance(record["messages"], list) or not record["messages"]:
        raise DataError(f"messages: got {brief(record['messages'])}, wanted a list of objects")
    if "choices" in record:
        told = [{**one, "finish_reason": "length"} if at(one, "finish_reason") in _CUT else one
                for one in record["choices"]]  # fmt: skip
        record = {**record, "choices": told}
    for episode in openai.read(record, name, looking_at(fields, record, **places)):
        yield replace(episode, left=left)


def looking_at(fields: Fields, record: Mapping[str, Any], **places: str) -> Fields:
    """Return fields that are looked for at these places, where the configuration names none and there is something."""
    known = {key: path for key, path in places.items() if getattr(fields, key) is None and at(record, path) is not None}
    return fields.model_copy(update=known)


def call(name: Any, arguments: Any, id: Any = None) -> dict[str, Any]:
    """Return a call in OpenAI's form."""
    return {"id": id, "function": {"name": name, "arguments": arguments}}


def plain(value: Any) -> Any:
    """Return a text as it is, something else as JSON text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def scored(name: str, session: Any, scores: Mapping[str, Any]) -> Record:
    """Return a record that tells the outcome of a session apart (`logs.sessions.Outcomes`).

    Args:
        name: `file:line`.
        session: Its id.
        scores: By name; those named as outcomes usually are count, others where `log.outcome=scores.NAME` says so.
    """
    return Record(name, {"session_id": session, **{key: scores[key] for key in OUTCOMES if key in scores},
                         "scores": dict(scores)})  # fmt: skip


def first(record: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Return the first of some places of a record that has something; None where none has."""
    return next((value for name in names if (value := at(record, name)) is not None), None)
