"""Checks by experiment: whether slots support a model, and whether answers are independent of the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from offline_agent.errors import ConfigError, PolicyError
from offline_agent.policies.hf.attention import NAME, ROW_STEP, DecodingRow, Piece, SlotCache, SlotPlan, round_up
from offline_agent.policies.hf.sampling import sample

T = TypeVar("T")
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}  # of the largest logit


class ModelRunner:
    """Calls the model on packed batches.

    Args:
        model: A model with the slot attention.
        threads: Number of torch's threads while it runs.
    """

    def __init__(self, model: Any, threads: int) -> None:
        self.model = model
        self._threads = threads

    def guarded(self, work: Callable[[], T]) -> T:
        """Return `work()`, executed without gradients and with the policy's number of threads."""
        before = torch.get_num_threads()
        if before != self._threads:
            torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                return work()
        finally:
            if before != self._threads:
                torch.set_num_threads(before)

    def logits(self, ids: torch.Tensor, positions: torch.Tensor, plan: SlotPlan, keep: torch.Tensor) -> torch.Tensor:
        """Return [len(keep), vocabulary], the logits after the packed tokens `keep`."""
        out = self.model(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=keep, slot_plan=plan)
        return out.logits[0]

    def packed(
        self, cache: SlotCache, rows: list[tuple[int, int, list[int]]], pieces: list[tuple[int, int, list[int]]]
    ) -> torch.Tensor:
        """Return the logits after every token of a batch; used by the checks.

        Args:
            cache: The slots.
            rows: Decoding slots: (slot, first position, ids).
            pieces: Parts of prompts: (slot, first position, ids).
        """
        ids: list[int] = []
        positions: list[int] = []
        packed = []
        for slot, start, tokens in (*rows, *pieces):
            packed.append(Piece(slot, len(ids), start, len(tokens)))
            ids.extend(tokens)
            positions.extend(range(start, start + len(tokens)))
        extra = [0] * (round_up(len(ids), ROW_STEP) - len(ids))
        device = cache.data.device
        plan = SlotPlan(cache, [DecodingRow(slot, start, len(t)) for slot, start, t in rows], packed[len(rows) :])
        keep = torch.arange(len(ids) + len(extra), device=device)
        logits = self.logits(
            torch.tensor([ids + extra], device=device), torch.tensor([positions + extra], device=device), plan, keep
        )
        return logits[: len(ids)]


def check_supported(model: Any, runner: ModelRunner, cache: SlotCache) -> None:
    """Compare the slot attention with the model's own on a random prompt.

    Raises:
        ConfigError: The model does not use causal attention over positions; names the remedy.
    """
    kind = getattr(model.config, "model_type", type(model).__name__)
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None) or 0
    length = min(window + 9 if window < 200 else 25, cache.capacity, getattr(config, "max_position_embeddings", 25))
    ids = _random_ids(config.vocab_size, length, 1)

    def both() -> tuple[torch.Tensor, torch.Tensor]:
        runner.packed(cache, [], [(0, 0, ids[:-2])])
        ours = torch.stack([runner.packed(cache, [(0, at, [ids[at]])], [])[0] for at in (length - 2, length - 1)])
        try:
            model.set_attn_implementation("sdpa")
        except ValueError:
            model.set_attn_implementation("eager")
        try:
            theirs = model(input_ids=torch.tensor([ids], device=cache.data.device), use_cache=False).logits[0, -2:]
        finally:
            model.set_attn_implementation(NAME)
        return ours.float(), theirs.float()

    try:
        ours, theirs = runner.guarded(both)
    except Exception as error:  # an unsupported architecture may raise errors of any class
        raise ConfigError(
            f"policy.model: a model of type {kind!r} cannot be run by the hf policy ({type(error).__name__}: {error}); "
            "serve it and use policy=server"
        ) from error
    if not bool(torch.isfinite(theirs).all()):
        raise ConfigError(
            "policy.model: the logits of a random prompt are not finite, though its weights are: they are too large "
            f"for {str(model.dtype).removeprefix('torch.')}. Set policy.dtype=float32, or give an earlier checkpoint "
            "of the training that made it"
        )
    difference, size = (ours - theirs).abs().max().item(), theirs.abs().max().item()
    if not difference <= TOLERANCE[model.dtype] * max(size, 1.0):
        raise ConfigError(
            f"policy.model: a model of type {kind!r} gives other logits in slots (by {difference:.3g} of {size:.3g}): "
            "its attention is not plain causal attention over positions; serve it and use policy=server"
        )


def verify_batch_invariance(runner: ModelRunner, cache: SlotCache) -> bool:
    """Return whether one history gives the same bits at once and in pieces, in any batch, prefilled and decoded."""
    config = runner.model.config.get_text_config()
    longest = min(getattr(config, "max_position_embeddings", cache.capacity), cache.capacity)
    ids = _random_ids(config.vocab_size, min(331, longest), 2)
    others = [_random_ids(config.vocab_size, 90, 3 + i) for i in range(3)]
    return runner.guarded(lambda: _routes_agree(runner, cache, ids, others))


def _routes_agree(runner: ModelRunner, cache: SlotCache, ids: list[int], others: list[list[int]]) -> bool:
    size, last = len(ids), cache.slots - 1
    whole = runner.packed(cache, [], [(0, 0, ids)])
    known = cache.read(0, 0, size)
    at, parts = 0, [1, 2, 3, 5, 33, 17, 35, 4, 61]
    logits: list[torch.Tensor] = []
    while at < size:  # in pieces of odd sizes, behind other prompts
        count = min(parts[len(logits) % len(parts)], size - at)
        company = [(0, 0, others[0][: 1 + at % 70])] if last and len(logits) % 2 else []
        logits.append(runner.packed(cache, [], [*company, (last, at, ids[at : at + count])])[-count:])
        at += count
    same = torch.equal(torch.cat(logits), whole) and torch.equal(cache.read(last, 0, size), known)
    for rows in sorted({1, min(2, cache.slots), min(13, cache.slots), cache.slots}):  # decoded, in batches of any size
        count = 1 + rows % cache.shape.span
        slot, at = rows - 1, size - count - rows * 5 % (size - count)
        cache.data[:, :, slot, :, :at] = known[..., :at, :]
        batch = [
            (row, row % 60, others[1][row % 80 : row % 80 + 1 + row % cache.shape.span]) for row in range(rows - 1)
        ]
        after = runner.packed(cache, [*batch, (slot, at, ids[at : at + count])], [(0, 0, others[2][:7])][: rows - 1])
        first = sum(len(tokens) for _, _, tokens in batch)
        same &= torch.equal(after[first : first + count], whole[at : at + count])
        same &= torch.equal(cache.read(slot, at, at + count), known[..., at : at + count, :])
    seeds, spots, warm = list(range(size)), [i % 9 for i in range(size)], [0.7] * size
    drawn, logps = sample(whole, seeds, spots, warm)
    for i in range(0, size, 9):
        same &= sample(whole[i : i + 1], [i], [i % 9], [0.7]) == ([drawn[i]], [logps[i]])
    return bool(same)


def _random_ids(vocabulary: int, count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary, (count,), generator=generator).tolist()


def check_ids(ids: Sequence[int], vocabulary: int) -> None:
    """Check that ids are in the model's vocabulary.

    Raises:
        PolicyError: An id is not; names the first.
    """
    for token in ids:
        if not 0 <= token < vocabulary:
            raise PolicyError(f"got id {token}, allowed: 0 to {vocabulary - 1}")
