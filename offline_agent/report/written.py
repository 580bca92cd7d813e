"""Lines of closing tables on the tables that a run wrote, counted in its folder."""

from __future__ import annotations

from pathlib import Path

from offline_agent.store.columns import MULTITURN, PREFERENCES
from offline_agent.store.tables import count_rows


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
