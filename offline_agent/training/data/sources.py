"""Sources of rows: tables of finished run directories and loose files, read a batch at a time."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent import pictures
from offline_agent.errors import ConfigError, DataError, did_you_mean
from offline_agent.store.columns import known, known_name
from offline_agent.store.manifest import MANIFEST, read_manifest
from offline_agent.store.tables import VERSION, version_of

if TYPE_CHECKING:
    import pyarrow as pa

LINES = (".jsonl", ".ndjson", ".json")
SUFFIXES = (".parquet", *LINES)
_ROWS_AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class Source:
    """One file of rows.

    Attributes:
        path: The file.
        own: It is a table of a run directory, whose rows must have certificates.
        rows: Number of rows; None where it is known only once they are read.
    """

    path: Path
    own: bool
    rows: int | None


def find(runs: Sequence[str], files: Sequence[str], tables: Sequence[str], key: str = "data") -> list[Source]:
    """Return the files to read: of each run, in name order, then the loose ones.

    Args:
        runs: Run directories.
        files: Parquet or JSON-lines files.
        tables: The tables that are read of each run, as far as they are there.
        key: The configuration section the paths are from, for messages.

    Raises:
        ConfigError: A run is none, is unfinished or has no such table; a file is missing or of another kind; nothing
            was named, or all that was named is empty. Every fault.
        DataError: A manifest or a Parquet file cannot be read, or is of another version.
    """
    faults: list[str] = []
    found: list[Source] = []
    for run in runs:
        found += _of_run(Path(run).expanduser(), tables, f"{key}.runs", faults)
    for name in files:
        path = Path(name).expanduser()
        fault = _file_fault(path, f"{key}.files")
        pictures.look_in(path.parent.parent / pictures.FOLDER)  # of a run's table
        if fault:
            faults.append(fault)
        else:
            found.append(_source(path, False) if path.suffix == ".parquet" else Source(path, False, None))
    if not runs and not files:
        faults.append(f"{key}.runs: nothing to learn from; name run directories, or files with {key}.files")
    if faults:
        raise ConfigError(faults)
    if all(source.rows == 0 for source in found):
        raise ConfigError(
            f"{key}: no rows in {', '.join(str(source.path) for source in found)}; "
            "its run's summary.json and quarantine.jsonl say why nothing was kept"
        )
    return found


def _of_run(path: Path, tables: Sequence[str], key: str, faults: list[str]) -> list[Source]:
    fault = _run_fault(path, key)
    if fault:
        faults.append(fault)
        return []
    pictures.look_in(path / pictures.FOLDER)
    manifest = read_manifest(path, "Restore it from a copy, or leave the run out.")
    command, status = manifest.get("command"), manifest.get("status")
    table = tables[0]
    files = [file for name in tables for file in sorted(path.glob(f"{name}/*.parquet"))]
    if status != "done":
        faults.append(
            f"{key}: {path} is unfinished (status {status!r}); give its command ({command}) again with "
            f"{shlex.quote(f'run_dir={path}')}, or leave it out"
        )
    elif not files:
        there = sorted({file.parent.name for file in path.glob("*/*.parquet")})
        faults.append(
            f"{key}: {path} is a {command} run without {table}/; it has {', '.join(there) or 'no tables'}. "
            f"Name a run that has {table}/{_nested(path, table)}"
        )
    else:
        return [_source(file, True) for file in files]
    return []


def _run_fault(path: Path, key: str) -> str | None:
    if not path.exists():
        near = did_you_mean(path.name, [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else [])
        return f"{key}: there is no {path}.{near}"
    if not path.is_dir():
        return f"{key}: {path} is a file; a run directory is wanted (loose files go into {key.split('.')[0]}.files)"
    if not (path / MANIFEST).exists():
        if (path.parent / MANIFEST).exists():
            return f"{key}: {path} is a part of a run directory; give {path.parent}"
        return f"{key}: {path} is no run directory (it has no {MANIFEST}){_nested(path, '*')}"
    return None


def _nested(path: Path, table: str) -> str:
    """Return a hint at run directories inside `path` that have the table."""
    inside = sorted({str(file.parents[1]) for file in path.glob(f"*/*/{table}/*.parquet")})
    inside += sorted({str(file.parents[1]) for file in path.glob(f"*/{table}/*.parquet")} - {str(path)})
    runs = [name for name in inside if (Path(name) / MANIFEST).exists()]
    return f", such as {runs[0]}" if runs else ""


def _file_fault(path: Path, key: str) -> str | None:
    if path.is_dir():
        return f"{key}: {path} is a folder; name files, or a run directory with {key.split('.')[0]}.runs"
    if not path.is_file():
        near = did_you_mean(path.name, [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else [])
        return f"{key}: there is no file {path}.{near}"
    if path.suffix not in SUFFIXES:
        return f"{key}: {path} is of no kind that is read here; allowed: {', '.join(SUFFIXES)} (JSON: one row a line)"
    return None


def _source(path: Path, own: bool) -> Source:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path}: not readable as Parquet ({error})") from error
    version = version_of(metadata.metadata)
    if version != VERSION and (own or version is not None):
        raise DataError(
            f"{path}: schema version {version or 'none'}, this program reads {VERSION}. "
            "Make the run anew, or use the version that wrote it."
        )
    return Source(path, own, int(metadata.num_rows))


def read(source: Source, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any], bool]]:
    """Yield (number, row, loose nulls) of each row; the number is the line's for JSON lines, else from 0.

    Args:
        source: The file.
        columns: Those that are wanted, by the program's own names; absent ones are absent in the rows. Of a run's table
            all are read, since its certificates cover all. Lists of numbers come as lists, JSON text as it is.

    Returns:
        The third value tells that the row's nested values come from Arrow structs, which have nulls for absent keys.

    Raises:
        DataError: The file is broken.
    """
    if source.path.suffix in LINES:
        yield from _lines(source.path, columns)
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(source.path) as file:
            names = [name for name in file.schema_arrow.names if source.own or known_name(name) in columns]
            loose = any(_has_struct(file.schema_arrow.field(name).type) for name in names)
            number = 0
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=names):
                values = [_values(column) for column in batch.columns]
                for row in zip(*values, strict=True):
                    yield number, known(dict(zip(batch.schema.names, row, strict=True))), loose
                    number += 1
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{source.path}: not readable as Parquet ({error})") from error


def column_names(source: Source) -> list[str]:
    """Return the names of a file's columns, of JSON lines those of the first row. Raises as `read`."""
    if source.path.suffix not in LINES:
        import pyarrow.parquet as pq

        return list(pq.read_schema(source.path).names)
    return next((list(row) for _, row in _objects(source.path)), [])


def _lines(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any], bool]]:
    for number, row in _objects(path):
        yield number, {name: value for name, value in known(row).items() if name in columns}, False


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line's number and the object of each line that is not blank."""
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise DataError(f"{path}, line {number}: no JSON ({error}); one row a line is wanted") from error
                if not isinstance(row, dict):
                    raise DataError(f"{path}, line {number}: a {type(row).__name__}, not an object with columns")
                yield number, row
    except (OSError, UnicodeError) as error:
        raise DataError(f"{path}: not readable as UTF-8 text ({error})") from error


def _has_struct(kind: pa.DataType) -> bool:
    import pyarrow as pa

    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _has_struct(kind.value_type)
    return bool(pa.types.is_struct(kind))


def _values(column: pa.Array) -> list[Any]:
    """Return a column as Python values; lists of numbers a hundred times faster than Arrow's own way."""
    import pyarrow as pa

    kind = column.type
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not listed or not (pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type)):
        return list(column.to_pylist())
    if column.values.null_count:
        return list(column.to_pylist())
    ends, values = column.offsets.to_numpy(), column.values.to_numpy(zero_copy_only=False)
    there = column.is_valid().to_numpy(zero_copy_only=False)
    return [
        values[start:end].tolist() if valid else None
        for start, end, valid in zip(ends[:-1], ends[1:], there, strict=True)
    ]
