"""Checks of a trainer's weights before they are kept, and of a checkpoint before it is gone on from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list

from offline_agent.errors import TrainingError
from offline_agent.policies.hf.loading import not_finite
from offline_agent.training import checkpoints
from offline_agent.training.data.updates import Unit, Update
from offline_agent.training.guard import Guard
from offline_agent.training.sharding import ShardedWeights


class CheckedWeights(ShardedWeights):
    """The checks; it comes before a trainer of transformers in the order of bases.

    Attributes:
        folder: Where the checkpoints are.
        guard: Raises where something is wrong.
        notes: What the user should be told of damaged checkpoints.
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
