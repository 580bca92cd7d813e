"""The plan of arms: what is shared between them, and what is played."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from offline_agent.catalog import resolve

BENCHMARKS = str(Path(__file__).parents[3] / "benchmarks")


@pytest.fixture
def arms(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    sys.modules.pop("arms", None)
    import arms

    return arms


@pytest.fixture
def plan(arms: Any, tmp_path: Path) -> Any:
    def made(*names: str, suite: Any = arms.SUITES["frozenlake"]) -> Any:
        options = argparse.Namespace(arms=list(names), split="test", held_out=None, attempts=4, first=None)
        return list(arms.stages(suite, 3, tmp_path, options))

    return made


def test_what_is_done_at_test_time_alone_is_compared_with_the_same_model_without_it(arms: Any, plan: Any) -> None:
    """Alone catches an arm that is trained again for what it does at test time, or is compared with another model."""
    names = ["states, then dpo", "states, then dpo, then agreement"]
    both = plan(*names)
    assert [stage.pipeline for stage in both if stage not in plan(names[0])] == ["evaluate"]
    alone, keys = (
        next(dict(key.split("=", 1) for key in stage.keys) for stage in both if f"{name}_all_data-test" in stage.name)
        for name in ("states+updates+dpo", "states+updates+dpo+agree")
    )
    assert keys["test_time.judge"] == "agreement" and keys["policy.model"] == alone["policy.model"]
    options = argparse.Namespace(arms=names)
    assert list(arms.alike(arms.ARMS[names[1]], options)) == [("one attempt", arms.ARMS[names[0]])]
    assert list(arms.alike(arms.ARMS[names[0]], options)) == []


def test_every_arm_has_a_plan_whose_stages_are_made_once_and_after_what_they_read(arms: Any, plan: Any) -> None:
    """Alone catches a round that shares the training of a round that is not there, or reads what is made later."""
    made: set[str] = set()
    for stage in plan(*arms.ARMS):
        assert stage.name not in made and set(stage.after) <= made
        made.add(stage.name)


def test_pairs_of_one_kind_are_compared_with_as_many_further_updates(arms: Any, plan: Any) -> None:
    """Alone catches a control that is not found, or that makes other updates than the pairs."""
    names = ["one round, then further updates", "one round, then step pairs", "one round, then critical pairs"]
    trained = [stage for stage in plan(*names) if any("max_updates" in key for key in stage.keys)]
    assert [next(key for key in stage.keys if "max_updates" in key) for stage in trained] == [
        f"optimizer.max_updates={arms.SUITES['frozenlake'].alone}"
    ] * 3
    control = ("further fine-tuning", arms.ARMS[names[0]])
    assert all(list(arms.alike(arms.ARMS[name], argparse.Namespace(arms=names))) == [control] for name in names[1:])
    made = {stage.name: 7 for stage in plan(*names) if "updates" in stage.name or "epochs" in stage.name}
    seed = argparse.Namespace(facts={"updates": made})
    assert [arms.updates(arms.SUITES["frozenlake"], seed, arms.ARMS[name]) for name in names] == [14] * 3


def test_keys_for_pairs_of_one_kind_come_last_and_to_no_other_training(arms: Any, plan: Any) -> None:
    """Alone catches a rate for pairs of one kind that the round's own rate replaces, or that other pairs get."""
    suite = arms.SUITES["frozenlake-smollm2"]
    names = ["one round, then critical pairs", "one round, then step pairs", "one round, then dpo"]
    critical, step, other = (
        next(stage.keys for stage in plan(name, suite=suite) if stage.pipeline == "train_dpo") for name in names
    )
    assert suite.kind and not set(suite.kind) & set(other)
    assert critical[-len(suite.kind) :] == step[-len(suite.kind) :] == suite.kind


def test_a_suite_in_float32_lacks_the_keys_of_bfloat16_alone(arms: Any) -> None:
    suite = arms.SUITES["frozenlake-smollm2"]
    assert set(suite.tuning) - set(suite.in_float32().tuning) == {"model.dtype=mixed"}
    assert set(suite.evaluate) - set(suite.in_float32().evaluate) == {"policy.dtype=bfloat16"}


@pytest.mark.parametrize("name", ["cookingworld", "shop", "frozenlake"])
def test_three_seeds_of_three_rounds_find_their_train_tasks(arms: Any, tmp_path: Path, name: str) -> None:
    """Alone catches seeds whose tasks begin where the environment has no more: a run of hours ends at its second."""
    suite = arms.SUITES[name]
    options = argparse.Namespace(arms=["states, then dpo", "grpo"], split="test", held_out=None, attempts=4, first=None)
    given = dict(key.split("=", 1) for key in suite.environment)
    kind = resolve("env", given.pop("env"))
    last = 0
    for stage in arms.stages(suite, 2, tmp_path, options):
        if stage.pipeline in ("build_prefs", "refine_grpo"):
            keys = dict(key.split("=", 1) for key in stage.keys)
            last = max(last, int(keys["tasks.offset"]) + int(keys["tasks.n"]))
    tasks = kind.tasks("train", **{key.removeprefix("env."): value for key, value in given.items()})
    assert last == sum(1 for _ in itertools.islice(tasks, last))


def test_all_calls_of_a_chain_are_counted_and_an_interrupted_search_is_refused(arms: Any, tmp_path: Path) -> None:
    def summary(name: str, **content: Any) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps(content))

    def collected(name: str, calls: int, resumed: bool = False) -> None:
        summary(
            name, tool_calls=3 * calls, nodes=calls + 5, tasks=5, replayed_calls=200, generated=7, filtered=1,
            pairs_total=2, resumed=resumed, this_session={"calls_replayed": 4}, success={"best_of_search": 0.5},
        )  # fmt: skip

    collected("states-data", 10)
    collected("states.states-data", 3000)
    summary("states.states_all_data.grpo-online", rollouts={"env_steps": 50_000}, updates=3)
    seed = arms.Seed(0, {}, facts=arms.costs(tmp_path))
    assert arms.calls(seed, ("states",)) == 10 + 4 + 200
    assert arms.calls(seed, ("states", "states, all data", "grpo")) == 214 + 3204 + 50_000
    assert arms.executed(seed, ("states", "states, all data", "grpo")) == 214 + 3204 + 50_000 + 2 * 3010
    del seed.facts["data"]["states-data"]["executed"]  # as in seeds that were kept before it was noted
    assert arms.executed(seed, ("states", "states, all data")) is None
    collected("attempts-data", 10, resumed=True)
    with pytest.raises(SystemExit, match="was interrupted; remove it"):
        arms.costs(tmp_path)
