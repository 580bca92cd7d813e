"""Write docs/results.md and docs/results/ from benchmarks/notes/ and the tables in benchmarks/results/*.json.

Run `python benchmarks/make_results.py` after the benchmarks; it runs none itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from _common import RESULTS

DOCS = Path(__file__).parents[1] / "docs"
NOTES = Path(__file__).parent / "notes"


def main() -> None:
    """Put the notes and the tables together."""
    (DOCS / "results").mkdir(exist_ok=True)
    for page in sorted(NOTES.glob("*.md")):
        out = DOCS / page.name if page.name == "results.md" else DOCS / "results" / page.name
        out.write_text("".join(_parts(page.read_text(encoding="utf-8"))), encoding="utf-8")
        print(f"written to {out}")


def _parts(notes: str) -> Iterator[str]:
    """Yield the notes, each line `{{name}}` replaced by the table of that benchmark."""
    for line in notes.splitlines(keepends=True):
        name = line.strip()
        if name.startswith("{{") and name.endswith("}}"):
            yield table(name[2:-2])
        else:
            yield line


def table(name: str) -> str:
    """Return one benchmark's rows and facts as Markdown; a benchmark that was not run is said to be missing."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        script = name if (RESULTS.parent / f"{name}.py").exists() else name.rpartition("_")[0]
        return f"*Not measured yet: run `python benchmarks/{script}.py`.*\n"
    data = json.loads(path.read_text(encoding="utf-8"))
    rows: list[Mapping[str, Any]] = data["rows"]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [columns, ["---"] * len(columns), *[[_cell(row.get(column)) for column in columns] for row in rows]]
    out = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    facts = [f"- {key}: {_cell(value)}\n" for key, value in data.get("facts", {}).items()]
    return out + "\n" + "".join(facts)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_cell(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(_cell(item) for item in value)
    return str(value).replace("|", "\\|")


if __name__ == "__main__":
    main()
