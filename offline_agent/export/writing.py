"""Writing of an export: the rows of a run, converted, and what was left out and why."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from offline_agent.errors import ConfigError
from offline_agent.export.format import ExportRow, Format, Part, Unfit
from offline_agent.rendering.renderer import Renderer
from offline_agent.store.files import write_atomic
from offline_agent.store.schemas import schema_of
from offline_agent.store.tables import count_rows, write_table
from offline_agent.training.data.load_report import LoadReport
from offline_agent.training.data.reading import TokenReader, read_rows


@dataclass
class Exported:
    """Counts of what was written.

    Attributes:
        rows: Rows by file.
        read: Rows of the run by file.
        tasks: Distinct tasks by file.
        refused: Rows that the format cannot carry, by (file, reason).
        rendered: Rows whose ids were made here of messages.
    """

    rows: Counter[str] = field(default_factory=Counter)
    read: Counter[str] = field(default_factory=Counter)
    tasks: dict[str, set[str]] = field(default_factory=dict)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    rendered: int = 0


def parts_of(format: Format, run_dir: Path) -> list[Part]:
    """Return the files that can be made of a run: those for which it has rows.

    Raises:
        ConfigError: It has rows for none.
    """
    found = [part for part in format.parts if any(count_rows(run_dir, table) for table in part.shape.tables)]
    if not found:
        wanted = dict.fromkeys(table for part in format.parts for table in part.shape.tables)
        there = sorted({file.parent.name for file in run_dir.glob("*/*.parquet")})
        raise ConfigError(
            f"run_dir: {run_dir} has no rows in {', '.join(wanted)}; its tables are {', '.join(there) or 'none'}. Name "
            "a finished run of build_prefs or import_logs"
        )
    return found


def write(format: Format, run_dir: Path, out: Path, renderer: Renderer | None) -> Exported:
    """Write the files of a format to a folder; nothing is left out without being counted.

    Args:
        format: The format.
        run_dir: A finished run.
        out: The folder.
        renderer: Of the tokenizer; None where the format needs no ids.

    Raises:
        ConfigError: The run is not finished, or has no rows for the format.
        DataError: A row fails its certificate, or is of a split that must not be trained on; the disk refused.
    """
    done = Exported()
    for part in parts_of(format, run_dir):
        rows = _converted(part, format, run_dir, renderer, done)
        if part.columns:
            write_table(out / part.file, Path(part.file).stem, rows, schema_of(part.columns))
        else:
            write_atomic(out / part.file, lambda file, rows=rows: _lines(file, rows))  # type: ignore[misc]
    for name, text in format.extra.items():
        write_atomic(out / name, text.encode())
    return done


def _lines(file: BinaryIO, rows: Iterator[Mapping[str, Any]]) -> None:
    for row in rows:
        file.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace") + b"\n")


def _converted(
    part: Part, format: Format, run_dir: Path, renderer: Renderer | None, done: Exported
) -> Iterator[Mapping[str, Any]]:
    report = LoadReport()
    reader = TokenReader(renderer, report, part.shape) if format.tokens and renderer is not None else None
    tasks = done.tasks.setdefault(part.file, set())
    for number, found in enumerate(read_rows([str(run_dir)], [], part.shape, report, "run_dir")):
        done.read[part.file] += 1
        try:
            tokens = None
            if reader is not None:
                tokens = reader.tokens(found)
                if tokens is None:
                    raise Unfit(report.left_out[-1][1])
            name = f"{run_dir.resolve().name}/{found.source.path.parent.name}/{number}"
            for row in part.convert(ExportRow(name, found.row, tokens, renderer)):
                done.rows[part.file] += 1
                tasks.add(str(found.row.get("task_id")))
                yield row
        except Unfit as error:
            done.refused[part.file, str(error)] += 1
    done.rendered += report.foreign
