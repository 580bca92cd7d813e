"""Selection of the trajectories that are learnt from, by their outcomes; and the texts of their messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from offline_agent.errors import DataError
from offline_agent.training.data import conversations, sources
from offline_agent.training.data.load_report import LoadReport
from offline_agent.training.data.reading import TRAJECTORY, SourceRow, read_rows

Unknown = Literal["refuse", "leave_out", "take"]
SUCCESS = "success"


@dataclass(frozen=True)
class Selection:
    """Rules by which trajectories are learnt from.

    Attributes:
        negatives: Use refusals of impossible calls (`preferences.dataset.filters.impossible`).
        verified: Use successes alone, beside those refusals; else the outcome is not looked at.
        success: The column of files with the outcome; see `successful`.
        unknown: Rows of files whose outcome is unknown are refused, left out, or taken as successes are.
        per_task: Most rows of one task, first come; None = all. Refusals are not counted.
        from_messages: Encode all messages anew: stored ids are of another tokenizer.
    """

    negatives: bool = True
    verified: bool = True
    success: str = SUCCESS
    unknown: Unknown = "refuse"
    per_task: int | None = None
    from_messages: bool = False


def select(
    runs: Sequence[str], files: Sequence[str], report: LoadReport, rules: Selection, key: str = "data"
) -> Iterator[SourceRow]:
    """Yield the rows to learn from; `report` counts the others. Arguments and errors: `rows.load_trajectories`."""
    shape = replace(TRAJECTORY, more=(*TRAJECTORY.more, rules.success))
    for found in read_rows(runs, files, shape, report, key):
        refusal = is_negative(found.row)
        if refusal and not rules.negatives:
            report.leave("negatives", found.name, "it teaches to refuse, which was not asked for")
            continue
        if rules.verified and not refusal:
            done = successful(found, rules.success, rules.unknown)
            if done is False or (done is None and rules.unknown == "leave_out"):
                report.leave("unverified", found.name, "its outcome is unknown" if done is None else "it failed")
                continue
            report.unknown += done is None
        yield found


def texts(runs: Sequence[str], files: Sequence[str], rules: Selection) -> Iterator[str]:
    """Yield the texts, to learn a tokenizer from, of the rows that `select` yields for the same arguments.

    Raises:
        ConfigError, DataError: As `rows.load_trajectories`; or a row has no messages.
    """
    for found in select(runs, files, LoadReport(), rules):
        if found.row.get("messages") is None:
            raise DataError(
                f"{found.name}: it has no messages; a new model learns its tokenizer from texts, and cannot use the "
                "ids of another tokenizer"
            )
        try:
            yield from conversations.texts(found.row["messages"], found.row.get("tools"), found.loose)
        except DataError:
            continue  # counted and named when it is encoded


def is_negative(row: Mapping[str, Any]) -> bool:
    """Tell whether a row with a certificate, so one of this program, teaches to refuse: nobody had to judge it."""
    judged = "success" not in row or row["success"] is not None or row.get("verdict") is not None
    return row.get("origin") == "demonstration" and not judged and row.get("certificate") is not None


def successful(found: SourceRow, column: str, unknown: Unknown) -> bool | None:
    """Return whether a row is a success; None where that is unknown and such rows are allowed.

    Args:
        found: The row.
        column: Of a user's own file, the column with the outcome: true or 1, false or 0, null = unknown. A run's table
            has `success`, and holds successes alone.
        unknown: Treatment of rows of unknown outcome; all but `refuse` allow them.

    Raises:
        DataError: The outcome has another value; it is unknown, and `unknown` is `refuse`; or a row of a run's table is
            no success.
    """
    value: Any = found.row.get(SUCCESS if found.source.own else column)
    if found.source.own:
        if value is not True:
            raise DataError(
                f"{found.name}: its success is {value!r}; allowed in a run's verified successes: True, or None in a "
                "row that teaches to refuse"
            )
        return True
    if value is None:
        if unknown == "refuse":
            raise DataError(f"{found.name}: {_why_unknown(found, column)}")
        return None
    if not isinstance(value, bool | int | float) or value not in (0, 1):
        raise DataError(
            f"{found.name}: its {column} is {value!r}, allowed: true, false, 1, 0, or null (unknown). A score that has "
            "other values needs a threshold: write a column of true and false, and name it with data.success"
        )
    return bool(value)


def _why_unknown(found: SourceRow, column: str) -> str:
    there = sources.column_names(found.source)
    if column in there:
        what = f"its {column} is null, so nobody knows whether it is a success"
    else:
        what = (
            f"it has no column {column}, so nobody knows whether it is a success; there are {', '.join(there)}. "
            "If one of them is the outcome (true, false, 1 or 0), name it: data.success=COLUMN"
        )
    ways = " | ".join(way for way in get_args(Unknown) if way != "refuse")
    return f"{what}. To learn from successes only, or from all of these rows: data.unknown={ways}"
