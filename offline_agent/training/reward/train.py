"""Training of an outcome reward model on verdicts (WebRL's ORM, Qi et al. 2024), with tasks held out whole."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from offline_agent.errors import ConfigError, TrainingError
from offline_agent.training.reward.model import RewardModel


class Example(NamedTuple):
    """One trajectory.

    Attributes:
        task_id: Its task.
        ids: int [n], as `RewardModel.encode` gives them.
        success: The verifier's verdict.
    """

    task_id: str
    ids: list[int]
    success: bool


class RewardSettings(NamedTuple):
    """Settings of the training.

    Attributes:
        epochs: Passes over the examples.
        learning_rate: Of AdamW, highest after a tenth of the updates, falling to 0 along a cosine.
        rows: Examples of one update.
        weight_decay: Of AdamW.
        clip: Largest norm of a gradient.
        seed: Draws the order.
    """

    epochs: int
    learning_rate: float
    rows: int
    weight_decay: float
    clip: float
    seed: int


def split(examples: Sequence[Example], held_out: float, seed: int) -> tuple[list[Example], list[Example]]:
    """Return the examples to train on and those held out: whole tasks, drawn by the seed.

    Raises:
        ConfigError: One part has no task, or those to train on have one class alone.
    """
    tasks = sorted({example.task_id for example in examples})
    random.Random(f"reward model {seed}").shuffle(tasks)
    count = max(1, round(held_out * len(tasks)))
    apart = set(tasks[:count])
    train = [example for example in examples if example.task_id not in apart]
    test = [example for example in examples if example.task_id in apart]
    if not train or len({example.success for example in train}) < 2:
        raise ConfigError(
            f"source: {len(tasks)} tasks with {sum(one.success for one in examples)} successes of {len(examples)} "
            f"leave nothing to train on beside {count} tasks held out; needed are tasks with successes and failures"
        )
    return train, test


def train_reward(
    reward: RewardModel, examples: Sequence[Example], settings: RewardSettings, log: Callable[[int, int, float], None]
) -> None:
    """Train a reward model, in place. Minimised is the mean of −log P(verdict).

    Args:
        reward: The model.
        examples: Those to train on.
        settings: Settings of the training.
        log: Called after each update with its number, the number of all, and its loss.

    Raises:
        TrainingError: The loss is no number.
    """
    model = reward.model
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    per_epoch = math.ceil(len(examples) / settings.rows)
    total = per_epoch * settings.epochs
    warm = max(1, total // 10)

    def rate(update: int) -> float:
        if update < warm:
            return (update + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (update - warm) / max(1, total - warm)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    loss_of = torch.nn.BCEWithLogitsLoss()
    update = 0
    for epoch in range(settings.epochs):
        order = list(range(len(examples)))
        random.Random(f"{settings.seed} {epoch}").shuffle(order)
        model.train()
        for start in range(0, len(order), settings.rows):
            batch = [examples[at] for at in order[start : start + settings.rows]]
            wanted = torch.tensor([float(one.success) for one in batch], device=reward.device)
            loss = loss_of(reward.logits([one.ids for one in batch]), wanted)
            if not torch.isfinite(loss):
                raise TrainingError(f"the loss of update {update + 1} is {loss.item()}; lower learning_rate")
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            update += 1
            log(update, total, float(loss.item()))
    model.eval()
