"""Proposed tasks: what a source is given, and that nothing known, held out or unsolvable passes the checks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.countdown import Countdown, shortest, split_of
from offline_agent.envs.settings import LimitsSection
from offline_agent.errors import ConfigError
from offline_agent.evaluation.task_sources import (
    Checked,
    History,
    Played,
    TaskChecks,
    failures,
    history,
    load_source,
)
from offline_agent.pipelines.entry import main
from tests.helpers.bandit import QUIET, command

NOTHING = History([], {}, {}, set())


class Untaught(Countdown):
    """Countdown without an expert."""

    demonstrate = None  # type: ignore[assignment]


class Hidden:
    """A number is guessed that the first observation does not show."""

    @classmethod
    def tasks(cls, split: str) -> Iterator[dict[str, int]]:
        start = {"train": 0, "validation": 10, "test": 20}[split]
        return ({"number": number} for number in range(start, start + 5))

    def reset(self, number: int) -> str:
        self._number, self.terminated = number, number > 99
        return "guess"

    def guess(self, number: int) -> str:
        """Guess.

        Args:
            number: Any.
        """
        self.terminated = True
        return "over"

    def get_reward(self) -> float:
        return float(self._number == 50)

    @property
    def fingerprint(self) -> str:
        return str(self._number)


def checked(spec: EnvSpec, candidates: list[Any], past: History = NOTHING, most: int = 20) -> Checked:
    known = list(itertools.islice(spec.tasks("train"), most))
    return TaskChecks(spec, known, LimitsSection(), 8).check(candidates, past, len(candidates))


def reasons(found: Checked) -> list[str]:
    return [one.reason for one in found.refused]


def test_nothing_of_the_evaluation_nothing_known_and_nothing_unsolvable_passes() -> None:
    spec = EnvSpec(Countdown, {"n": 3})
    first = {split: next(spec.tasks(split)).args for split in ("train", "validation", "test")}
    turned = {split: {**args, "numbers": args["numbers"][::-1]} for split, args in first.items()}
    new = next(itertools.islice(spec.tasks("train"), 20, None)).args
    candidates = [
        first["validation"], first["test"], turned["validation"], turned["test"], first["train"], turned["train"],
        {"numbers": [1, 1, 1], "target": 99}, {"target": 9}, 7, {"numbers": {1}, "target": 9}, new,
        {**new, "task_id": "other"},
    ]  # fmt: skip
    found = checked(spec, candidates)
    held_out, begins = ["a task of the evaluation"] * 2, ["begins as a task of the evaluation"] * 2
    assert reasons(found) == [
        *held_out, *begins, "known", "begins as a known one", "the expert does not solve it", "it cannot begin",
        "no dict of reset's arguments", "no dict of reset's arguments", "known",
    ]  # fmt: skip
    assert [(one.task.args, one.task.split, one.proof) for one in found.accepted] == [(new, "train", "expert")]
    assert found.calls >= 2 and found.resets >= 2000 + 20


def test_where_tasks_begin_alike_the_fingerprint_tells_them_apart() -> None:
    found = checked(EnvSpec(Hidden), [{"number": n} for n in (10, 3, 7, 50, 100)], most=5)
    assert reasons(found) == ["a task of the evaluation", "known", "it holds at reset", "it cannot begin"]
    assert [(one.task.args, one.proof) for one in found.accepted] == [({"number": 7}, "unproven")]
    hidden = type("Blind", (Hidden,), {"fingerprint": None})
    assert reasons(checked(EnvSpec(hidden), [{"number": 7}], most=5)) == ["begins as a task of the evaluation"]


@pytest.mark.parametrize("kind", [Countdown, Untaught])
def test_tasks_from_failures_are_proved_by_the_actions_that_reached_them(kind: type, tmp_path: Path) -> None:
    keys = ["env=countdown", "env.n=3", "policy=noisy", "policy.noise=1.0", "tasks.n=12", "search.simulations=6", QUIET]
    assert main(command("build_prefs"), [*keys, "pairs.kinds=[step]", f"run_dir={tmp_path / 'run'}"]) == 0
    spec = EnvSpec(kind, {"n": 3})
    past = history(spec, [tmp_path / "run"])
    assert len(past.played) == len(past.known) == 12 and all("task_id" not in one.args for one in past.played)
    candidates = list(failures(past.played))
    assert len(candidates) > 12 and len(past.solved) < 12
    found = checked(spec, candidates, past)
    assert {one.proof for one in found.accepted} == {"replay"} and len(found.accepted) > 8
    for task in (one.task.args for one in found.accepted):
        assert split_of(task["numbers"], task["target"]) == "train"
        assert shortest(tuple(task["numbers"]), task["target"])
    forged = {key: (goal, actions[:1]) for key, (goal, actions) in past.reached.items()}
    less = checked(spec, candidates, History(past.played, past.known, forged, past.solved))
    if kind is Untaught:
        assert not less.accepted and set(reasons(less)) == {"the actions that reached it do not solve it"}
    else:
        assert {one.proof for one in less.accepted} == {"expert"}


def test_failures_take_turns_and_begin_with_what_is_solved_half_of_the_time() -> None:
    played = [Played({}, 0, 8, [{"g": 1}, {"g": 2}]), Played({}, 4, 8, [{"g": 3}]), Played({}, 8, 8, [])]
    assert list(failures(played)) == [{"g": 3}, {"g": 1}, {"g": 2}]


def no_arguments() -> list[dict[str, int]]:
    return []


@pytest.mark.parametrize(
    ("name", "env", "told"),
    [
        ("failure", Countdown, "did you mean 'failures'"),
        ("failures", Hidden, "no achieved_goal"),
        (f"{__name__}:no_arguments", Countdown, "source(played)"),
        (f"{__name__}:nothing", Countdown, "no 'nothing'"),
    ],
)
def test_a_source_that_cannot_work_is_refused(name: str, env: type, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_source(name, EnvSpec(env))
    assert told.lower() in str(error.value).lower() and "curriculum.source" in str(error.value)
