"""Rows of a run as the files of another project: which files a format has, and how a row becomes a row of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from offline_agent.errors import DataError
from offline_agent.records import Message
from offline_agent.rendering.renderer import Renderer
from offline_agent.store.columns import Column

Convert = Callable[["ExportRow"], Iterator[Mapping[str, Any]]]
"""Yields the rows of the other format; raises DataError where its format cannot carry the row."""

PAIRS, SUCCESSES, ALL, PLAYED = "pairs", "successes", "all", "played"
"""Rows that are written: preference pairs, verified successes, every finished branch, failures included, of the split
`train`, and of any split."""

NO_TOKENS = (
    "Token ids, masks, log-probabilities and certificates; weights and confidence of pairs; pairs with a side of "
    "several turns"
)
"""Facts of a run that formats of messages have no place for."""


@dataclass(frozen=True, slots=True)
class ExportRow:
    """One row of a run, parsed.

    Attributes:
        name: For messages: file, number, task.
        row: Its columns by known names, messages as dicts or as JSON text.
        tokens: Its ids, its masks and where sequences begin anew (`training.data.reading.TokenReader.tokens`), checked;
            empty where the format has no use for them.
        renderer: Of the tokenizer of these ids.
        attempt: Its number among the rows of its task, from 1.
    """

    name: str
    row: Mapping[str, Any]
    tokens: tuple[tuple[int, ...], ...] = ()
    renderer: Renderer | None = None
    attempt: int = 1

    def messages(self, column: str, anew: bool = False) -> list[Message]:
        """Return the messages of a column.

        Args:
            column: Its name.
            anew: Whether turns may have had prompts that are not the messages before them.

        Raises:
            DataError: They are to be learnt, but for the first turns; or turns had prompts that neither messages
                nor `tokens` have.
        """
        out = [json.loads(message) if isinstance(message, str) else dict(message) for message in self.row[column]]
        unlearnt = [message.pop("train") for message in out if "train" in message]
        if column == "messages" and (unlearnt or self.row.get("origin") == "recovery"):
            raise DataError("its first turns are not to be learnt, which messages cannot say")
        if any([message.pop("anew", None) for message in out]) and not (anew or self.tokens):
            raise DataError("the policy's history goes on anew in it, which messages cannot say")
        return out

    @property
    def sequences(self) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Ids and mask of each sequence of a trajectory."""
        ids, mask, starts = self.tokens
        for start, end in pairwise((0, *starts, len(ids))):
            yield ids[start:end], mask[start:end]

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The schemas of the tools."""
        return list(json.loads(self.row["tools"]))

    def single_turns(self) -> tuple[Message, Message]:
        """Return both sides of a pair of one turn a side.

        Raises:
            DataError: A side has several turns.
        """
        chosen, rejected = self.messages("chosen"), self.messages("rejected")
        if not len(chosen) == len(rejected) == 1:
            raise DataError(
                "a side has several turns: this trainer learns every token of a side, tool results between its turns "
                "included"
            )
        return chosen[0], rejected[0]


@dataclass(frozen=True)
class Part:
    """One file of an export.

    Attributes:
        file: Its name, `.jsonl`, `.json` or `.parquet`.
        rows: `PAIRS`, `SUCCESSES`, `ALL` or `PLAYED`.
        convert: Makes its rows.
        columns: Of a Parquet file.
        head: Of a JSON document, makes what stands before `samples`, the rows, of the run's manifest.
    """

    file: str
    rows: str
    convert: Convert
    columns: tuple[Column, ...] = ()
    head: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class Export:
    """What a format writes.

    Attributes:
        about: The trainer and its version, for `--help` and the card.
        parts: Its files.
        load: How the trainer loads them: lines of Markdown.
        trains: The tokens that the trainer then trains on.
        lost: The columns and facts of a run that the format cannot carry.
        tokens: Whether its rows are made of token ids.
        pictures: Whether its messages can have pictures.
        extra: Further files: name to text, or to a path in this package.
    """

    about: str
    parts: tuple[Part, ...]
    load: str
    trains: str
    lost: str
    tokens: bool = False
    pictures: bool = False
    extra: Mapping[str, str | Path] = field(default_factory=dict)
