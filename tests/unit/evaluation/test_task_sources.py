"""Proposed tasks: what a source is given, and that nothing known, held out or unsolvable passes the checks."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offline_agent.config.iterate import IterateConfig, LoopSearch
from offline_agent.envs.base import EnvSpec
from offline_agent.envs.countdown import Countdown, shortest, split_of
from offline_agent.errors import ConfigError
from offline_agent.evaluation.task_sources import History, Played, failures, history, load_source
from offline_agent.pipelines.entry import main
from offline_agent.pipelines.stages.proposing import Proposing
from offline_agent.preferences.pairs.hindsight import goal_key
from offline_agent.preferences.replayer import Replayer
from tests.helpers.bandit import QUIET, command
from tests.helpers.guessing import Guessing

NOTHING = History([], {}, {}, set())


class Untaught(Countdown):
    """Countdown without an expert."""

    demonstrate = None  # type: ignore[assignment]


class Hidden(Guessing):
    """A number is guessed that the first observation does not show."""

    @classmethod
    def tasks(cls, split: str) -> Iterator[dict[str, int]]:
        start = {"train": 0, "validation": 10, "test": 20}[split]
        return ({"number": number} for number in range(start, start + 5))

    def reset(self, number: int) -> str:
        self._number, self.terminated = number, number > 99
        return "guess"

    @property
    def fingerprint(self) -> str:
        return str(self._number)


def checked(spec: EnvSpec, candidates: list[Any], past: History = NOTHING, most: int = 20) -> list[dict[str, Any]]:
    known = list(itertools.islice(spec.tasks("train"), most))
    proposing = Proposing(spec, known, IterateConfig(search=LoopSearch(max_steps=8)), print)
    with contextlib.closing(Replayer(spec, live_states=0)) as replayer:
        return [proposing.check(candidate, past, replayer) for candidate in candidates]


def proofs(found: list[dict[str, Any]]) -> list[str]:
    return [one["proof"].partition(":")[0] for one in found]


def test_nothing_of_the_evaluation_nothing_known_and_nothing_unsolvable_passes() -> None:
    spec = EnvSpec(Countdown, {"n": 3})
    first = {split: next(spec.tasks(split)).args for split in ("train", "validation", "test")}
    turned = {split: {**args, "numbers": args["numbers"][::-1]} for split, args in first.items()}
    new = next(itertools.islice(spec.tasks("train"), 20, None)).args
    candidates = [
        first["validation"], first["test"], turned["validation"], turned["test"], first["train"], turned["train"],
        {"numbers": [1, 1, 1], "target": 99}, {"target": 9}, 7, {"numbers": {1}, "target": 9}, new,
        {**new, "task_id": "other"}, goal := {**first["test"], "colour": "red"},
    ]  # fmt: skip
    found = checked(spec, candidates, NOTHING._replace(reached={goal_key(goal): (dict(first["test"]), [])}))
    held_out, begins = ["a task of the evaluation"] * 2, ["begins as a task of the evaluation"] * 2
    assert proofs(found) == [
        *held_out, *begins, "known", "begins as a known one", "the expert does not solve it", "it cannot begin",
        "no dict of reset's arguments", "no dict of reset's arguments", "expert", "known",
        "a task of the evaluation",  # a goal of the evaluation, though the task has another column
    ]  # fmt: skip
    assert found[-3]["args"] == new and found[-3]["task_id"].startswith("proposed-")


def test_where_tasks_begin_alike_the_fingerprint_tells_them_apart() -> None:
    found = checked(EnvSpec(Hidden), [{"number": n} for n in (10, 3, 7, 50, 100)], most=5)
    assert proofs(found) == ["a task of the evaluation", "known", "unproven", "it holds at reset", "it cannot begin"]
    blind = type("Blind", (Hidden,), {"fingerprint": None})
    assert proofs(checked(EnvSpec(blind), [{"number": 7}], most=5)) == ["begins as a task of the evaluation"]


@pytest.mark.parametrize("kind", [Countdown, Untaught])
def test_tasks_from_failures_are_proved_by_the_actions_that_reached_them(kind: type, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"  # as `iterate` writes it
    some = itertools.islice(Countdown.tasks("train", n=3), 12)
    file.write_text("".join(json.dumps({"task_id": f"t{i}", **task}) + "\n" for i, task in enumerate(some)))
    keys = ["env=countdown", "env.n=3", "policy=noisy", "policy.noise=1.0", "search.simulations=6", QUIET]
    keys += [f"tasks.file={file}", "pairs.kinds=[step]", f"run_dir={tmp_path / 'run'}"]
    assert main(command("build_prefs"), keys) == 0
    spec = EnvSpec(kind, {"n": 3})
    past = history(spec, [tmp_path / "run"])
    assert len(past.played) == len(past.known) == 12 and all("task_id" not in one.args for one in past.played)
    candidates = list(failures(past.played))
    assert len(candidates) > 12 and len(past.solved) < 12
    found = [one for one in checked(spec, candidates, past) if one["proof"] == "replay"]
    assert len(found) > 8
    for args in (one["args"] for one in found):
        assert split_of(args["numbers"], args["target"]) == "train"
        assert shortest(tuple(args["numbers"]), args["target"])
    forged = {key: (goal, actions[:1]) for key, (goal, actions) in past.reached.items()}
    less = checked(spec, [one["args"] for one in found], past._replace(reached=forged))
    assert set(proofs(less)) == {"expert" if kind is Countdown else "the actions that reached it do not solve it"}


def test_failures_take_turns_and_begin_with_what_is_solved_half_of_the_time() -> None:
    played = [Played({}, 0, 8, [{"g": 1}, {"g": 2}]), Played({}, 4, 8, [{"g": 3}]), Played({}, 8, 8, [])]
    assert list(failures(played)) == [{"g": 3}, {"g": 1}, {"g": 2}]


@pytest.mark.parametrize(
    ("name", "env", "told"),
    [
        ("failure", Countdown, "Did you mean 'failures'"),
        ("failures", Hidden, "no achieved_goal"),
        (f"{__name__}:nothing", Countdown, "no 'nothing'"),
    ],
)
def test_a_source_that_cannot_work_is_refused(name: str, env: type, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_source(name, EnvSpec(env))
    assert told in str(error.value) and "curriculum.source" in str(error.value)
