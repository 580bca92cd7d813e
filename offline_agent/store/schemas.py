"""Columns of the tables in a run directory, as the contracts list them. A change here is a new schema version.

`MESSAGES`, `PREFERENCES`, `MULTITURN`, `TRAJECTORIES` and `FILTERED` are made when they are first asked for: pyarrow
takes a fifth of a second to import, and `--help` has no use for it. `_store.columns` says why token columns have a
prefix and why there are two tables of pairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offline_agent.store import columns

if TYPE_CHECKING:
    import pyarrow as pa

    MESSAGES: pa.DataType
    PREFERENCES: pa.Schema
    MULTITURN: pa.Schema
    TRAJECTORIES: pa.Schema
    FILTERED: pa.Schema


def __getattr__(name: str) -> Any:
    if name not in ("MESSAGES", "PREFERENCES", "MULTITURN", "TRAJECTORIES", "FILTERED"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals().update(_make())
    return globals()[name]


def _make() -> dict[str, Any]:
    import pyarrow as pa

    def required(name: str, kind: pa.DataType) -> pa.Field:
        return pa.field(name, kind, nullable=False)

    json = pa.json_()  # read back by `datasets` as values; JSON text to every other reader
    ids = pa.list_(pa.int32())  # [length], token ids
    mask = pa.list_(pa.int8())  # [length], 1 = sampled by the policy
    logps = pa.list_(pa.float32())  # [length], natural logarithms at temperature 1

    messages = pa.list_(json)  # whole messages: none gets a key it does not have, and templates look at which there are

    preferences = pa.schema(
        [
            required("prompt", messages),
            required("chosen", messages),
            required("rejected", messages),
            required("tools", pa.string()),  # JSON text of a list; trainers parse it
            required("kind", pa.string()),
            required("task_id", pa.string()),
            required("split", pa.string()),
            pa.field("tree_id", pa.string()),
            pa.field("node_id", pa.int64()),
            pa.field("chosen_edge", pa.int64()),
            pa.field("rejected_edge", pa.int64()),
            required("q_chosen", pa.float64()),
            required("q_rejected", pa.float64()),
            required("visits_chosen", pa.int64()),
            required("visits_rejected", pa.int64()),
            pa.field("confidence", pa.float64()),  # of the first differing action; null = not known
            pa.field("rest_confidence", pa.float64()),  # of the whole rest; null = nothing is claimed of it
            required("weight", pa.float64()),
            pa.field("verdict_chosen", pa.string()),
            pa.field("verdict_rejected", pa.string()),
            # token columns, with a prefix in files: all null where there is no tokenizer
            pa.field("prompt_ids", ids),
            pa.field("chosen_ids", ids),
            pa.field("rejected_ids", ids),
            pa.field("chosen_mask", mask),
            pa.field("rejected_mask", mask),
            pa.field("ref_chosen_logps", logps),
            pa.field("ref_rejected_logps", logps),
            pa.field("certificate", pa.string()),
        ]
    )

    trajectories = pa.schema(
        [
            required("messages", messages),
            required("tools", pa.string()),  # JSON text of a list; trainers parse it
            required("task_id", pa.string()),
            required("split", pa.string()),
            required("origin", pa.string()),
            pa.field("reward", pa.float64()),
            pa.field("success", pa.bool_()),
            pa.field("verdict", pa.string()),
            required("steps", pa.int64()),
            required("terminated", pa.bool_()),
            required("truncated", pa.bool_()),
            # token columns, with a prefix in files: all null where there is no tokenizer
            pa.field("input_ids", ids),
            pa.field("action_mask", mask),
            pa.field("logps", logps),
            pa.field("criticality", pa.list_(pa.float64())),  # [steps], null where not computed
            pa.field("certificate", pa.string()),
        ]
    )

    def stored(schema: pa.Schema, table: str) -> pa.Schema:
        return pa.schema([field.with_name(columns.stored_name(field.name, table)) for field in schema])

    trajectories = stored(trajectories, "trajectories")
    return {
        "MESSAGES": messages,
        "PREFERENCES": stored(preferences, columns.PREFERENCES),
        "MULTITURN": stored(preferences, columns.MULTITURN),
        "TRAJECTORIES": trajectories,
        "FILTERED": trajectories,
    }
