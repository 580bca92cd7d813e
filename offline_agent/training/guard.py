"""Checks of updates and weights: training stops before a bad update damages the model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offline_agent.errors import TrainingError
from offline_agent.training import checkpoints
from offline_agent.training.data.updates import Update

_NAMED = 8  # most rows or weights that a message names
_AFTER, _DROP, _ACCURACY = 20, 0.5, 0.9  # of `stalled`: updates, nats a token, accuracy on the pairs


@dataclass(frozen=True)
class Guard:
    """Refuses an update whose loss or gradient is no number or too large, and weights that are not finite.

    Args:
        max_loss, max_gradient: The largest allowed.
        folder: The folder of the checkpoints, for the message.
    """

    max_loss: float
    max_gradient: float
    folder: Path

    def loss(self, value: float, update: Update) -> None:
        """Raise TrainingError if the loss of an update is bad."""
        self._check("loss", value, self.max_loss, "guard.max_loss", update)

    def gradient(self, value: float, update: Update) -> None:
        """Raise TrainingError if the gradient norm of an update, before clipping, is bad."""
        self._check("gradient norm", value, self.max_gradient, "guard.max_gradient", update)

    def weights(self, broken: Sequence[str], silent: str | None, updates: int) -> None:
        """Raise TrainingError if weights are not finite, or so large that nothing computed with them is.

        Args:
            broken: Names of those that are not finite.
            silent: A row of which no log-probability is finite; None = there is none.
            updates: Number of updates behind the weights.
        """
        if not broken and silent is None:
            return
        fault = f"not finite: {_names(broken)}" if broken else f"so large that no log-probability of {silent} is finite"
        left = checkpoints.newest(self.folder)
        kept = f"the last good checkpoint is {left}" if left else "there is no checkpoint yet"
        again = ""
        if left is not None and (left / "config.json").exists():  # not adapters alone
            again = f", from the last good weights with model.path={left}"
        raise TrainingError(
            f"update {updates}: it made weights that are {fault}. They were not saved; {kept}. "
            f"Lower optimizer.learning_rate, or optimizer.clip, and begin in another run_dir{again}."
        )

    def _check(self, what: str, value: float, limit: float, key: str, update: Update) -> None:
        if math.isfinite(value) and value <= limit:
            return
        left = checkpoints.newest(self.folder)
        kept = f"the last good checkpoint is {left}" if left else "there is no checkpoint yet"
        raise TrainingError(
            f"update {update.number + 1}: its {what} is {value:.6g}, allowed: a number up to {limit:g} ({key}). "
            f"The model was not changed by it; {kept}. Its rows: {_names([u.name for u in update.rows])}"
            + (f"; replayed: {_names([u.name for u in update.anchors])}" if update.anchors else "")
            + ". Look at them, or lower optimizer.learning_rate."
        )


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def stalled(records: Iterable[dict[str, Any]]) -> str | None:
    """Return a warning where pairs are classified well while the chosen sides become unlikely; else None."""
    entries = list(records)
    if len(entries) < _AFTER:
        return None
    tenth = max(1, len(entries) // 10)
    fell = _mean(entries[:tenth], "sft") - _mean(entries[-tenth:], "sft")
    known = [entry for entry in entries[-tenth:] if "accuracy" in entry]
    accuracy = _mean(known, "accuracy") if known else 0.0
    if accuracy < _ACCURACY or -fell < _DROP:
        return None
    return (
        f"accuracy on the pairs is {accuracy:.2f}, but a chosen token's log-probability fell by {-fell:.2f} on "
        "average: the policy forgets what it could do; raise dpo.sft or anchor.weight, or lower optimizer.learning_rate"
    )


def _mean(entries: Sequence[dict[str, Any]], name: str) -> float:
    return sum(float(entry[name]) for entry in entries) / len(entries)
