"""Columns of the tables in a run directory, as the contracts list them. A change here is a new schema version."""

from __future__ import annotations

import pyarrow as pa


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


_JSON = pa.json_()  # read back by `datasets` as values; JSON text to every other reader
_IDS = pa.list_(pa.int32())  # [length], token ids
_MASK = pa.list_(pa.int8())  # [length], 1 = sampled by the policy
_LOGPS = pa.list_(pa.float32())  # [length], natural logarithms at temperature 1

MESSAGES = pa.list_(
    pa.struct(
        [
            _required("role", pa.string()),
            pa.field("content", pa.string()),
            pa.field("name", pa.string()),  # a tool message's tool
            pa.field("tool_calls", pa.list_(_JSON)),
        ]
    )
)

PREFERENCES = pa.schema(
    [
        _required("prompt", MESSAGES),
        _required("chosen", MESSAGES),
        _required("rejected", MESSAGES),
        _required("tools", pa.string()),  # JSON text of a list; trainers parse it
        _required("kind", pa.string()),
        _required("task_id", pa.string()),
        _required("split", pa.string()),
        pa.field("tree_id", pa.string()),
        pa.field("node_id", pa.int64()),
        pa.field("chosen_edge", pa.int64()),
        pa.field("rejected_edge", pa.int64()),
        _required("q_chosen", pa.float64()),
        _required("q_rejected", pa.float64()),
        _required("visits_chosen", pa.int64()),
        _required("visits_rejected", pa.int64()),
        _required("confidence", pa.float64()),
        _required("weight", pa.float64()),
        pa.field("verdict_chosen", pa.string()),
        pa.field("verdict_rejected", pa.string()),
        # token columns: all null where there is no tokenizer
        pa.field("prompt_ids", _IDS),
        pa.field("chosen_ids", _IDS),
        pa.field("rejected_ids", _IDS),
        pa.field("chosen_mask", _MASK),
        pa.field("rejected_mask", _MASK),
        pa.field("ref_chosen_logps", _LOGPS),
        pa.field("ref_rejected_logps", _LOGPS),
        pa.field("certificate", pa.string()),
    ]
)

TRAJECTORIES = pa.schema(
    [
        _required("messages", MESSAGES),
        _required("tools", pa.string()),  # JSON text of a list; trainers parse it
        _required("task_id", pa.string()),
        _required("split", pa.string()),
        _required("origin", pa.string()),
        pa.field("reward", pa.float64()),
        pa.field("success", pa.bool_()),
        pa.field("verdict", pa.string()),
        _required("steps", pa.int64()),
        _required("terminated", pa.bool_()),
        _required("truncated", pa.bool_()),
        # token columns: all null where there is no tokenizer
        pa.field("input_ids", _IDS),
        pa.field("action_mask", _MASK),
        pa.field("logps", _LOGPS),
        pa.field("criticality", pa.list_(pa.float64())),  # [steps], null where not computed
        pa.field("certificate", pa.string()),
    ]
)

FILTERED = TRAJECTORIES
