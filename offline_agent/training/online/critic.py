"""Critic: a value head on the hidden states, and its part in a trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from offline_agent.training import checkpoints
from offline_agent.training.trainer import PackedTrainer

_FILE = "critic.pt"


class Critic(nn.Module):
    """A value head: a linear map from the hidden state that predicts a token to the expected return; 0 at the start.

    Args:
        model: The model whose hidden states it reads.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.head = nn.Linear(model.config.get_text_config().hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return values [S] of hidden states [S, H], in float32."""
        values: Tensor = self.head(hidden.to(self.head.weight.dtype))
        return values[:, 0]

    def save(self, folder: Path) -> None:
        """Write the head beside a checkpoint's other files."""
        torch.save(self.state_dict(), folder / _FILE)

    def load(self, folder: Path) -> None:
        """Read what `save` wrote."""
        self.load_state_dict(torch.load(folder / _FILE, map_location="cpu", weights_only=True))


class CriticTrainer(PackedTrainer):
    """A trainer that may have a critic: it is optimised, saved and loaded with the model.

    Attributes:
        critic: The value head; None without one.
        value_rate: Its learning rate.
    """

    critic: Critic | None
    value_rate: float
    optimizer: Any

    def trained(self) -> list[Tensor]:
        """Return every tensor that is trained."""
        return [*super().trained(), *(self.critic.parameters() if self.critic is not None else ())]

    def create_optimizer(self, *more: Any, **named: Any) -> Any:
        """Add the critic to the optimizer, with its own learning rate."""
        optimizer = super().create_optimizer(*more, **named)  # type: ignore[misc]
        if not self.sharded:  # sharding needs an optimizer of the model's parameters alone: see `create_scheduler`
            self._add_critic(optimizer)
        return optimizer

    def create_scheduler(self, *more: Any, **named: Any) -> Any:
        """Create the schedule, for the critic's learning rate too."""
        if self.sharded:
            self._add_critic(self.optimizer.optimizer)
        return super().create_scheduler(*more, **named)  # type: ignore[misc]

    def _add_critic(self, optimizer: Any) -> None:
        if self.critic is not None and not any(group.get("critic") for group in optimizer.param_groups):
            group = {"params": list(self.critic.parameters()), "lr": self.value_rate, "weight_decay": 0.0}
            optimizer.add_param_group({**group, "critic": True})

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)  # type: ignore[misc]
        if self.critic is not None and output_dir is not None:
            self.critic.save(Path(output_dir))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if self.critic is not None:
            with checkpoints.loading(resume_from_checkpoint):
                self.critic.load(Path(resume_from_checkpoint))
