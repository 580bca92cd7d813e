"""Sessions of coding agents, whose files have a line for each message or event: all lines of a file are one session.

A session is read as its branches, each of which is a record: where its user went back, the same beginning goes on in
several ways, and a summary that replaces the history begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from offline_agent.formats.sessions import claude_code, codex
from offline_agent.logs.files import Record

_AGENTS = (claude_code, codex)


def gathered(path: Path, records: Iterable[Record]) -> Iterator[Record]:
    """Yield the records of a file, those that are lines of a session together, as the branches of the session.

    A damaged line is yielded too, and a hole in its session.
    """
    lines: dict[int, list[Record]] = {}
    before: list[Record] = []  # damaged ones, which may belong to the session that begins after them
    for record in records:
        number = next((n for n, agent in enumerate(_AGENTS) if agent.is_line(record.value)), None)
        if number is not None:
            lines.setdefault(number, [*before]).append(record)
            continue
        yield record
        if record.damage is not None:
            for holes in lines.values() or (before,):
                holes.append(record)
    for number, found in lines.items():
        yield from _AGENTS[number].branches(path, found)
