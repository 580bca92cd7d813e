"""A reward model as a judge: the probability of success that a sequence classifier gives a trajectory."""

from __future__ import annotations

import threading
from pathlib import Path

from offline_agent.errors import ConfigError, DataError
from offline_agent.records import Trajectory, Verdict
from offline_agent.store.files import read_json
from offline_agent.training.models import set_threads
from offline_agent.training.reward.model import load_reward_model

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
