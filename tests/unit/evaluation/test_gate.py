from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from offline_agent._store.tables import write_table
from offline_agent.errors import DataError
from offline_agent.evaluation.gate import best, decide, outcomes

GATE = {"confidence": 0.9, "margin": 0.02}


def scores(*rates: float, attempts: int = 4) -> dict[str, list[float | None]]:
    return {f"t{i}": [float(n < rate * attempts) for n in range(attempts)] for i, rate in enumerate(rates)}


def test_a_better_one_passes_and_a_worse_one_does_not() -> None:
    low, high = scores(*[0.25] * 30, *[0.5] * 30), scores(*[0.5] * 30, *[0.75] * 30)
    good, bad = decide(high, low, **GATE), decide(low, high, **GATE)
    assert good.passed and good.probability == 1.0 and good.difference.mean == pytest.approx(0.25)
    assert good.reason == "passed: P(success not worse by 2 points) = 1.000 >= 0.9 on 60 tasks"
    assert not bad.passed and bad.probability == 0.0 and "refused" in bad.reason
    told = good.to_json()
    assert told["passed"] and told["difference"]["mean"] == pytest.approx(0.25) and told["tasks"] == 60
    json.dumps(told, allow_nan=False)


def test_the_confidence_and_the_margin_decide_between() -> None:
    mixed = scores(*[1.0] * 20, *[0.0] * 20), scores(*[0.0] * 18, *[1.0] * 2, *[1.0] * 18, *[0.0] * 2)
    even = decide(*mixed, confidence=0.9, margin=0.0)
    assert even.difference.mean == 0 and even.probability is not None and 0.4 < even.probability < 0.6
    assert not even.passed and decide(*mixed, confidence=0.9, margin=0.5).passed
    slightly = scores(*[0.5] * 30, *[0.75] * 4), scores(*[0.5] * 32, *[0.75] * 2)
    unsure = decide(*slightly, confidence=0.99, margin=0.0)
    sure = decide(*slightly, confidence=0.5, margin=0.0)
    assert unsure.probability == sure.probability and sure.passed and not unsure.passed


def test_one_good_task_does_not_promote() -> None:
    assert not decide(scores(1.0, 0.0), scores(0.0, 0.0), **GATE).passed


def test_unscored_tasks_are_left_out_on_both_sides_and_counted() -> None:
    candidate, incumbent = scores(*[0.5] * 40), scores(*[0.25] * 40)
    candidate["t0"], incumbent["t1"] = [None] * 4, [None] * 4
    candidate["t2"] = [None, 1.0, None, 0.0]
    decision = decide(candidate, incumbent, **GATE)
    assert decision.passed and decision.difference.tasks == 38 and decision.difference.unpaired_tasks == 2
    assert decision.reason.endswith("on 38 tasks, 2 unscored left out")
    nothing = decide({"t0": [None]}, {"t0": [1.0]}, **GATE)
    assert not nothing.passed and nothing.probability is None and "nothing can be said" in nothing.reason


def test_the_one_that_gained_most_is_promoted_and_the_later_of_equals() -> None:
    start, some, much = scores(*[0.25] * 60), scores(*[0.5] * 60), scores(*[0.75] * 60)
    worse = scores(*[0.0] * 60)
    better, best_of, bad = (decide(one, start, **GATE) for one in (some, much, worse))
    assert best({"train_sft": better, "train_dpo": best_of}) == "train_dpo"
    assert best({"train_sft": best_of, "train_dpo": better}) == "train_sft"
    assert best({"train_sft": better, "train_dpo": bad}) == "train_sft"
    assert best({"train_sft": better, "train_dpo": better}) == "train_dpo"
    assert best({"train_sft": bad, "train_dpo": bad}) is None
    assert best({}) is None


SCHEMA = pa.schema(
    [("policy", pa.string()), ("mode", pa.string()), ("task_id", pa.string()), ("attempt", pa.int64()),
     ("success", pa.bool_())]
)  # fmt: skip


def evaluation(folder: Path, split: str, rows: list[tuple[str, str, str, int, bool | None]]) -> Path:
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"config": {"tasks": {"split": split}}}))
    named = [dict(zip(SCHEMA.names, row, strict=True)) for row in rows]
    write_table(folder / "attempts" / "0000.parquet", "attempts", named, SCHEMA)
    return folder


def test_outcomes_are_the_sampled_attempts_of_the_evaluated_policy(tmp_path: Path) -> None:
    rows: list[tuple[str, str, str, int, bool | None]] = [
        ("candidate", "sampled", "a", 1, False),
        ("candidate", "sampled", "a", 0, True),
        ("candidate", "greedy", "a", 0, False),
        ("against", "sampled", "a", 0, False),
        ("candidate", "sampled", "b", 0, None),
    ]
    assert outcomes(evaluation(tmp_path / "e", "validation", rows)) == {"a": [1.0, 0.0], "b": [None]}


def test_the_gate_never_looks_at_the_test_split(tmp_path: Path) -> None:
    run_dir = evaluation(tmp_path / "e", "test", [("candidate", "sampled", "a", 0, True)])
    with pytest.raises(DataError, match="test split"):
        outcomes(run_dir)


def test_no_attempts_is_no_zero(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no sampled attempt"):
        outcomes(evaluation(tmp_path / "e", "validation", [("candidate", "greedy", "a", 0, True)]))
    with pytest.raises(DataError, match="no run directory of evaluate"):
        outcomes(tmp_path)
