"""A value head: the expected return of what follows, read off the hidden state that each token is predicted from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

_FILE = "critic.pt"


class Critic(nn.Module):
    """One linear map from hidden states to values, 0 at the beginning.

    Args:
        model: Whose hidden states it reads.
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
