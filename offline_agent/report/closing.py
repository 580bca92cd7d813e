"""The parts of several closing tables: the table of figures, and lines on what a run wrote, counted in its folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from offline_agent.store.columns import MULTITURN, PREFERENCES
from offline_agent.store.tables import count_rows

if TYPE_CHECKING:
    from rich.table import Table


def figures_table(title: str, rows: Iterable[tuple[str, str, str]]) -> Table:
    """Return a table of (what, figure, note)."""
    from rich.table import Table

    table = Table(title=title)
    table.add_column("what")
    table.add_column("figure", justify="right")
    table.add_column("note")
    for row in rows:
        table.add_row(*row)
    return table


def pairs_written(path: Path) -> str:
    """Return a line for each folder of pairs, with its rows and, where there are some, how to load them.

    Args:
        path: The run directory.

    Raises:
        DataError: A file cannot be read.
    """
    lines = []
    for table, what in ((PREFERENCES, "one turn a side"), (MULTITURN, "several turns a side")):
        count = count_rows(path, table)
        lines.append(f"  {table + '/':12}  {count:,} pairs of {what}\n")
        if count:
            lines.append(f'                load_dataset("parquet", data_files="{path / table}/*.parquet")\n')
    return "".join(lines)


def quarantine_written(path: Path) -> str:
    """Return "; quarantine.jsonl says …" where the run has the file, else ""."""
    return "; quarantine.jsonl says what was refused and why" if (path / "quarantine.jsonl").is_file() else ""
