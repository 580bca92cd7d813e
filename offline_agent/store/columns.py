"""Columns of the tables in a run directory: names, types and nullability, declared once, and their Arrow schemas.

Trainers take columns by their names: TRL's `SFTTrainer` takes any table with `input_ids` for a prepared one and trains
on every token of it; `DPOTrainer` writes `prompt_ids`, `chosen_ids` and `rejected_ids` itself and reads
`ref_chosen_logps`. So token columns have a prefix in files that no trainer knows. Preference trainers have no mask and
train on everything in `chosen` and `rejected`: a pair whose sides have several turns contains tool results there, so it
is stored in a table of its own, under other names. A plain trainer given a whole table trains right or refuses.

A row has stored names in a file and known names in the program. docs/data.md lists the tables for users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

TOKENS = "tokens_"
PREFERENCES = "preferences"
MULTITURN = "multiturn_preferences"
PAIR_TABLES = (PREFERENCES, MULTITURN)
SUCCESS_TABLES = ("filtered",)


class Column(NamedTuple):
    """One column of a table.

    Attributes:
        name: Its known name.
        type: `messages` = a list of whole messages; `ids` = int32 [length], int64 with pictures; `mask` = int8
            [length], 1 = sampled by the policy; `logps` = float32 [length], natural logarithms at temperature 1;
            `floats` = float64 [steps], null where not computed; `chat` = messages of a role and a text alone; columns
            = a record of these; else the type of one value: `text`, `integer`, `number`, `flag`.
        required: Whether null is refused.
    """

    name: str
    type: str | tuple[Column, ...]
    required: bool = False

    @property
    def of_tokens(self) -> bool:
        """Whether it holds one value for each token; null where the policy has no tokenizer."""
        return self.type in ("ids", "mask", "logps")


PAIR = (
    Column("prompt", "messages", True),
    Column("chosen", "messages", True),
    Column("rejected", "messages", True),
    Column("tools", "text", True),  # JSON text of a list; trainers parse it
    Column("kind", "text", True),
    Column("task_id", "text", True),
    Column("split", "text", True),
    Column("tree_id", "text"),
    Column("node_id", "integer"),
    Column("chosen_edge", "integer"),
    Column("rejected_edge", "integer"),
    Column("q_chosen", "number", True),
    Column("q_rejected", "number", True),
    Column("visits_chosen", "integer", True),
    Column("visits_rejected", "integer", True),
    Column("confidence", "number"),  # of the first differing action; null = not known
    Column("rest_confidence", "number"),  # of the whole rest; null = nothing is claimed about it
    Column("weight", "number", True),
    Column("verdict_chosen", "text"),
    Column("verdict_rejected", "text"),
    Column("prompt_ids", "ids"),
    Column("chosen_ids", "ids"),
    Column("rejected_ids", "ids"),
    Column("chosen_mask", "mask"),
    Column("rejected_mask", "mask"),
    Column("ref_chosen_logps", "logps"),
    Column("ref_rejected_logps", "logps"),
    Column("certificate", "text"),
)
TRAJECTORY = (
    Column("messages", "messages", True),
    Column("tools", "text", True),  # JSON text of a list; trainers parse it
    Column("task_id", "text", True),
    Column("split", "text", True),
    Column("origin", "text", True),
    Column("reward", "number"),
    Column("success", "flag"),
    Column("verdict", "text"),
    Column("steps", "integer", True),
    Column("terminated", "flag", True),
    Column("truncated", "flag", True),
    Column("input_ids", "ids"),
    Column("action_mask", "mask"),
    Column("logps", "logps"),
    Column("criticality", "floats"),  # of earlier versions; null
    Column("certificate", "text"),
)
"""The columns of each table, in the order of its files. A change here is a new schema version."""


def names(table: tuple[Column, ...], *types: str) -> tuple[str, ...]:
    """Return the known names of a table's columns of these types, in order; all columns where no type is given."""
    return tuple(column.name for column in table if not types or column.type in types)


PAIR_COLUMNS, TRAJECTORY_COLUMNS = names(PAIR), names(TRAJECTORY)
PAIR_TOKENS = (*names(PAIR, "ids", "mask", "logps"), "certificate")
TRAJECTORY_TOKENS = (*names(TRAJECTORY, "ids", "mask", "logps"), "certificate")
SEQUENCES = (*names(PAIR, "ids", "mask"), *names(TRAJECTORY, "ids", "mask"))
LOGPS = (*names(PAIR, "logps"), *names(TRAJECTORY, "logps"))

_PREFIXED = {column.name: f"{TOKENS}{column.name}" for column in (*PAIR, *TRAJECTORY) if column.of_tokens}
_TURNS = {"chosen": "chosen_turns", "rejected": "rejected_turns"}
_KNOWN = {stored: name for name, stored in (*_PREFIXED.items(), *_TURNS.items())}


def known_name(column: str) -> str:
    """Return the known name of a column of a file."""
    return _KNOWN.get(column, column)


def known(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with known names; a row that has known names already keeps them."""
    return {known_name(name): value for name, value in row.items()}


def stored_name(name: str, table: str) -> str:
    """Return the stored name, in the files of a table, of the column known as `name`."""
    return (_PREFIXED | _TURNS if table == MULTITURN else _PREFIXED).get(name, name)


@cache
def table_schema(table: str) -> pa.Schema:
    """Return the schema of `preferences`, `multiturn_preferences`, `trajectories` or `filtered`."""
    columns = PAIR if table in PAIR_TABLES else TRAJECTORY
    return schema_of(tuple(column._replace(name=stored_name(column.name, table)) for column in columns))


def schema_of(columns: tuple[Column, ...]) -> pa.Schema:
    """Return the schema of columns under their known names."""
    import pyarrow as pa  # a fifth of a second, which `--help` does not need

    types = {
        # JSON, read back by `datasets` as values and by other readers as text: no message gets a key it does not have,
        # which matters because chat templates test which keys there are.
        "messages": pa.list_(pa.json_()),
        "chat": pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())])),
        "ids": pa.list_(pa.int32()),
        "mask": pa.list_(pa.int8()),
        "logps": pa.list_(pa.float32()),
        "floats": pa.list_(pa.float64()),
        "text": pa.string(),
        "integer": pa.int64(),
        "number": pa.float64(),
        "flag": pa.bool_(),
    }

    def field(column: Column) -> pa.Field:
        kind = types[column.type] if isinstance(column.type, str) else pa.struct(list(map(field, column.type)))
        return pa.field(column.name, kind, nullable=not column.required)

    return pa.schema(map(field, columns))


def widened(schema: pa.Schema) -> pa.Schema:
    """Return a schema whose ids have 64 bits, as those of pictures' patches do (`rendering.vision`)."""
    import pyarrow as pa

    wide = {pa.list_(pa.int32()): pa.list_(pa.int64())}
    return pa.schema([field.with_type(wide.get(field.type, field.type)) for field in schema], schema.metadata)


def table_of(chosen: Sized, rejected: Sized) -> str:
    """Return the table of a pair, by its sides' steps or messages: `preferences` where each side is one turn."""
    return PREFERENCES if len(chosen) == len(rejected) == 1 else MULTITURN
