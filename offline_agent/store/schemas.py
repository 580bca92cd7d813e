"""Arrow schemas of the tables in a run directory, made from `store.columns`.

`PREFERENCES`, `MULTITURN`, `TRAJECTORIES` and `FILTERED` are made when they are first asked for: pyarrow takes a fifth
of a second to import, and `--help` does not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offline_agent.store import columns

if TYPE_CHECKING:
    import pyarrow as pa

    PREFERENCES: pa.Schema
    MULTITURN: pa.Schema
    TRAJECTORIES: pa.Schema
    FILTERED: pa.Schema


def __getattr__(name: str) -> Any:
    if name not in ("PREFERENCES", "MULTITURN", "TRAJECTORIES", "FILTERED"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals().update(_make())
    return globals()[name]


def schema_of(table: tuple[columns.Column, ...]) -> pa.Schema:
    """Return the schema of columns under their known names."""
    import pyarrow as pa

    types = _types()
    return pa.schema([pa.field(column.name, types[column.type], nullable=not column.required) for column in table])


def _types() -> dict[str, pa.DataType]:
    import pyarrow as pa

    return {
        # JSON, read back by `datasets` as values and by other readers as text: no message gets a key it does not have,
        # which matters because chat templates test which keys there are.
        "messages": pa.list_(pa.json_()),
        "ids": pa.list_(pa.int32()),
        "mask": pa.list_(pa.int8()),
        "logps": pa.list_(pa.float32()),
        "floats": pa.list_(pa.float64()),
        "text": pa.string(),
        "integer": pa.int64(),
        "number": pa.float64(),
        "flag": pa.bool_(),
    }


def _make() -> dict[str, pa.Schema]:
    def schema(table: tuple[columns.Column, ...], name: str) -> pa.Schema:
        return schema_of(tuple(c._replace(name=columns.stored_name(c.name, name)) for c in table))

    trajectories = schema(columns.TRAJECTORY, "trajectories")
    return {
        "PREFERENCES": schema(columns.PAIR, columns.PREFERENCES),
        "MULTITURN": schema(columns.PAIR, columns.MULTITURN),
        "TRAJECTORIES": trajectories,
        "FILTERED": trajectories,
    }
