"""Names of columns in a run's tables, such that a plain trainer given a whole table trains right or refuses.

Trainers take columns by their names: TRL's `SFTTrainer` takes any table with `input_ids` for a prepared one and trains
on every token of it; `DPOTrainer` writes `prompt_ids`, `chosen_ids` and `rejected_ids` itself and reads
`ref_chosen_logps`. So token columns have a prefix in files that no trainer knows. Preference trainers have no mask, and
train on all that stands in `chosen` and `rejected`: a pair whose sides have several turns holds tool results there, so
it is kept in a table of its own, under other names.

A row with the names of a file is called stored, one with the program's own names known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TOKENS = "tokens_"
PREFERENCES = "preferences"
MULTITURN = "multiturn_preferences"
PAIR_TABLES = (PREFERENCES, MULTITURN)
SUCCESS_TABLES = ("filtered",)

SEQUENCES = ("prompt_ids", "chosen_ids", "rejected_ids", "chosen_mask", "rejected_mask", "input_ids", "action_mask")
LOGPS = ("ref_chosen_logps", "ref_rejected_logps", "logps")

_PREFIXED = {name: f"{TOKENS}{name}" for name in (*SEQUENCES, *LOGPS)}
_TURNS = {"chosen": "chosen_turns", "rejected": "rejected_turns"}
_KNOWN = {stored: name for name, stored in (*_PREFIXED.items(), *_TURNS.items())}


def known_name(column: str) -> str:
    """Return what the program calls a column of a file."""
    return _KNOWN.get(column, column)


def known(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with the program's own names; one that has them already stays as it is."""
    return {known_name(name): value for name, value in row.items()}


def completed(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pair's row with `rest_confidence`; where there was none yet, `confidence` of a rest stood for it."""
    if "rest_confidence" in row or row.get("kind") in (None, "step"):
        return {"rest_confidence": None, **row}
    return {**row, "confidence": None, "rest_confidence": row.get("confidence")}


def stored_name(name: str, table: str) -> str:
    """Return the name in a table's files of what the program calls `name`."""
    return (_PREFIXED | _TURNS if table == MULTITURN else _PREFIXED).get(name, name)


def stored(row: Mapping[str, Any], table: str) -> dict[str, Any]:
    """Return a row with the names of a table's files."""
    return {stored_name(name, table): value for name, value in known(row).items()}


def table_of(row: Mapping[str, Any]) -> str:
    """Return the table of a pair: `preferences` where each side is one turn, else `multiturn_preferences`."""
    row = known(row)
    return PREFERENCES if len(row["chosen"]) == len(row["rejected"]) == 1 else MULTITURN
