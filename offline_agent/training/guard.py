"""Checks of updates, weights and checkpoints: training stops before a bad update damages the model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list

from offline_agent.errors import TrainingError
from offline_agent.policies.hf.loading import not_finite
from offline_agent.training import checkpoints
from offline_agent.training.data.updates import Unit, Update
from offline_agent.training.sharding import ShardedWeights

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


class CheckedWeights(ShardedWeights):
    """The checks; it comes before a trainer of transformers in the order of bases.

    Attributes:
        folder: The folder of the checkpoints.
        guard: Raises where something is wrong.
        notes: Notes for the user on damaged checkpoints.
    """

    folder: Path
    guard: Guard
    state: Any
    notes: Sequence[str] = ()
    _update: Update | None

    def trained(self) -> list[torch.Tensor]:
        """Return every tensor that is trained."""
        raise NotImplementedError

    def score(self, model: Any, units: Sequence[Unit], entropy: bool = False) -> tuple[Any, Any]:
        """Return the pack of the units and the scores of its tokens."""
        raise NotImplementedError

    def check_weights(self) -> None:
        """Raise TrainingError where weights are not finite, or the model answers nothing finite; in all processes."""
        broken = self._broken()
        self.guard.weights(broken, None if broken else self._silent(), self.state.global_step)

    def _broken(self) -> list[str]:
        """Return the names of weights that are not finite, in any process."""
        own = {id(weights) for weights in self.model.parameters()}
        others = [(f"value head {n}", each) for n, each in enumerate(self.trained()) if id(each) not in own]
        broken = not_finite([*self.model.named_parameters(), *others])
        if self.accelerator.num_processes > 1:
            found: list[Any] = [None] * self.accelerator.num_processes
            torch.distributed.all_gather_object(found, broken)
            broken = list(dict.fromkeys(name for names in found for name in names))
        return broken

    def _silent(self) -> str | None:
        """Return the shortest row of the last update if log-probabilities of it are not finite, else None."""
        rows = () if self._update is None else (*self._update.rows, *self._update.anchors)
        if not rows:
            return None
        unit, training = min(rows, key=lambda unit: unit.raw_tokens), self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                pack, scores = self.score(self.model, [unit])
        finally:
            self.model.train(training)
        sound = all(bool(torch.isfinite(scores.logps[row]).all()) for row in pack.rows)
        return None if sound else unit.name

    def resumed(self) -> Path | None:
        """Return the checkpoint to go on from, the same in all processes: the first one looks."""
        found: list[Any] = [None, []]
        if self.accelerator.is_main_process:
            try:
                found = list(checkpoints.resume(self.folder))
            except TrainingError as error:
                found = [error, []]
        if self.accelerator.num_processes > 1:
            broadcast_object_list(found)
        place, self.notes = found
        if isinstance(place, TrainingError):
            raise place
        return place if place is None else Path(place)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        with checkpoints.loading(resume_from_checkpoint):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with checkpoints.loading(checkpoint or self.folder):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with checkpoints.loading(checkpoint or self.folder):
            super()._load_rng_state(checkpoint)  # type: ignore[misc]


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
