"""Numbers that a loss reads are checked before anything is trained: their ranges, their order, whose they are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_agent.errors import DataError
from offline_agent.pipelines import train_dpo, train_sft
from offline_agent.pipelines.entry import main
from offline_agent.preferences.dataset.export import pair_rows
from offline_agent.preferences.records import PreferencePair, Refusal
from offline_agent.records import Verdict
from offline_agent.rendering import certificate
from offline_agent.store.columns import stored_name
from offline_agent.training.data.rows import load_pairs, load_trajectories
from tests.helpers import rows as rows_kit
from tests.helpers.rows import lines, pair, resealed, run, trajectory

SEAL = ("columns", "digest")
KINDS = ("step", "trajectory", "hindsight", "minimal")


def pairs_of(runs: Any = (), files: Any = ()) -> Any:
    options: Any = {"model_hash": rows_kit.MODEL, "kinds": KINDS, "max_length": 2048}
    return load_pairs(runs, files, rows_kit.renderer(), **options)


# A sound certificate is given to each of these rows: it is the values that are refused.
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"weight": -5.0}, r"its weight is -5.0, allowed: numbers above 0 to 1$"),
        ({"weight": 0.0}, "its weight is 0.0"),
        ({"weight": 1e6}, "its weight is 1000000.0"),
        ({"weight": float("nan")}, "its weight is nan"),
        ({"confidence": 7.0}, r"its confidence is 7.0, allowed: numbers from 0 to 1$"),
        ({"confidence": float("inf")}, "its confidence is inf"),
        ({"rest_confidence": 1.5}, r"its rest_confidence is 1.5, allowed: numbers from 0 to 1$"),
        ({"q_chosen": 1.5}, "its q_chosen is 1.5"),
        ({"q_rejected": -0.5}, "its q_rejected is -0.5"),
        ({"visits_chosen": -1}, "its visits_chosen is -1, allowed: whole numbers from 0$"),
        ({"q_chosen": 0.25, "q_rejected": 0.75}, "its q_chosen is 0.25 and its q_rejected is 0.75, allowed: q_chosen"),
        ({"q_chosen": 0.5, "q_rejected": 0.5}, "allowed: q_chosen above q_rejected"),
        ({"q_chosen": 0.4, "q_rejected": 0.5, "kind": "minimal"}, "allowed: q_chosen at least q_rejected"),
        ({"ref_chosen_logps": [5.0] * 8}, "its ref_chosen_logps go up to 5, allowed: at most 0"),
    ],
)
def test_a_number_out_of_its_range_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    row = resealed({**pair(1), **change})
    path = run(tmp_path / "r", [pair(0), row])
    with pytest.raises(DataError, match=says) as error:
        pairs_of([path])
    assert str(error.value).startswith(f"{path}/preferences/0000.parquet:1 train-1/")


def test_both_sides_of_a_minimal_pair_may_be_worth_the_same(tmp_path: Path) -> None:
    row = resealed({**pair(1, kind="minimal"), "q_chosen": 1.0, "q_rejected": 1.0})
    assert pairs_of([run(tmp_path / "r", [row])])[1].kept == 1


def test_values_that_nobody_knows_are_no_fault(tmp_path: Path) -> None:
    row = {**pair(1), "confidence": None, "q_chosen": None}
    (one,), _ = pairs_of(files=[lines(tmp_path / "a.jsonl", [resealed(row)])])
    assert one.confidence is None and one.gap == 1.0


def bare(**columns: Any) -> dict[str, Any]:
    """Return a row of a user's own, in messages alone."""
    prompt, *sides = ([{"role": "user", "content": "Buy."}], *([{"role": "assistant", "content": x}] for x in "AB"))
    return {"prompt": prompt, "chosen": sides[0], "rejected": sides[1], **columns}


@pytest.mark.parametrize(
    "columns", [{}, {"weight": 20}, {"q_chosen": 31.5, "q_rejected": -7}, {"confidence": 0.2, "weight": None}]
)
def test_rows_of_a_users_own_need_no_certificate_and_have_their_own_scale(tmp_path: Path, columns: Any) -> None:
    assert pairs_of(files=[lines(tmp_path / "a.jsonl", [bare(**columns)])])[1].kept == 1


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"weight": -5}, "its weight is -5, allowed: numbers above 0 to 1000"),
        ({"weight": 1e6}, "its weight is 1000000.0"),
        ({"weight": "much"}, "its weight is 'much'"),
        ({"confidence": 7}, "its confidence is 7, allowed: numbers from 0 to 1"),
        ({"q_chosen": float("nan")}, "its q_chosen is nan, allowed: finite numbers"),
        ({"q_chosen": 1, "q_rejected": 2}, "its q_chosen is 1 and its q_rejected is 2, allowed: q_chosen above"),
    ],
)
def test_rows_of_a_users_own_are_checked_for_ranges(tmp_path: Path, columns: Any, says: str) -> None:
    with pytest.raises(DataError, match=rf"a\.jsonl:1 ?.*: {says}"):
        pairs_of(files=[lines(tmp_path / "a.jsonl", [bare(**columns)])])


def test_sides_that_were_swapped_with_their_values_are_refused(tmp_path: Path) -> None:
    row = pair(1)
    other = {"chosen": "rejected", "rejected": "chosen"}
    swapped = {re.sub("chosen|rejected", lambda side: other[side[0]], name): value for name, value in row.items()}
    assert swapped["q_chosen"] == 0.25
    for values in ({}, {"q_chosen": 0.75, "q_rejected": 0.25}):
        with pytest.raises(DataError, match="its q_|its chosen|its rejected|its ref_"):
            pairs_of([run(tmp_path / f"r{len(values)}", [{**swapped, **values}])])


def test_a_row_of_a_run_may_be_given_as_a_file_with_fewer_columns(tmp_path: Path) -> None:
    row = {stored_name(name, "preferences"): value for name, value in pair(1).items()}
    kept = {name: value for name, value in row.items() if name.startswith("tokens_") or name == "certificate"}
    assert pairs_of(files=[lines(tmp_path / "a.jsonl", [kept])])[1].kept == 1
    with pytest.raises(DataError, match="its weight is 0.25, certified was 0.5"):
        pairs_of(files=[lines(tmp_path / "b.jsonl", [{**kept, "weight": 0.25}])])


def test_a_row_that_went_through_pandas_is_what_it_was(tmp_path: Path) -> None:
    import pandas as pd
    import pyarrow.parquet as pq

    path = run(tmp_path / "r", [pair(1)])
    table = pq.read_table(f"{path}/preferences/0000.parquet")
    frame = pd.DataFrame({name: table.column(name).to_pylist() for name in table.schema.names})
    frame["node_id"] = frame["node_id"].astype("float64")  # as pandas has it where one is missing
    frame.to_parquet(tmp_path / "again.parquet")
    assert pairs_of(files=[str(tmp_path / "again.parquet")])[1].kept == 1


def test_a_pair_whose_worse_side_has_the_higher_value_is_not_written() -> None:
    good = Verdict(0.9, True, "kit")
    sides = rows_kit.steps("tea"), rows_kit.steps("cup")
    wrong = PreferencePair("trajectory", rows_kit.start(1), *sides, 0.4, 0.6, 1, 1, 1.0, good, good)
    refusals: list[Refusal] = []
    assert not list(pair_rows([wrong], rows_kit.renderer(), refusals))
    assert "its q_chosen is 0.4 and its q_rejected is 0.6" in refusals[0].reason


@pytest.mark.parametrize("row", [pair(1), trajectory(1)], ids=["pair", "trajectory"])
def test_a_certificate_without_what_it_says_of_columns_is_refused(tmp_path: Path, row: dict[str, Any]) -> None:
    data = {name: value for name, value in certificate.parse(row["certificate"]).items() if name not in SEAL}
    file = lines(tmp_path / "a.jsonl", [{**row, "certificate": json.dumps(data)}])
    with pytest.raises(DataError, match="does not cover its columns"):
        if "chosen" in row:
            pairs_of(files=[file])
        else:
            load_trajectories((), [file], rows_kit.renderer(), max_length=2048)


def test_every_fault_of_a_preference_training_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(config: Any) -> None:
        raise DataError("the model's files are torn")

    monkeypatch.setattr("offline_agent.runner.training.load", broken)
    keys = ["data.files=[/nowhere.jsonl]", f"run_dir={tmp_path / 'r'}", "tracking.uri=null"]
    assert main(train_dpo.COMMAND, keys) == 2
    said = capsys.readouterr().err
    assert "2 faults" in said and "torn" in said and "/nowhere.jsonl" in said


# -- every command that trains ------------------------------------------------------------------------------------

COMMANDS: dict[str, tuple[Any, Callable[[str], list[str]]]] = {
    "train_dpo": (train_dpo.COMMAND, lambda path: [f"data.runs=[{path}]"]),
    "train_dpo's anchor": (train_dpo.COMMAND, lambda path: [f"data.runs=[{path}/../sound]", f"anchor.runs=[{path}]"]),
    "train_sft": (train_sft.COMMAND, lambda path: [f"data.runs=[{path}]"]),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_refuses_a_run_whose_numbers_were_changed(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, keys = COMMANDS[name]
    run(tmp_path / "sound", [pair(1)], [trajectory(1)])
    bad = run(tmp_path / "bad", [{**pair(1), "weight": 0.25}], [{**trajectory(1), "success": False}])
    made = tmp_path / "made"
    assert main(command, [*keys(bad), f"run_dir={made}", "tracking.uri=null"]) == 1
    says = "weight is 0.25, certified was 0.5" if name == "train_dpo" else "success is False, certified was True"
    assert "0000.parquet:0 train-1/" in (told := capsys.readouterr().err) and says in told
    assert not made.exists()
