"""The vocabulary head at scored positions only, and the plain passes that a model is compared with before training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from offline_agent.training.prefix_sharing.trie import Pack, Sequence


def forest(vocabulary: int) -> list[Sequence]:
    """Return a small forest, every token scored: two roots, branches at several depths, a prefix, uneven leaves."""
    generator = torch.Generator().manual_seed(0)

    def some(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(vocabulary, (count,), generator=generator).tolist())

    # several at every depth, one a prefix of others: each case in which a path could be mixed up with another
    trunk, limb = some(17), some(9)
    ways = [trunk + limb + some(n) for n in (1, 6, 11)] + [trunk + some(13), trunk + some(4), trunk, some(12)]
    return [Sequence(way, (0, *[1] * (len(way) - 1))) for way in ways]


def alone(model: Any, sequences: list[Sequence], pack: Pack) -> torch.Tensor:
    """Return the log-probabilities [S] of a pack of fully scored sequences by plain passes of one each."""
    found = pack.target.new_zeros(pack.scored, dtype=torch.float32)
    for sequence, row in zip(sequences, pack.rows, strict=True):
        ids = torch.tensor(sequence.ids, device=found.device)
        logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1]
        found[row] = torch.log_softmax(logits.float(), -1).gather(-1, ids[1:, None])[:, 0]
    return found


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Turn dropout and gradients off inside the block; every module is as it was after it."""
    # each by itself: model.eval() and .train() would also set modules that a user froze in one mode
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


CHUNK = {"cpu": 1 << 24, "cuda": 1 << 28}  # logits of one chunk
Head = Callable[[torch.Tensor], torch.Tensor]


class _TargetLogProbability(torch.autograd.Function):
    """log softmax(logits)[target] in float32 or more, and the entropy; keeps one matrix for the backward pass."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, target: torch.Tensor, entropy: bool) -> Any:
        # in float32 whatever the model's format: differences of log-probabilities are small
        logps = torch.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
        ctx.save_for_backward(logps, target)
        ctx.dtype = logits.dtype
        spread = -(logps.exp() * logps).nan_to_num_(0.0).sum(-1) if entropy else logps.new_empty(0)  # 0 · log 0 = 0
        ctx.mark_non_differentiable(spread)
        return logps.gather(-1, target[:, None])[:, 0], spread

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        logps, target = ctx.saved_tensors  # softmax is its exp: nothing of the size of the logits is kept beside it
        grad = grads[0][:, None]
        # of log p_target by the logits: one at the target, less the probabilities
        out = logps.exp().mul_(-grad)
        out.scatter_add_(-1, target[:, None], grad)
        return out.to(ctx.dtype), None, None


def _chunk(head: Head, hidden: torch.Tensor, target: torch.Tensor, entropy: bool) -> tuple[torch.Tensor, torch.Tensor]:
    logps, spread = _TargetLogProbability.apply(head(hidden), target, entropy)
    return logps, spread


def score(
    head: Head, hidden: torch.Tensor, target: torch.Tensor, vocabulary: int, entropy: bool, limit: int | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the log-probabilities [S] of `target`, and the entropies [S], detached, where asked for.

    Both are float32, or float64 for a model in that format.

    Args:
        head: From hidden states [n, H] to logits [n, V].
        hidden: [S, H].
        target: [S] ids.
        vocabulary: V; it sizes the chunks.
        entropy: Whether entropies are wanted.
        limit: Most logits held at once; None = by device. Where all fit, nothing is computed twice.
    """
    # Only agent tokens are scored; logits of all positions at once would be the largest tensor of the whole step.
    rows = max(1, (limit or CHUNK.get(hidden.device.type, CHUNK["cuda"])) // max(1, vocabulary))
    if len(target) <= rows or not torch.is_grad_enabled():
        parts = [_chunk(head, h, t, entropy) for h, t in zip(hidden.split(rows), target.split(rows), strict=True)]
    else:
        parts = [
            checkpoint(_chunk, head, h, t, entropy, use_reentrant=False, preserve_rng_state=False)
            for h, t in zip(hidden.split(rows), target.split(rows), strict=True)
        ]
    # chunks are of positions, never of the vocabulary, so each softmax is the whole one
    logps = torch.cat([part[0] for part in parts])
    return logps, torch.cat([part[1] for part in parts]).detach() if entropy else None


def after_head(config: Any) -> Head:
    """Return the change that a model of this configuration makes to its logits: a factor or divisor and a soft cap.

    Known: `logit_scale` (Cohere), `output_multiplier`, `lm_head_multiplier` (Falcon-H1), `logits_scaling` (a divisor in
    Granite), `final_logit_softcapping` (Gemma). A model with another change is found by `check`, which compares with
    the model's own logits.
    """
    factors = (getattr(config, name, None) for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"))
    factor = next((value for value in factors if value is not None), None)
    divisor = getattr(config, "logits_scaling", None)
    cap = getattr(config, "final_logit_softcapping", None)

    def finish(logits: torch.Tensor) -> torch.Tensor:
        if factor is not None:
            logits = logits * factor
        elif divisor is not None:
            logits = logits / divisor
        return logits if cap is None else torch.tanh(logits / cap) * cap

    return finish
