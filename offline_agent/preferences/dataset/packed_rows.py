"""Rows as the bytes of Arrow record batches, so that they can wait on disk until their table is written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from offline_agent.errors import DataError
from offline_agent.preferences.refusals import Refusal

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]

_REFUSAL = "refusal"
_to_json = json.JSONEncoder(allow_nan=False).encode  # as `store.tables` writes JSON columns


def pack(rows: Sequence[Row | Refusal], schema: pa.Schema) -> bytes:
    """Return rows as the bytes of a record batch; nothing for no rows.

    Args:
        rows: Rows of a table, or why there is none in a place.
        schema: The table's.

    Raises:
        DataError: A row does not fit the schema.
    """
    import pyarrow as pa

    if not rows:
        return b""
    texts = [field.name for field in schema if _is_json(field.type)]
    packed: list[Mapping[str, Any]] = []
    for row in rows:
        if isinstance(row, Refusal):
            packed.append({_REFUSAL: json.dumps([row.kind, row.name, row.reason, dict(row.facts)])})
        else:
            packed.append({**row, **{name: [_to_json(value) for value in row[name]] for name in texts}})
    try:
        return bytes(pa.RecordBatch.from_pylist(packed, schema=_plain(schema)).serialize())
    except (pa.ArrowException, UnicodeError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"a row does not fit its table: {error}") from error


def unpack(packed: bytes, schema: pa.Schema, at: Sequence[int] | None = None) -> Iterator[Row | Refusal]:
    """Yield packed rows, or those in the places given; JSON columns stay JSON text, which tables take as it is."""
    import pyarrow as pa

    if not packed:
        return
    batch = pa.ipc.read_record_batch(pa.py_buffer(packed), _plain(schema))
    for row in (batch if at is None else batch.take(pa.array(at, pa.int64()))).to_pylist():
        refusal = row.pop(_REFUSAL)
        yield row if refusal is None else Refusal(*json.loads(refusal))


def _plain(schema: pa.Schema) -> pa.Schema:
    """Return a schema with JSON as text, every column nullable, and a column for refusals."""
    import pyarrow as pa

    fields = [pa.field(f.name, pa.list_(pa.string()) if _is_json(f.type) else f.type) for f in schema]
    return pa.schema([*fields, pa.field(_REFUSAL, pa.string())])


def _is_json(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_list(kind) and isinstance(kind.value_type, pa.JsonType)
