"""Reward models: sequence classifiers of trajectories, trained on verdicts, read by `judge=reward_model`.

Any checkpoint of transformers for sequence classification will do: with one output its sigmoid is the probability of
success, with two the softmax of the second. Training holds out whole tasks (WebRL's ORM, Qi et al. 2024).
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from offline_agent.errors import ConfigError, DataError, TrainingError
from offline_agent.policies.base import DEFAULT_MODEL
from offline_agent.policies.hf.loading import check_finite, check_whole, model_hash
from offline_agent.records import Context, Trajectory, Verdict
from offline_agent.rendering.hub import load
from offline_agent.rendering.renderer import Renderer
from offline_agent.store.files import read_json
from offline_agent.training.models import positions, set_threads
from offline_agent.training.settings import RewardModelSection


class RewardModel:
    """A classifier and the renderer of its tokenizer.

    Args:
        model: A transformers model for sequence classification, with one or two outputs.
        renderer: Renders histories to its ids.
        longest: Most tokens that it is shown; None = as many as it has positions.
    """

    def __init__(self, model: Any, renderer: Renderer, longest: int | None = None) -> None:
        self.model = model
        self.renderer = renderer
        room = positions(model)
        self.longest = room if longest is None else min(longest, room)

    @property
    def version(self) -> str:
        """A hash of its weights."""
        return model_hash(self.model)[:12]

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.model.parameters()).device  # type: ignore[no-any-return]

    def encode(self, context: Context) -> list[int]:
        """Return a history's ids, int [n]; of one that is too long as much of both ends as there is room for.

        Raises:
            DataError: The history is of a log that has no ids for it.
        """
        return self.fit(self.renderer.context_ids(context))

    def fit(self, ids: list[int]) -> list[int]:
        """Return ids, int [n], without the middle where they are too long."""
        if len(ids) <= self.longest:
            return ids
        head = self.longest // 2
        return ids[:head] + ids[len(ids) - (self.longest - head) :]

    def padded(self, rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """Return the model's arguments for rows: ids and their mask, int [rows, longest]."""
        width = max(map(len, rows))
        pad = self.model.config.pad_token_id
        ids = torch.full((len(rows), width), pad, dtype=torch.long)
        mask = torch.zeros((len(rows), width), dtype=torch.long)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = torch.tensor(row)
            mask[number, : len(row)] = 1
        return {"input_ids": ids.to(self.device), "attention_mask": mask.to(self.device)}

    def logits(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Return the logit of success of each row, float [rows]."""
        out = self.model(**self.padded(rows)).logits.float()
        return out[:, 0] if out.shape[1] == 1 else out[:, 1] - out[:, 0]

    @torch.no_grad()
    def probabilities(
        self, rows: Sequence[Any], at_once: int = 16, logits: Callable[[Sequence[Any]], Tensor] | None = None
    ) -> list[float]:
        """Return the probability of success of each row, float [rows]; `logits` are those of rows of another form."""
        self.model.eval()
        out: list[float] = []
        for start in range(0, len(rows), at_once):
            out += torch.sigmoid((logits or self.logits)(rows[start : start + at_once])).tolist()
        return out


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """Keep transformers from reporting a missing head: a new one is asked for, or its lack is told here."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def load_reward_model(
    path: str | None, key: str, chat_template: str | None = None, longest: int | None = None, seed: int | None = None
) -> RewardModel:
    """Return the reward model of a folder or a hub name, on CUDA where there is one.

    Args:
        path: A checkpoint for sequence classification; or, with a seed, any model that gets a new head. None = the
            embedded default model.
        key: The configuration key, for messages.
        chat_template: Replaces the tokenizer's own: qwen, llama3, plain, a file, or its text.
        longest: See `RewardModel`.
        seed: Draws a new head of one output where the checkpoint has none; None = a checkpoint without one is refused.

    Raises:
        ConfigError: It cannot be loaded, has no head and there is no seed, or another number of outputs.
    """
    from transformers import AutoModelForSequenceClassification

    folder = Path(DEFAULT_MODEL if path is None else path).expanduser()
    source = str(folder) if path is None or folder.exists() else path
    check_whole(Path(source), key)
    renderer = Renderer.load(source, chat_template)
    options: dict[str, Any] = {} if seed is None else {"num_labels": 1}
    if seed is not None:
        torch.manual_seed(seed)
    with _hushed():
        model, loaded = load(
            AutoModelForSequenceClassification, source, key, "a sequence classifier",
            dtype=torch.float32, use_safetensors=True, output_loading_info=True, **options,
        )  # fmt: skip
    if seed is None and loaded["missing_keys"]:
        raise ConfigError(
            f"{key}: {source!r} has no trained head (missing: {', '.join(sorted(loaded['missing_keys'])[:3])}); train "
            "one with python -m offline_agent.pipelines.train_reward"
        )
    check_finite(model, key, source)
    if model.config.num_labels not in (1, 2):
        raise ConfigError(f"{key}: {source!r} has {model.config.num_labels} outputs, allowed: 1, or 2 (the second is "
                          "success)")  # fmt: skip
    if model.config.pad_token_id is None:  # the head looks for the last token that is no padding
        pad = getattr(renderer.tokenizer, "pad_token_id", None)
        model.config.pad_token_id = renderer.end_id if pad is None else pad
    place = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
    return RewardModel(model.to(place), renderer, longest)


FIGURES = "reward_model.json"
"""A file beside the weights: how the model was trained, and its held-out accuracy."""


class RewardModelJudge:
    """Scores a trajectory by a sequence classifier (`judge=reward_model`). It never sees the environment's verdict.

    Args:
        path: A folder that `train_reward` wrote, or any checkpoint for sequence classification.
        threshold: Least probability that is a success.
        turns: Put the probability after each turn into the evidence: the model as a process reward model.
        chat_template: Replaces the tokenizer's own; a checkpoint that has none needs it, e.g. plain.

    Raises:
        ConfigError: It cannot be loaded, or the threshold is none.
    """

    name = "reward_model"
    deterministic = True

    def __init__(
        self, path: str, threshold: float = 0.5, turns: bool = False, chat_template: str | None = None
    ) -> None:
        if not 0 < threshold <= 1:
            raise ConfigError(f"judge.threshold: got {threshold!r}, allowed: above 0, to 1")
        self._reward = load_reward_model(path, "judge.path", chat_template)
        set_threads(None, self._reward.model)
        self.version = self._reward.version
        self._threshold = threshold
        self._turns = turns
        self._lock = threading.Lock()  # one at a time: torch has its own threads
        self._figures: dict[str, object] = {}
        file = Path(path) / FIGURES
        if file.is_file():
            self._figures = {"held_out": read_json(file).get("held_out")}

    def __call__(self, trajectory: Trajectory) -> Verdict:
        """Return the verdict; no score where the history cannot be rendered."""
        contexts = trajectory.context.lineage()[1:] if self._turns else []
        try:
            rows = [self._reward.encode(context) for context in (*contexts, trajectory.context)]
        except DataError as error:
            return Verdict(None, None, self.name, self.version, error=str(error))
        with self._lock:
            found = self._reward.probabilities(rows)
        evidence: dict[str, object] = {"probability": found[-1], "threshold": self._threshold, **self._figures}
        if self._turns:
            evidence["turns"] = found[:-1]
        return Verdict(found[-1], found[-1] >= self._threshold, self.name, self.version, evidence)


class Example(NamedTuple):
    """One trajectory.

    Attributes:
        task_id: Its task.
        ids: int [n], as `RewardModel.encode` gives them.
        success: The verifier's verdict; with turns whether the last one's value is above 0.
        turns: Labels of turns, the last turn first: the place in `ids` where it ends, its value in [0, 1], its visits.
    """

    task_id: str
    ids: list[int]
    success: bool
    turns: tuple[tuple[int, float, int], ...] = ()


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


def outcome_loss(reward: RewardModel, batch: Sequence[Example]) -> Tensor:
    """Return the mean of −log P(verdict), 0-d."""
    wanted = torch.tensor([float(one.success) for one in batch], device=reward.device)
    logits = reward.logits([one.ids for one in batch])
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, wanted)


def train_reward(
    reward: RewardModel, examples: Sequence[Example], settings: RewardModelSection, seed: int,
    log: Callable[[int, int, float], None], loss_of: Callable[[RewardModel, list[Example]], Tensor] = outcome_loss,
) -> None:  # fmt: skip
    """Train a reward model, in place; the learning rate rises for a tenth of the updates, then falls along a cosine.

    Args:
        reward: The model.
        examples: Those to train on.
        settings: Keys of the training.
        seed: Draws the order.
        log: Called after each update with its number, the number of all, and its loss.
        loss_of: What is minimised.

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
    update = 0
    for epoch in range(settings.epochs):
        order = list(range(len(examples)))
        random.Random(f"{seed} {epoch}").shuffle(order)
        model.train()
        for start in range(0, len(order), settings.rows):
            batch = [examples[at] for at in order[start : start + settings.rows]]
            loss = loss_of(reward, batch)
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
