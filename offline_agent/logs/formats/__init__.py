"""Formats of logs: what a record of each looks like, and the episodes in it.

A format is a module with `NAME`, `recognised(record)`, which says why a record is of it (None = it is not), and
`episodes(record, name, fields)`, which yields the record's episodes and raises DataError where it is damaged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from offline_agent.logs import files
from offline_agent.logs.episode import Fields, LoggedEpisode
from offline_agent.logs.formats import adp, atif, inspect_log, openai, openenv, rllm, sharegpt, verifiers


class Format(Protocol):
    """A format of logs."""

    NAME: str

    def recognised(self, record: Mapping[str, Any]) -> str | None:
        """Return why a record is of this format, in a few words; None where it is not."""

    def episodes(self, record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
        """Yield the episodes of a record. Raises DataError where it is damaged.

        Args:
            record: One JSON object of the log.
            name: `file:line`, for messages.
            fields: The fields that tell of the episode.
        """


FORMATS: dict[str, Format] = {
    module.NAME: module for module in (inspect_log, atif, openenv, rllm, verifiers, adp, openai, sharegpt)
}
"""Formats by name, those whose records say most first: the first that recognises a record is taken for it."""


def records(path: Path) -> Iterator[files.Record]:
    """Yield the records of a file, those of an evaluation sample by sample, those of a database trace by trace.

    Raises:
        DataError: The file cannot be opened.
    """
    if path.name.endswith(inspect_log.ARCHIVE):
        yield from inspect_log.archive(path)
        return
    if path.name.endswith(rllm.DATABASES):
        yield from rllm.database(path)
        return
    for record in files.records(path):
        yield from inspect_log.parts(record)


def recognise(record: Any) -> tuple[str, str] | None:
    """Return the name of the format of a record, and why; None where no format knows it."""
    if not isinstance(record, Mapping):
        return None
    found = ((name, one.recognised(record)) for name, one in FORMATS.items())
    return next(((name, why) for name, why in found if why is not None), None)
