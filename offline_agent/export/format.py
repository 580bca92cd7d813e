"""A format of another trainer: its files, and how a row of a run becomes a row of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from offline_agent.records import Message
from offline_agent.rendering.renderer import Renderer
from offline_agent.store.columns import Column
from offline_agent.training.data.reading import EXECUTED, PAIR, TRAJECTORY, RowFormat

Convert = Callable[["ExportRow"], Iterator[Mapping[str, Any]]]
"""Yields the rows of the other trainer; raises Unfit where its format cannot carry the row."""

ALL = EXECUTED
"""Every finished branch, failures included."""


class Unfit(Exception):
    """A row that a format cannot carry; the text is the reason, the same for all rows of its kind."""


class ExportRow:
    """One row of a run, parsed.

    Args:
        name: For messages: file, number, task.
        row: Its columns by known names, messages as dicts or as JSON text.
        tokens: Its ids and then its masks (`RowFormat.ids`, `RowFormat.masks`), checked; None where the format has no
            use for them.
        renderer: Of the tokenizer of these ids.
    """

    def __init__(
        self,
        name: str,
        row: Mapping[str, Any],
        tokens: tuple[tuple[int, ...], ...] | None = None,
        renderer: Renderer | None = None,
    ) -> None:
        self.name = name
        self.row = row
        self.tokens = tokens
        self.renderer = renderer

    def messages(self, column: str) -> list[Message]:
        """Return the messages of a column.

        Raises:
            Unfit: They are those of a recovery, whose first turns are not to be learnt.
        """
        if self.row.get("origin") == "recovery":
            raise Unfit("its first turns failed and are not to be learnt, which messages cannot say")
        return [json.loads(message) if isinstance(message, str) else message for message in self.row[column]]

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The schemas of the tools."""
        return list(json.loads(self.row["tools"]))

    def single_turns(self) -> tuple[Message, Message]:
        """Return both sides of a pair of one turn a side.

        Raises:
            Unfit: A side has several turns.
        """
        chosen, rejected = self.messages("chosen"), self.messages("rejected")
        if not len(chosen) == len(rejected) == 1:
            raise Unfit(
                "a side has several turns: this trainer learns every token of a side, tool results between its turns "
                "included"
            )
        return chosen[0], rejected[0]


@dataclass(frozen=True)
class Part:
    """One file of an export.

    Attributes:
        file: Its name, `.jsonl` or `.parquet`.
        shape: The tables of a run that it is made of.
        convert: Makes its rows.
        columns: Of a Parquet file; JSON lines have none.
    """

    file: str
    shape: RowFormat
    convert: Convert
    columns: tuple[Column, ...] = ()


@dataclass(frozen=True)
class Format:
    """A format.

    Attributes:
        about: The trainer and its version, for `--help` and the card.
        parts: Its files.
        load: How the trainer loads them: lines of Markdown.
        trains: The tokens that the trainer then trains on.
        lost: The columns and facts of a run that the format cannot carry.
        tokens: Whether its rows are made of token ids.
        extra: Further files, name to text.
    """

    about: str
    parts: tuple[Part, ...]
    load: str
    trains: str
    lost: str
    tokens: bool = False
    extra: Mapping[str, str] = field(default_factory=dict)


PAIRS, SUCCESSES = PAIR, TRAJECTORY
"""Shapes of the rows that are exported, beside `ALL`."""
