"""Sessions of coding agents, whose files have a line for each message or event: all lines of a file are one session.

A session is read as its branches, each of which is a record: where its user went back, the same beginning goes on in
several ways, and a summary that replaces the history begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from offline_agent.formats.sessions import claude_code, codex
from offline_agent.logs.files import Record, whole

_AGENTS = (claude_code, codex)


def gathered(path: Path, records: Iterable[Record]) -> Iterator[Record]:
    """Yield the records of a file, those that are lines of a session together, as the branches of the session.

    A damaged line is yielded too, and a hole in its session. Lines that may be a session's, in a file without one that
    surely is, are records by themselves: other formats have such keys, too.
    """
    lines: dict[int, list[Record]] = {}
    pending: list[tuple[int | None, Record]] = []  # lines that may be of a session, and damaged ones
    for record in records:
        number = next((n for n, agent in enumerate(_AGENTS) if agent.is_line(record.value)), None)
        if number is None:
            yield record
            if record.damage is not None:
                pending.append((None, record))
                for holes in lines.values():
                    holes.append(record)
        elif number in lines:
            lines[number].append(record)
        else:
            pending.append((number, record))
            if _AGENTS[number].is_sure(record.value):
                lines[number] = [one for n, one in pending if n in (None, number)]
                pending = [(n, one) for n, one in pending if n != number]
    for number, found in lines.items():
        yield from whole(str(path), partial(_AGENTS[number].branches, path, found))
    yield from (one for n, one in pending if n is not None)
