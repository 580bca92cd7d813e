"""A value of a run's table that was changed after it was written is refused by whatever trains on it, and named."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_agent.errors import DataError
from offline_agent.store.columns import table_schema
from offline_agent.training.data.rows import load_pairs, load_trajectories
from tests.helpers import rows as rows_kit
from tests.helpers.rows import pair, run, trajectory

PAIRS, TRAJECTORIES = table_schema("preferences").names, table_schema("filtered").names
KINDS = ("step", "trajectory", "hindsight", "minimal")


def load(path: str, table: str) -> Any:
    renderer = rows_kit.renderer()
    if table == "filtered":
        return load_trajectories([path], [], renderer, max_length=2048)
    return load_pairs([path], [], renderer, model_hash=rows_kit.MODEL, kinds=KINDS, max_length=2048)


def other(value: Any, kind: pa.DataType) -> Any:
    """Return another value of the kind, near the one that is there and as plausible."""
    if pa.types.is_list(kind):
        rest = [] if value is None else value
        return [other(rest[0] if rest else None, kind.value_type), *rest[1:]]
    if pa.types.is_boolean(kind):
        return not value
    if pa.types.is_integer(kind):
        return 1 - value if value in (0, 1) else (value or 6) + 1
    if pa.types.is_floating(kind):
        return -0.5 if value is None else value - 0.0625
    text = value or '{"role": "user", "content": "Buy."}'
    return text.replace("e", "o", 1) if "e" in text else f"{text}s"


def changed(file: Path, column: str, to_none: bool = False) -> None:
    """Change one column of the only row of a file."""
    table = pq.read_table(file)
    at = table.schema.get_field_index(column)
    values = table.column(at).combine_chunks()
    kind = table.schema.field(at).type
    plain = values.storage if isinstance(kind, pa.ExtensionType) else values
    (value,) = plain.to_pylist()
    new = None if to_none else other(value, plain.type)
    assert new != value
    stored = pa.array([new], type=_plain(plain.type)).cast(kind)
    pq.write_table(table.set_column(at, table.schema.field(at), stored), file)
    assert pq.read_table(file).schema.metadata == table.schema.metadata


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    return pa.string() if isinstance(kind, pa.JsonType) else kind


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Path]:
    """Write the runs that tests copy and change."""
    folder, kinds = tmp_path_factory.mktemp("runs"), itertools.product(("preferences", "filtered"), (False, True))
    return {kind: written(folder / f"{kind[0]}{kind[1]}", *kind) for kind in kinds}


def written(path: Path, table: str, tokens: bool) -> Path:
    """Write a run with one row in a table and return its folder."""
    made = trajectory(1, tokens=tokens) if table == "filtered" else pair(1, tokens=tokens)
    run(path, **{"filtered" if table == "filtered" else "pairs": [made]})
    assert load(str(path), table)[1].kept == 1
    return path


CASES = [*(("preferences", name) for name in PAIRS), *(("filtered", name) for name in TRAJECTORIES)]


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "messages"])
@pytest.mark.parametrize(("table", "column"), CASES)
def test_a_changed_value_of_any_column_is_refused(
    tmp_path: Path, whole: dict[tuple[str, bool], Path], table: str, column: str, tokens: bool
) -> None:
    file = shutil.copytree(whole[table, tokens], tmp_path / "run") / table / "0000.parquet"
    changed(file, column)
    with pytest.raises(DataError) as error:
        load(str(tmp_path / "run"), table)
    assert f"{table}/0000.parquet:0 " in str(error.value)


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "messages"])
@pytest.mark.parametrize(("table", "column"), CASES)
def test_a_value_that_is_gone_is_refused(
    tmp_path: Path, whole: dict[tuple[str, bool], Path], table: str, column: str, tokens: bool
) -> None:
    file = shutil.copytree(whole[table, tokens], tmp_path / "run") / table / "0000.parquet"
    if pq.read_table(file).column(column).null_count or not pq.read_schema(file).field(column).nullable:
        return  # it is not there anyway, or a file without it cannot be written
    changed(file, column, to_none=True)
    with pytest.raises(DataError) as error:
        load(str(tmp_path / "run"), table)
    assert f"{table}/0000.parquet:0 " in str(error.value)
