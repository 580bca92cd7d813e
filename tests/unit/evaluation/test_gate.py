from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from offline_agent.errors import DataError
from offline_agent.evaluation.gate import (
    GateSection,
    Look,
    best,
    confidence_not_worse,
    decide,
    needed_confidence,
    outcomes,
)
from offline_agent.store.tables import write_table

GATE = GateSection(confidence=0.9, margin=0.02)


def scores(*rates: float, attempts: int = 4) -> dict[str, list[float | None]]:
    return {f"t{i}": [float(n < rate * attempts) for n in range(attempts)] for i, rate in enumerate(rates)}


def test_a_better_one_passes_and_a_worse_one_does_not() -> None:
    low, high = scores(*[0.25] * 30, *[0.5] * 30), scores(*[0.5] * 30, *[0.75] * 30)
    good, bad = decide(high, low, GATE), decide(low, high, GATE)
    assert good.passed and good.confidence == pytest.approx(1) and good.difference.mean == pytest.approx(0.25)
    assert good.reason == "passed: confidence 1.0000 >= 0.9000 that success is not worse by 2 points, on 60 tasks"
    assert not bad.passed and bad.confidence == pytest.approx(0) and "refused" in bad.reason
    told = good.to_json()
    assert told["passed"] and told["difference"]["mean"] == pytest.approx(0.25) and told["tasks"] == 60
    assert told["confidence_needed"] == 0.9 and told["unscored"] == {"candidate": 0, "incumbent": 0, "p_value": 1}
    json.dumps(told, allow_nan=False)


def test_the_confidence_and_the_margin_decide_between() -> None:
    mixed = scores(*[1.0] * 20, *[0.0] * 20), scores(*[0.0] * 18, *[1.0] * 2, *[1.0] * 18, *[0.0] * 2)
    even = decide(*mixed, GateSection(confidence=0.9, margin=0.0))
    assert even.difference.mean == 0 and even.confidence is not None and 0.4 < even.confidence < 0.6
    assert not even.passed and decide(*mixed, GateSection(confidence=0.9, margin=0.5)).passed
    slightly = scores(*[0.5] * 30, *[0.75] * 8), scores(*[0.5] * 32, *[0.75] * 2, *[0.5] * 4)
    unsure = decide(*slightly, GateSection(confidence=0.99, margin=0.0))
    sure = decide(*slightly, GateSection(confidence=0.5, margin=0.0))
    assert unsure.confidence == sure.confidence and sure.passed and not unsure.passed


def test_a_hundred_ties_leave_room_for_rare_losses_and_five_hundred_do_not() -> None:
    few, many = scores(*[1.0] * 100), scores(*[1.0] * 500)
    undecided = decide(few, few, GATE)
    assert undecided.confidence == pytest.approx(1 - 0.98**100) and not undecided.passed
    assert decide(many, many, GATE).passed


def test_one_good_task_does_not_promote() -> None:
    assert not decide(scores(1.0, 0.0), scores(0.0, 0.0), GATE).passed


def test_unscored_tasks_are_left_out_on_both_sides_and_counted() -> None:
    candidate, incumbent = scores(*[0.5] * 40), scores(*[0.25] * 40)
    candidate["t0"], incumbent["t1"] = [None] * 4, [None] * 4
    candidate["t2"] = [None, 1.0, None, 0.0]
    decision = decide(candidate, incumbent, GATE)
    assert decision.passed and decision.difference.tasks == 38 and decision.difference.unpaired_tasks == 2
    assert decision.reason.endswith("on 38 tasks, 2 unscored left out")
    nothing = decide({"t0": [None], "t1": [1.0]}, {"t0": [1.0], "t1": [0.0]}, GATE)
    assert not nothing.passed and nothing.confidence is None and "nothing can be said" in nothing.reason


def rambling(rng: np.random.Generator, tasks: int, rate: float, unscored: float) -> dict[str, list[float | None]]:
    """Attempts at tasks of one rate, of whose failures a share has no score."""
    draws = rng.random((tasks, 4, 2))
    return {
        f"t{i}": [1.0 if won < rate else None if cut < unscored else 0.0 for won, cut in task]
        for i, task in enumerate(draws)
    }


def test_one_whose_failures_are_mostly_unscored_is_refused() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        candidate, incumbent = rambling(rng, 50, 0.4, 0.7), rambling(rng, 50, 0.5, 0.0)
        decision = decide(candidate, incumbent, GATE, resamples=1000)
        assert decision.difference.mean is not None and decision.difference.mean > 0  # of what is left
        assert not decision.passed and "of its attempts are unscored, 0.0% of the incumbent's" in decision.reason


def test_equal_shares_of_unscored_attempts_are_no_ground_to_refuse() -> None:
    rng, passed, differ = np.random.default_rng(1), 0, 0
    for _ in range(40):
        candidate, incumbent = rambling(rng, 60, 0.75, 0.2), rambling(rng, 60, 0.5, 0.1)  # 5 % of the attempts each
        decision = decide(candidate, incumbent, GATE, resamples=1000)
        passed, differ = passed + decision.passed, differ + (decision.unscored.p_value < 0.05)
    assert passed >= 35 and differ <= 5


def test_too_few_unscored_attempts_to_tell_the_shares_apart_do_not_hide_failures() -> None:
    incumbent = scores(*[0.5] * 40, *[0.25] * 4)
    candidate = scores(*[0.75] * 8, *[0.25] * 7, *[0.5] * 25, *[0.25] * 4)
    assert not decide(candidate, incumbent, GATE).passed
    candidate |= {f"t{i}": [1.0, None, None, None] for i in range(40, 44)}
    decision = decide(candidate, incumbent, GATE)
    assert decision.unscored.p_value == 1 / 8 and decision.difference.mean > 0.05  # type: ignore[operator]
    assert confidence_not_worse(candidate, incumbent, 0.02) > 0.95  # type: ignore[operator]
    assert not decision.passed and "unscored attempts as failures" in decision.reason


def test_all_looks_together_get_no_more_than_the_error_of_the_run() -> None:
    for passed in (0, 1, 2):  # of two each time
        looks, spent = [], 0.0
        for _ in range(200):
            error = 1 - needed_confidence(0.9, looks, 2)
            spent += (2 - passed) * error  # what was tested and did not pass has used up its part
            looks.append(Look(2, passed))
        assert spent <= 0.1 + 1e-9
    assert [needed_confidence(0.9, [], n) for n in (1, 2)] == [pytest.approx(0.95), pytest.approx(0.975)]
    refused, won, half = (needed_confidence(0.9, [Look(2, n)], 1) for n in (0, 2, 1))
    assert refused == pytest.approx(1 - 0.1 / 6) and won == pytest.approx(1 - 0.1 * (1 / 2 + 1 / 6))
    assert half == pytest.approx(1 - 0.1 * (1 / 4 + 1 / 6))
    assert needed_confidence(0.9, [Look(2, 2), Look(1, 0)], 1) == pytest.approx(1 - 0.1 / 12)


def test_the_test_errs_as_often_as_it_says() -> None:
    rng, promoted, runs = np.random.default_rng(4), 0, 400
    for _ in range(runs):
        base = rng.uniform(0.3, 0.7, 50)
        incumbent, candidate = (rng.binomial(4, np.clip(base + shift, 0, 1)) / 4 for shift in (0.0, -0.02))
        sides = [{str(i): [float(v)] for i, v in enumerate(side)} for side in (candidate, incumbent)]
        promoted += decide(*sides, GATE, resamples=10).passed
    assert abs(promoted / runs - 0.1) < 3 * math.sqrt(0.1 * 0.9 / runs)


def test_the_one_that_gained_most_is_promoted_and_the_later_of_equals() -> None:
    start, some, much = scores(*[0.25] * 60), scores(*[0.5] * 60), scores(*[0.75] * 60)
    worse = scores(*[0.0] * 60)
    better, best_of, bad = (decide(one, start, GATE) for one in (some, much, worse))
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
        ("candidate", "sampled", "a", 0, True),
        ("candidate", "sampled", "a", 1, False),
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
