"""The table of figures and the list of data sets that several closing tables have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

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


def data_lines(summary: Mapping[str, Any], after_pairs: str = "") -> str:
    """Return the lines on preferences/ and filtered/.

    Args:
        summary: Has `pairs_total` and `filtered`.
        after_pairs: Goes on with the line on preferences/.
    """
    return (
        f"  preferences/  {summary['pairs_total']} pairs, those of several turns a side in multiturn_preferences/"
        f"{after_pairs}\n"
        f"  filtered/     {summary['filtered']} verified successes for fine-tuning\n"
    )
