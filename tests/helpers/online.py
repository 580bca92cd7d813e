"""Rounds that are the same whenever they are played, without an environment."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from offline_agent.training.online.objectives import Objective, ObjectiveSection, objective
from offline_agent.training.online.round_batch import Algorithm, PlayedRound
from offline_agent.training.online.samples import TrainingSample
from offline_agent.training.online.settings import (
    CriticSection,
    GroupSettings,
    OnlineSettings,
    SamplerSection,
)
from offline_agent.training.online.trainer import OnlineTrainer, RoundSchedule, train_online
from offline_agent.training.settings import TrainResult
from offline_agent.training.trainer import TrainRun
from tests.helpers.rendering import qwen
from tests.helpers.training import VOCABULARY, model, settings, side


def samples(number: int = 0, groups: int = 2, size: int = 3, critic: bool = False) -> list[TrainingSample]:
    """Return the trajectories of a round; those of a group share their beginning."""
    chance = random.Random(number)
    out = []
    for group in range(groups):
        start = tuple(chance.randrange(1, VOCABULARY) for _ in range(5))
        for member in range(size):
            ids, mask = side(chance, chance.randint(1, 3))
            given = (*start, *ids), (*[0] * len(start), *mask)
            turns: list[int] = []
            for place, own in enumerate(given[1]):
                if own and not given[1][place - 1]:
                    turns.append(0)
                if own:
                    turns[-1] += 1
            advantage = chance.gauss(0, 1)
            out.append(
                TrainingSample(
                    f"round {number}, task-{group}/{member}",
                    f"task-{group}",
                    *given,
                    tuple(-chance.random() for _ in range(sum(turns))),
                    tuple(turns),
                    chance.random(),
                    None if critic else (advantage,) * sum(turns),
                )  # fmt: skip
            )
    return out


def rounds(
    critic: bool = False, temperature: float = 1.0, empty: Sequence[int] = ()
) -> Callable[[int, Any], PlayedRound]:
    """Return something that plays, whatever the model."""

    def play(number: int, model: Any) -> PlayedRound:
        drawn = [] if number in empty else samples(number, critic=critic)
        facts = {"reward_mean": 0.5, "env_steps": 10 * (number + 1), "tools": {"go": 1.0}}
        return PlayedRound(drawn, temperature, facts)

    return play


def online(rounds: int = 3, **changes: Any) -> OnlineSettings:
    """Return settings of rounds, with keys of the sections changed."""
    sections = {}
    for name, kind in (
        ("objective", ObjectiveSection), ("critic", CriticSection), ("sampler", SamplerSection),
    ):  # fmt: skip
        sections[name] = kind(**{key: changes.pop(key) for key in list(changes) if key in kind.model_fields})
    assert not changes
    return OnlineSettings(rounds, **sections)


def credited(credit: str, **more: Any) -> GroupSettings:
    """Return settings of rounds with a way of credit."""
    return GroupSettings(**{"credit": credit, **more})


def train(
    folder: Path,
    trained: Any = None,
    chosen: Objective | None = None,
    play: Callable[[int, Any], PlayedRound] | None = None,
    log: Callable[[dict[str, Any]], None] = lambda record: None,
    watch: Callable[[Mapping[str, Any]], int | None] | None = None,
    more: Mapping[str, Any] | None = None,
    **changes: Any,
) -> TrainResult:
    """Train for a few rounds."""
    chosen = chosen or objective("grpo")
    critic = chosen.baseline == "value"
    return train_online(
        model() if trained is None else trained, qwen(), play or rounds(critic),
        settings(**{"every": 1, **dict(more or {})}), Algorithm(chosen, online(**changes)),
        TrainRun(folder, log, watch=watch),
    )  # fmt: skip


def trainer(folder: Path, chosen: Objective, play: Callable[[int, Any], PlayedRound], **changes: Any) -> OnlineTrainer:
    """Return a trainer ready for a step."""
    given, own = settings(**changes.pop("more", {})), online(**changes)
    plan = RoundSchedule(own.rounds * own.per_round, own.per_round)
    run = TrainRun(folder, lambda record: None)
    return OnlineTrainer(model(), qwen(), plan, given, run, rounds=play, algorithm=Algorithm(chosen, own))
