"""Formats of other projects: logs that are read, and files that a run's rows are written to.

A format that is read is a module, or a `Reader` of a module that has several, with `NAME`, `recognised(record)`, which
says why a record is of it (None = it is not), and `read(record, name, fields)`, which yields the record's episodes and
raises DataError where it is damaged. One that is written has an `Export`; a module may have both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from offline_agent import catalog
from offline_agent.errors import ConfigError, DataError, did_you_mean
from offline_agent.formats import (
    adp,
    agents,
    anthropic,
    atif,
    inspect,
    inverse,
    openai,
    responses,
    sessions,
    sharegpt,
    text_calls,
    trainers,
    verifiers,
)
from offline_agent.formats.row import Export
from offline_agent.formats.sessions import claude_code, codex
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


_EVERY: tuple[Format, ...] = (inspect, *agents.READERS, atif, verifiers, adp, claude_code, codex, responses, anthropic,
                              text_calls, openai, sharegpt)  # fmt: skip
FORMATS: dict[str, Format] = {format.NAME: format for format in _EVERY}
"""Formats of logs by name, those whose records say most first: the first that recognises a record is taken for it."""

EXPORTS: dict[str, Export] = {
    "trl": trainers.TRL,
    "llama_factory": sharegpt.EXPORT,
    "axolotl": trainers.AXOLOTL,
    "verl": trainers.VERL,
    "openai": openai.EXPORT,
    "together": trainers.TOGETHER,
    "atif": atif.EXPORT,
    "inspect": inspect.EXPORT,
    "inverse": inverse.EXPORT,
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
        for record in agents.gathered(sessions.gathered(path, files.records(path))):
            for part in files.whole(record.name, partial(inspect.parts, record)):
                yield from agents.parts(part)


@dataclass(frozen=True, slots=True)
class Own:
    """A format of the user's: a function that makes records of OpenAI's messages of a JSON value of a log.

    Attributes:
        NAME: `module:function`.
        reader: Called with a record; returns the records that it is, none where it holds no conversation.
    """

    NAME: str
    reader: Callable[[Any], Iterable[Mapping[str, Any]]]

    def recognised(self, record: Any) -> str | None:
        """See `Format`."""
        return "the reader that the command names"

    def read(self, record: Any, name: str, fields: Fields) -> Iterator[LoggedEpisode]:
        """See `Format`."""
        try:
            made = list(self.reader(record))
        except DataError:
            raise
        except Exception as error:  # the user's code raises what it likes
            raise DataError(f"{self.NAME} raised {type(error).__name__}: {error}") from error
        for number, one in enumerate(made):
            if not isinstance(one, Mapping) or openai.recognised(one) is None:
                raise DataError(f"{self.NAME} made {one!r:.60}, wanted an object with messages, as docs/logs.md has it")
            yield from openai.read(one, name if len(made) == 1 else f"{name}/{number}", fields)


def chosen(format: str) -> Mapping[str, Format]:
    """Return the formats that are tried, by name: all (`auto`), the one of a name, or `module:function` of the user's.

    Raises:
        ConfigError: It is none of them.
    """
    if ":" in format:
        return {format: Own(format, catalog.load("format", format))}
    if format != "auto" and format not in FORMATS:
        names = ["auto", *sorted(FORMATS)]
        near = did_you_mean(format, names)
        allowed = f"{', '.join(names)}, or module:function of your own"
        raise ConfigError(f"format: got {format!r}, allowed: {allowed}.{near}")
    return FORMATS if format == "auto" else {format: FORMATS[format]}


def recognise(record: Any, known: Mapping[str, Format] = FORMATS) -> tuple[str, str] | None:
    """Return the name of the format of a record, and why; None where no format knows it.

    Args:
        record: One JSON value of a log.
        known: The formats that are tried in turn (`chosen`).
    """
    found = ((name, one.recognised(record)) for name, one in known.items()
             if isinstance(record, Mapping) or isinstance(one, Own))  # fmt: skip
    return next(((name, why) for name, why in found if why is not None), None)
