"""Formats of other projects: logs that are read, and files that a run's rows are written to.

A format that is read is a module, or a `Reader` of a module that has several, with `NAME`, `recognised(record)`, which
says why a record is of it (None = it is not), and `read(record, name, fields)`, which yields the record's episodes and
raises DataError where it is damaged. One that is written has an `Export`; a module may have both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from offline_agent.formats import adp, agents, atif, inspect, openai, sharegpt, trainers, verifiers
from offline_agent.formats.row import Export
from offline_agent.logs import files
from offline_agent.logs.episode import Fields, LoggedEpisode


class Format(Protocol):
    """A format of logs."""

    @property
    def NAME(self) -> str:
        """Its name."""

    def recognised(self, record: Mapping[str, Any], /) -> str | None:
        """Return why a record is of this format, in a few words; None where it is not."""

    def read(self, record: Mapping[str, Any], name: str, fields: Fields, /) -> Iterator[LoggedEpisode]:
        """Yield the episodes of a record. Raises DataError where it is damaged.

        Args:
            record: One JSON object of the log.
            name: `file:line`, for messages.
            fields: The fields that tell of the episode.
        """


FORMATS: dict[str, Format] = {
    format.NAME: format for format in (inspect, *agents.READERS, atif, verifiers, adp, openai, sharegpt)
}
"""Formats of logs by name, those whose records say most first: the first that recognises a record is taken for it."""

EXPORTS: dict[str, Export] = {
    "trl": trainers.TRL,
    "llama_factory": sharegpt.EXPORT,
    "axolotl": trainers.AXOLOTL,
    "verl": trainers.VERL,
    "openai": openai.EXPORT,
    "atif": atif.EXPORT,
}
"""Formats that rows are written in, by name."""


def records(path: Path) -> Iterator[files.Record]:
    """Yield the records of a file, those of an evaluation sample by sample, spans and events put together or apart.

    Raises:
        DataError: The file cannot be opened.
    """
    if path.name.endswith(inspect.ARCHIVE):
        yield from inspect.archive(path)
    else:
        for record in agents.gathered(files.records(path)):
            for part in inspect.parts(record):
                yield from agents.parts(part)


def recognise(record: Any, format: str = "auto") -> tuple[str, str] | None:
    """Return the name of the format of a record, and why; None where no format knows it.

    Args:
        record: One JSON value of a log.
        format: The only one that is tried; `auto` = each in turn.
    """
    if not isinstance(record, Mapping):
        return None
    found = ((name, FORMATS[name].recognised(record)) for name in (FORMATS if format == "auto" else (format,)))
    return next(((name, why) for name, why in found if why is not None), None)
