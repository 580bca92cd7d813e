"""Logs of agents and of what watches them: tracers, coding scaffolds, benchmarks, libraries of agents."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain

from offline_agent.formats.agents import harbor, openhands, runs, spans, swe, tau, tracers
from offline_agent.formats.agents import parts as typed
from offline_agent.formats.agents.reader import Reader
from offline_agent.logs.episode import at
from offline_agent.logs.files import Record, whole

READERS: tuple[Reader, ...] = (
    *harbor.READERS, *swe.READERS, *openhands.READERS, *tau.READERS, *runs.READERS, *typed.READERS, *tracers.READERS,
    *spans.READERS,
)  # fmt: skip
"""Formats, those whose records say most first."""


def gathered(records: Iterator[Record]) -> Iterator[Record]:
    """Yield the records of a file; where each is one event, step or content of a conversation, the conversation."""
    first = next(records, None)
    if first is None:
        return
    value = first.value
    key = "history" if openhands.is_event(value) or runs.is_content(value) else "steps" if runs.is_step(value) else None
    key = "events" if at(value, "type") == "session.start" else key
    if key is None and not runs.begins_session(value):
        yield from chain((first,), records)
        return
    every = [first, *records]
    name = first.name.rpartition(":")[0] or first.name
    damaged = next((one for one in every if one.damage is not None or not isinstance(one.value, dict)), None)
    if damaged is not None:
        why = f"{damaged.name}: {damaged.damage or 'no object'}"
        yield Record(name, None, f"{why}; the file is one conversation, of which all is read, or nothing")
        return
    values = [one.value for one in every]
    yield from whole(name, lambda: [Record(name, runs.session(values) if key is None else {key: values})])


def parts(record: Record) -> Iterator[Record]:
    """Yield the spans, runs or simulations of a record that has several; another record as it is."""
    for split in (spans.parts, tau.parts, tracers.parts):
        found = list(whole(record.name, partial(split, record)))
        if found != [record]:
            yield from found
            return
    yield record
