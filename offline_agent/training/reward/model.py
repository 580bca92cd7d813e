"""A sequence classifier of trajectories: loading, encoding, and its probability of success.

Any checkpoint of transformers for sequence classification will do: with one output its sigmoid is the probability of
success, with two the softmax of the second.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from offline_agent.errors import ConfigError
from offline_agent.policies.base import DEFAULT_MODEL
from offline_agent.policies.hf.loading import check_finite, check_whole, model_hash
from offline_agent.records import Context
from offline_agent.rendering.hub import load
from offline_agent.rendering.renderer import Renderer
from offline_agent.training.models import positions


class RewardModel:
    """A classifier and the renderer of its tokenizer.

    Args:
        model: A transformers model for sequence classification, with one or two outputs.
        renderer: Renders histories to its ids.
        longest: Most tokens that it is shown; None = as many as it has positions.

    Attributes:
        version: A hash of its weights.
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
        ids = self.renderer.context_ids(context)
        if len(ids) <= self.longest:
            return ids
        head = self.longest // 2
        return ids[:head] + ids[len(ids) - (self.longest - head) :]

    def logits(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Return the logit of success of each row, float [rows]."""
        width = max(map(len, rows))
        pad = self.model.config.pad_token_id
        ids = torch.full((len(rows), width), pad, dtype=torch.long)
        mask = torch.zeros((len(rows), width), dtype=torch.long)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = torch.tensor(row)
            mask[number, : len(row)] = 1
        out = self.model(input_ids=ids.to(self.device), attention_mask=mask.to(self.device)).logits.float()
        return out[:, 0] if out.shape[1] == 1 else out[:, 1] - out[:, 0]

    @torch.no_grad()
    def probabilities(self, rows: Sequence[Sequence[int]], at_once: int = 16) -> list[float]:
        """Return the probability of success of each row, float [rows]."""
        self.model.eval()
        out: list[float] = []
        for start in range(0, len(rows), at_once):
            out += torch.sigmoid(self.logits(rows[start : start + at_once])).tolist()
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
