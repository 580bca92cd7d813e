"""Outcomes of trajectories: success, failure or unknown, from the column that the caller names."""

from __future__ import annotations

from typing import Any, Literal, get_args

from offline_agent.errors import DataError
from offline_agent.training.data import sources
from offline_agent.training.data.reading import SourceRow

Unknown = Literal["refuse", "leave_out", "take"]
SUCCESS = "success"


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
