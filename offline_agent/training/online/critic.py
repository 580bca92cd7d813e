"""Critic: a value head on the hidden states."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


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
