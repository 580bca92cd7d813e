"""Checks by experiment: whether slots support a model, and whether answers are independent of the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from offline_agent.errors import ConfigError
from offline_agent.policies.hf import embedding
from offline_agent.policies.hf.architecture import Unpackable, check_layers, distance, length_limit, lowered
from offline_agent.policies.hf.attention import NAME, ROW_STEP, DecodingRow, Piece, SlotPlan
from offline_agent.policies.hf.kv_cache import SlotCache, round_up
from offline_agent.policies.hf.sampling import sample
from offline_agent.rendering.vision import Vision

T = TypeVar("T")
_ROOM = 4  # times the rounding allowed to prefix sharing: a model is refused here, there it is only slower
_REMEDY = "serve it and use policy=server"


class ModelRunner:
    """Calls the model on packed batches.

    Args:
        model: A model with the slot attention.
        threads: Number of torch's threads while it runs.
    """

    def __init__(self, model: Any, threads: int) -> None:
        self.model = model
        self._threads = threads
        self.features: dict[str, torch.Tensor] = {}  # of pictures, while the weights stay as they are

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
        given = embedding.inputs(self.model, ids, self.features)
        out = self.model(**given, position_ids=positions, use_cache=False, logits_to_keep=keep, slot_plan=plan)
        return out.logits[0]

    def packed(
        self,
        cache: SlotCache,
        rows: list[tuple[int, int, list[int]]],
        pieces: list[tuple[int, int, list[int]]],
        seen: list[int | None] | None = None,
    ) -> torch.Tensor:
        """Return the logits after every token of a batch; used by the checks.

        Args:
            cache: The slots.
            rows: Decoding slots: (slot, first position, ids).
            pieces: Parts of prompts: (slot, first position, ids).
            seen: Set to the window that each call of the attention asked for.
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
        if seen is not None:
            seen[:] = plan.seen
        return logits[: len(ids)]


def read_pictures(model: Any, vision: Vision | None) -> None:
    """Give a model with the slot attention its `Vision`; see `embedding.read_pictures`."""
    model.set_attn_implementation("sdpa")
    try:
        embedding.read_pictures(model, vision, "policy.model")
    finally:
        model.set_attn_implementation(NAME)


def check_supported(model: Any, runner: ModelRunner, cache: SlotCache, max_context: int) -> None:
    """Check that slots give what the model's own attention gives: by its architecture, then on random prompts.

    Args:
        model: The model.
        runner: Of the model.
        cache: The slots.
        max_context: Most ids of a sequence.

    Raises:
        ConfigError: They do not; names the reason and the remedy.
    """
    what = f"policy.model: a model of type {getattr(model.config, 'model_type', type(model).__name__)!r}"
    config = model.config.get_text_config()
    limit = length_limit(config)
    if limit is not None and max_context > limit:
        raise ConfigError(
            f"{what} encodes all positions of a history in another way once it is longer than {limit} ids, so "
            f"histories up to policy.max_context={max_context} cannot be computed side by side; set "
            f"policy.max_context={limit}, or {_REMEDY}"
        )
    length = min(25, cache.capacity, getattr(config, "max_position_embeddings", 25))
    ids = _random_ids(config.vocab_size, length, 1)
    try:
        with lowered(model):
            own, theirs = runner.guarded(lambda: _both_ways(model, runner, cache, ids))
    except Unpackable as error:
        raise ConfigError(f"{what} cannot be run by the hf policy: {error}; {_REMEDY}") from error
    except Exception as error:  # an unsupported architecture may raise errors of any class
        raise ConfigError(
            f"{what} cannot be run by the hf policy ({type(error).__name__}: {error}); {_REMEDY}"
        ) from error
    if not bool(torch.isfinite(theirs).all()):
        raise ConfigError(
            "policy.model: the logits of a random prompt are not finite, though its weights are: they are too large "
            f"for {str(model.dtype).removeprefix('torch.')}. Set policy.dtype=float32, or give an earlier checkpoint "
            "of the training that made it"
        )
    far, allowed = distance(model, own, theirs)
    if not far <= _ROOM * allowed:
        raise ConfigError(
            f"{what} gives other log-probabilities in slots (by {far:.3g}, allowed: {_ROOM * allowed:.3g}): its "
            f"attention is not plain causal attention over positions; {_REMEDY}"
        )


def _both_ways(model: Any, runner: ModelRunner, cache: SlotCache, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probabilities [n - 1] of a prompt's ids from slots, behind another prompt, and from the model."""
    beside = [(1, 0, ids[5::-1])] if cache.slots > 1 else []
    seen: list[int | None] = []
    parts = [runner.packed(cache, [], [*beside, (0, 0, ids[:-2])], seen)[-len(ids[:-2]) :]]
    check_layers(model.config.get_text_config(), seen)
    parts.append(runner.packed(cache, [(0, len(ids) - 2, ids[-2:-1])], []))
    try:
        model.set_attn_implementation("sdpa")
    except ValueError:
        model.set_attn_implementation("eager")
    try:
        theirs = model(input_ids=torch.tensor([ids], device=cache.data.device), use_cache=False).logits[0, :-1]
    finally:
        model.set_attn_implementation(NAME)
    target = torch.tensor(ids[1:], device=cache.data.device)[:, None]
    own, theirs = (torch.log_softmax(each.float(), -1).gather(-1, target)[:, 0] for each in (torch.cat(parts), theirs))
    return own, theirs


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
