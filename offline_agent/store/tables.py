"""Parquet tables: written atomically as a stream, with the schema version in their metadata."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from offline_agent.errors import DataError, did_you_mean
from offline_agent.store.columns import known_name
from offline_agent.store.files import write_atomic

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

VERSION = 2

_to_json = json.JSONEncoder(allow_nan=False).encode

_VERSION_KEY = b"offline_agent.schema_version"
_ROWS_AT_ONCE = 256
_SMALL_GROUPS = 64
_GROUP_BYTES = 16 << 20  # size of row groups after the first: metadata of each group is held in memory


def write_table(path: Path, table: str, rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> Path:
    """Write rows to one Parquet file, a few hundred at a time; the file appears when it is complete.

    The first row groups have 256 rows, later ones some megabytes; so memory grows only with the metadata of the groups.

    Items of lists of type `pyarrow.json_()` take any JSON value, or a string that holds JSON;
    `datasets` returns them as values, other readers see the JSON text.

    Args:
        path: The file.
        table: The table's name, for messages and metadata.
        rows: One mapping a row, with exactly the schema's columns, by known names (`store.columns`).
        schema: The columns; None is refused where a column is not nullable.

    Raises:
        DataError: A row does not match the schema (named by its number), or the disk refused. No file is left.
    """
    return write_atomic(path, lambda file: _stream(file, table, rows, schema))


def _stream(file: BinaryIO, table: str, rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    stamped = schema.with_metadata(
        {**(schema.metadata or {}), _VERSION_KEY: str(VERSION).encode(), b"offline_agent.table": table.encode()}
    )
    stream, start, groups = iter(rows), 0, 0
    waiting: list[pa.RecordBatch] = []
    with pq.ParquetWriter(file, stamped, compression="zstd") as writer:

        def write() -> None:
            whole = pa.Table.from_batches(waiting)
            writer.write_table(whole, row_group_size=max(1, len(whole)))
            waiting.clear()

        while chunk := list(itertools.islice(stream, _ROWS_AT_ONCE)):
            waiting.append(_batch(table, chunk, start, stamped))
            start += len(chunk)
            if groups < _SMALL_GROUPS or sum(batch.nbytes for batch in waiting) >= _GROUP_BYTES:
                write()
                groups += 1
        if waiting:
            write()


def _batch(table: str, chunk: list[Mapping[str, Any]], start: int, schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    fields = {known_name(field.name): field for field in schema}
    for number, row in enumerate(chunk, start):
        if row.keys() != fields.keys():
            raise DataError(
                f"{table}, row {number}: its columns are not the table's. "
                f"Missing: {sorted(fields.keys() - row) or 'none'}; unknown: {sorted(row.keys() - fields) or 'none'}."
            )
        for name, field in fields.items():
            if row[name] is None and not field.nullable:
                raise DataError(f"{table}, row {number}: {name} must not be None.")
    arrays = [_column(table, field, [row[name] for row in chunk], start) for name, field in fields.items()]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(table: str, field: pa.Field, values: list[Any], start: int) -> pa.Array:
    """Return a column; raises DataError, which names the first row that does not fit."""
    import pyarrow as pa

    try:
        if not _is_json(field.type):
            return pa.array(values, type=field.type)
        texts = [None if value is None else [_json(item) for item in value] for value in values]
        return pa.array(texts, type=pa.list_(field.type.value_field.with_type(pa.string()))).cast(field.type)
    except (pa.ArrowException, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        if len(values) == 1:
            raise DataError(f"{table}, row {start}: {field.name} does not fit {field.type}: {error}") from error
        for number, value in enumerate(values, start):
            _column(table, field, [value], number)
        raise


def _is_json(kind: pa.DataType) -> bool:
    """Return whether a column has lists of JSON values."""
    import pyarrow as pa

    return pa.types.is_list(kind) and isinstance(kind.value_type, pa.JsonType)


def _json(value: Any) -> Any:
    return value if value is None or isinstance(value, str) else _to_json(value)


def _decoded(row: Mapping[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """Return a row with the values of its JSON texts."""
    return {
        field.name: [json.loads(item) for item in row[field.name]]
        if _is_json(field.type) and row[field.name] is not None
        else row[field.name]
        for field in schema
    }


def version_of(metadata: Mapping[bytes, bytes] | None) -> int | str | None:
    """Return the schema version in a file's metadata; None where there is none."""
    text = (metadata or {}).get(_VERSION_KEY)
    if text is None:
        return None
    return int(text) if text.isdigit() else text.decode("utf-8", "replace")


def read_table(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table under the names of its file (`store.columns.known` gives those of the program).

    Raises:
        DataError: The file is missing, incomplete, not Parquet, or of another schema version.
    """
    with _opened(path) as file:
        for batch in file.iter_batches(_ROWS_AT_ONCE):
            yield from (_decoded(row, batch.schema) for row in batch.to_pylist())


def columns_of(path: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return some columns of all rows of a table, by known names; the others are not read. Raises as `read_table`.

    Args:
        path: The file.
        names: Known names (`store.columns`); those that the file does not have are None.
    """
    with _opened(path) as file:
        here = {known_name(field.name): field.name for field in file.schema_arrow}
        there = {name: here[name] for name in names if name in here}
        columns = {name: file.read([stored]).column(0).to_pylist() for name, stored in there.items()}
        return [
            {name: columns[name][number] if name in columns else None for name in names}
            for number in range(file.metadata.num_rows)
        ]


def rows_at(path: Path, numbers: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Return the rows of a table with these numbers, from 0; other row groups are not read. Raises as `read_table`."""
    wanted, out, start = sorted(set(numbers)), {}, 0
    with _opened(path) as file:
        for group in range(file.num_row_groups):
            end = start + file.metadata.row_group(group).num_rows
            inside = [number for number in wanted if start <= number < end]
            if inside:
                table = file.read_row_group(group).take([number - start for number in inside])
                for number, row in zip(inside, table.to_pylist(), strict=True):
                    out[number] = _decoded(row, table.schema)
            start = end
    return out


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a table; raises DataError, for errors inside the block too."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    mend = "Give the command that wrote it again with the same run_dir."
    if not path.exists():
        raise DataError(f"{path}: missing. {mend}")
    try:
        with pq.ParquetFile(path) as file:
            version = version_of(file.schema_arrow.metadata)
            if version != VERSION:
                raise DataError(f"{path}: schema version {version or 'none'}, this program reads {VERSION}. {mend}")
            yield file
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path}: not readable as Parquet ({error}). {mend}") from error


def count_rows(run_dir: Path, table: str) -> int:
    """Return the number of rows of a table of a run, 0 where there is none; raises DataError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    total = 0
    for file in run_dir.glob(f"{table}/*.parquet"):
        try:
            total += pq.read_metadata(file).num_rows
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DataError(f"{file}: not readable as Parquet ({error})") from error
    return total


def rows(run_dir: str | Path, table: str = "preferences") -> Iterator[dict[str, Any]]:
    """Yield the rows of a run's table, messages as lists of dicts; also as `offline_agent.rows`.

    Readers that do not know Arrow's JSON type (pandas, polars, DuckDB) give each message as JSON text instead, which a
    chat template renders as an empty conversation without an error.

    Args:
        run_dir: A run directory.
        table: Its folder with the table's files, such as `preferences`, `filtered` or `trajectories` (docs/data.md).

    Raises:
        DataError: There is no such table, or a file of it is not readable (`read_table`).
    """
    folder = Path(run_dir) / table
    files = sorted(folder.glob("*.parquet"))
    if not files:
        there = sorted({file.parent.name for file in Path(run_dir).glob("*/*.parquet")})
        raise DataError(
            f"{folder}: there is no table here. Tables of {run_dir}: {', '.join(there) or 'none'}"
            f"{did_you_mean(table, there)}"
        )
    for file in files:
        yield from read_table(file)
