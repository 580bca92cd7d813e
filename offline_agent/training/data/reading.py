"""Rows of files as checked token sequences: certificates, splits, and ids kept once however often they come."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from offline_agent.crash_notes import note, noted
from offline_agent.errors import DataError
from offline_agent.logs.conversation import SYSTEM, with_system
from offline_agent.logs.episode import labels_of
from offline_agent.messages import parsed
from offline_agent.rendering import certificate
from offline_agent.rendering.columns import check_columns, check_tokens, starts_column, starts_of
from offline_agent.rendering.renderer import Renderer
from offline_agent.rendering.vision import PATCH
from offline_agent.store.columns import PAIR_TABLES, SUCCESS_TABLES
from offline_agent.store.manifest import read_manifest
from offline_agent.store.provenance import hash_path
from offline_agent.training.data import sources
from offline_agent.training.data.conversations import Encoder
from offline_agent.training.data.load_report import LoadReport
from offline_agent.training.data.sources import Source

Ids = tuple[int, ...]
SIDES = ("chosen", "rejected")
VERDICTS = ("verdict", *(f"verdict_{side}" for side in SIDES))

_NAMED = ("kind", "origin", "task_id", "split", "tree_id", "node_id", "chosen_edge", "rejected_edge")


@dataclass(frozen=True, slots=True)
class RowFormat:
    """The columns of one kind of row.

    Attributes:
        tables: Tables of a run directory with such rows.
        messages: Columns of messages.
        ids: Columns of ids.
        masks: Columns of masks, of the last so many of `ids`.
        sides: Names of the masks' sides in certificates (`rendering.columns.starts_of`).
        logps: Columns of log-probabilities.
        more: Other columns that are wanted.
        any_split: Whether rows of other splits than `train` are read: nothing is trained on them.
    """

    tables: tuple[str, ...]
    messages: tuple[str, ...]
    ids: tuple[str, ...]
    masks: tuple[str, ...]
    sides: tuple[str, ...]
    logps: tuple[str, ...]
    more: tuple[str, ...]
    any_split: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are read."""
        tokens = (*self.ids, *self.masks, *self.logps, "certificate")
        return (*_NAMED, *SYSTEM, *self.messages, "tools", *tokens, *map(starts_column, self.sides), *self.more)


PAIR = RowFormat(
    PAIR_TABLES,
    ("prompt", *SIDES),
    ("prompt_ids", "chosen_ids", "rejected_ids"),
    ("chosen_mask", "rejected_mask"),
    SIDES,
    ("ref_chosen_logps", "ref_rejected_logps"),
    ("q_chosen", "q_rejected", "confidence", "rest_confidence", "weight"),
)
TRAJECTORY = RowFormat(
    SUCCESS_TABLES, ("messages",), ("input_ids",), ("action_mask",), ("sequence",), ("logps",),
    ("success", "verdict", "reward"),
)  # fmt: skip
EXECUTED = replace(TRAJECTORY, tables=("trajectories",))
"""All finished branches of a run, failures included: exported, not trained on."""
PLAYED = replace(EXECUTED, any_split=True)
"""The same, of an evaluation too: exported to be scored."""


@dataclass(slots=True)
class SourceRow:
    """One row as it was found.

    Attributes:
        name: For messages: `<file>:<row> task/kind/node`.
        row: Its columns.
        source: The file it is from.
        loose: Its nested values have nulls for absent keys.
    """

    name: str
    row: dict[str, Any]
    source: Source
    loose: bool

    @property
    def certificate(self) -> dict[str, Any]:
        """Return its parsed certificate; empty where it has none."""
        text = self.row.get("certificate")
        return {} if text is None else certificate.parse(text)


def read_rows(
    runs: Sequence[str], files: Sequence[str], shape: RowFormat, report: LoadReport, key: str
) -> Iterator[SourceRow]:
    """Yield the rows of runs and files, in order. Raises as `rows.load_pairs`, before the first row if it can."""
    for source in sources.find(runs, files, shape.tables, key):
        report.files.append(str(source.path))
        report.hashes[str(source.path)] = hash_path(source.path)
        if source.rows == 0:
            report.left_out.append((str(source.path), "it is empty"))
        # a step pair inside a tree has no verdict
        labelled = source.own and "labels" in read_manifest(source.path.parents[1]).get("hashes", {})
        for number, row, loose in _counted(source, shape.columns):
            report.read += 1
            report.labelled += labelled or any(labels_of(row.get(column)) for column in VERDICTS)
            name = _name(source, number, row)
            split = row.get("split")
            if split is not None and split != "train" and not shape.any_split:
                raise DataError(
                    f"{name}: its split is {split!r}; what a policy is measured on must not be trained on. "
                    "Build pairs and trajectories of tasks.split=train"
                )
            try:
                check_columns(row, source.own)
            except DataError as error:
                raise DataError(f"{name}: {error}") from error
            yield SourceRow(name, row, source, loose)


def _counted(source: Source, columns: Sequence[str]) -> Iterator[tuple[int, Any, Any]]:
    """Yield the rows of a source as `sources.read`, and note how many there were."""
    with noted(f"reading {source.path}"):
        for count, found in enumerate(sources.read(source, columns), 1):
            note(f"reading {source.path}: row {count:,}")
            yield found


class TokenReader:
    """Reads the token columns of rows of one shape, and checks them; makes them where a row has messages alone.

    Args:
        renderer: Of the tokenizer that is trained with.
        report: Counts of the rows that are read and left out.
        shape: The columns of a row.
        from_messages: Make them in any case: those that are stored are of another tokenizer.
    """

    def __init__(self, renderer: Renderer, report: LoadReport, shape: RowFormat, from_messages: bool = False) -> None:
        self._renderer = renderer
        self._report = report
        self._shape = shape
        self._from_messages = from_messages
        self._encoder: Encoder | None = None
        self._numbers = list(range(max(2, renderer.vocab_size)))
        self._known: dict[Ids, Ids] = {}

    def tokens(self, found: SourceRow) -> tuple[Ids, ...] | None:
        """Return a row's ids, then its masks, int [n] each, then where sequences begin anew in these, checked.

        None where it was left out.

        Raises:
            DataError: It fails its certificate, or is of another tokenizer; the message names it.
        """
        shape, row = self._shape, found.row
        columns = (*shape.ids, *shape.masks)
        given: list[Any] = [row.get(column) for column in columns]
        bare = row.get("certificate") is None and all(values is None for values in given)
        if self._from_messages:
            bare = True
        elif not bare and (found.source.own or row.get("certificate") is not None):
            bare = not self._certified(found)
        elif not bare:
            self._uncertified(found, columns, given)
        if bare:
            if not any(row.get(column) is not None for column in shape.messages):
                raise DataError(f"{found.name}: it has neither {' and '.join(shape.messages)} nor {columns[0]}")
            made = self._encoded(found)
            if made is None:
                return None
            given, row = [made[column] for column in columns], made
        else:
            self._report.with_ids += 1
            self._report.with_logps += all(row.get(column) is not None for column in shape.logps)
        ids, masks = given[: len(shape.ids)], given[len(shape.ids) :]
        starts = [starts_of(row, side) for side in shape.sides]
        return (*map(self._ids, ids), *map(self._mask, masks), *starts)

    def _certified(self, found: SourceRow) -> bool:
        """Check a row's token columns against its certificate; return whether it has some."""
        row = dict(found.row)
        try:
            for column in self._shape.messages:
                if row.get(column) is not None:
                    row[column] = [json.loads(m) if isinstance(m, str) else m for m in row[column]]
            return check_tokens(self._renderer, row)
        except DataError as error:
            raise DataError(f"{found.name}: {error}") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise DataError(f"{found.name}: its messages are not readable ({error})") from error

    def _uncertified(self, found: SourceRow, columns: Sequence[str], given: Sequence[Any]) -> None:
        """Check what can be checked of ids that nobody certified."""
        values = dict(zip(columns, given, strict=True))
        missing = [column for column in columns if values[column] is None]
        if missing:
            raise DataError(f"{found.name}: it lacks {', '.join(missing)}, though other token columns are there")
        for column, numbers in values.items():
            limit = self._renderer.vocab_size if column.endswith("_ids") else 2
            if not isinstance(numbers, list) or not all(type(n) is int and 0 <= n < limit for n in numbers):
                raise DataError(f"{found.name}: {column} must be integers in [0, {limit})")
        masks = self._shape.masks
        for ids, mask in zip(self._shape.ids[-len(masks) :], masks, strict=True):
            if len(values[ids]) != len(values[mask]):
                raise DataError(f"{found.name}: {ids} ({len(values[ids])}) and {mask} ({len(values[mask])}) must match")
        for side, mask in zip(self._shape.sides, masks, strict=True):
            starts = found.row.get(starts_column(side)) or ()
            if not certificate.starts_fit(starts, values[mask]):
                raise DataError(
                    f"{found.name}: {starts_column(side)} is {starts!r}; allowed: ascending places among the ids, none "
                    "of them in a turn or right before one"
                )
        self._report.uncertified += 1

    def _encoded(self, found: SourceRow) -> dict[str, list[int]] | None:
        """Return the token columns of a row of messages; None where they cannot be made."""
        if self._encoder is None:
            self._encoder = Encoder(self._renderer)
        row, start = found.row, self._shape.messages[0]
        try:
            row = {**row, start: with_system(parsed(row.get(start), start), (), row)}
            if self._shape is PAIR:
                made = self._encoder.pair(row, found.loose)
            else:
                made = self._encoder.trajectory(row["messages"], row.get("tools"), found.loose)
        except DataError as error:
            self._report.leave("unusable", found.name, f"its messages cannot be encoded: {error}")
            return None
        self._report.foreign += 1
        self._report.differing += self._encoder.differs
        self._report.one_text += self._encoder.one_text
        return made

    def _ids(self, values: Sequence[int]) -> Ids:
        """Return ids as a tuple of shared integers; equal sequences (the prompt of many pairs) are one object."""
        if self._renderer.vision is None:
            ids = tuple(map(self._numbers.__getitem__, values))
        else:
            ids = tuple(self._numbers[value] if value < PATCH else value for value in values)
        return self._known.setdefault(ids, ids)

    def _mask(self, values: Sequence[int]) -> Ids:
        mask = tuple(map(int, values))
        return self._known.setdefault(mask, mask)


def _name(source: Source, number: int, row: Mapping[str, Any]) -> str:
    facts = [str(row[key]) for key in ("task_id", "kind", "origin", "node_id") if row.get(key) is not None]
    return f"{source.path}:{number}{' ' if facts else ''}{'/'.join(facts)}"
