"""Requests of the batching engine, samples in slots, packed batches, and drafts of the next ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from offline_agent.policies.hf.attention import DecodingRow, Piece

if TYPE_CHECKING:
    from offline_agent.errors import PolicyError
    from offline_agent.policies.hf.kv_cache import TrieNode

MOST_PAIRS = 200_000  # pairs of ids that a draft table holds


@dataclass(eq=False, slots=True)
class PromptRequest:
    """A request for samples after one prompt.

    Attributes:
        prompt: int [n], n ≥ 1.
        seeds: One per sample.
        temperature: 0 = greedy.
        limit: Most ids of a sample.
        owner: The object that may cancel it.
        finish: Called with the request when it is finished.
        anchor: A trie node at the end of a prefix of the prompt, and the length of that prefix; (None, 0) for none.
        results: (ids, log-probabilities) per sample, None while it is not finished.
        computed: Number of prompt ids that were computed for it.
        error: The error that failed it; None where there is none.
        node: The trie node at the end of the prompt, once it is computed.
        logits: [vocabulary] after the prompt, once they are computed.
        slot, filled: The slot in which the prompt is computed, and the number of ids computed.
        begun, left: Number of samples that got a slot; number of samples not finished.
        lanes: Samples in slots.
    """

    prompt: tuple[int, ...]
    seeds: Sequence[int]
    temperature: float
    limit: int
    owner: object = None
    finish: Callable[[PromptRequest], None] | None = None
    anchor: tuple[TrieNode | None, int] = (None, 0)
    results: list[tuple[list[int], list[float]] | None] = field(init=False)
    computed: int = field(default=0, init=False)
    error: PolicyError | None = field(default=None, init=False)
    node: TrieNode | None = field(default=None, init=False)
    logits: Any = field(default=None, init=False)
    slot: int = field(default=-1, init=False)
    filled: int = field(default=0, init=False)
    begun: int = field(default=0, init=False)
    left: int = field(init=False)
    lanes: list[RunningSample] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Make room for the results."""
        self.left = len(self.seeds)
        self.results = [None] * self.left

    @property
    def cold(self) -> bool:
        """Whether no keys and values of an earlier request of its history are kept."""
        return self.anchor[0] is None or self.anchor[0].kv is None


@dataclass(eq=False, slots=True)
class RunningSample:
    """One sample while it holds a slot.

    Attributes:
        job, index: Its request, and its number there.
        slot: Its slot.
        ids, logps: What was drawn so far.
        fresh: Whether its first id is not drawn yet; it is drawn from the prompt's logits.
        drafts: Drafted ids of the current batch, after the last sampled one.
    """

    job: PromptRequest
    index: int
    slot: int
    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    fresh: bool = True
    drafts: list[int] = field(default_factory=list)

    @property
    def position(self) -> int:
        """Position of the last sampled id."""
        return len(self.job.prompt) + len(self.ids) - 1


@dataclass
class EngineCounts:
    """Counts of the engine's work.

    Attributes:
        steps: Forward passes.
        generated, prefilled, cached: Ids sampled, prompt ids computed, prompt ids reused.
        lane_steps: Sum over steps of the number of decoding samples; / (steps × slots) = slot occupancy.
        guessed, confirmed: Drafted ids, and those of them that were sampled.
        seconds: Time spent in steps.
    """

    steps: int = 0
    generated: int = 0
    prefilled: int = 0
    cached: int = 0
    lane_steps: int = 0
    guessed: int = 0
    confirmed: int = 0
    seconds: float = 0.0


@dataclass
class PackedBatch:
    """A packed batch before it becomes tensors.

    Attributes:
        decoding: Decoding samples; their tokens come first.
        fills: Requests in prefill, with the number of their ids in this batch.
        tokens, positions: int [n].
        wanted: Indices of the tokens whose logits are needed: all of `decoding`, the last token of each prompt that
            ends in this batch.
    """

    decoding: list[RunningSample]
    fills: list[tuple[PromptRequest, int]] = field(default_factory=list)
    rows: list[DecodingRow] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)

    def add(self, slot: int, start: int, ids: Sequence[int]) -> Piece:
        """Append ids of a slot and return their place in the batch."""
        piece = Piece(slot, len(self.tokens), start, len(ids))
        self.tokens.extend(ids)
        self.positions.extend(range(start, start + len(ids)))
        return piece

    def add_decoding(self, drafts: DraftTable, spare: int, span: int) -> None:
        """Append the last id of every decoding sample, and drafted ones: `spare` in all, `span - 1` of a sample."""
        for lane in self.decoding:
            left = lane.job.limit - len(lane.ids) - 1
            lane.drafts = drafts.guess(lane.ids, min(span - 1, left, spare))
            spare -= len(lane.drafts)
            piece = self.add(lane.slot, lane.position, [lane.ids[-1], *lane.drafts])
            self.rows.append(DecodingRow(piece.slot, piece.start, piece.count))
        self.wanted.extend(range(len(self.tokens)))

    def add_prompts(self, filling: Sequence[PromptRequest], budget: int) -> None:
        """Append the next ids of the prompts in prefill, `budget` in all."""
        for job in filling:
            count = min(len(job.prompt) - job.filled, budget)
            if not count:
                break
            budget -= count
            self.pieces.append(self.add(job.slot, job.filled, job.prompt[job.filled : job.filled + count]))
            self.fills.append((job, count))
            if job.filled + count == len(job.prompt):
                self.wanted.append(len(self.tokens) - 1)


class DraftTable:
    """The id that last followed each pair of ids, so that one pass over the model can confirm several ids.

    Drafts do not change answers: each id is drawn from its own logits and its own seed, as without drafts. Where it
    equals the draft, the logits of the next id are already computed (speculative decoding, Leviathan et al. 2023, with
    earlier samples as the draft model). Actions repeat fixed phrases: about two of three drafts are right.
    """

    def __init__(self) -> None:
        self._after: dict[tuple[int, int], int] = {}

    def learn(self, before: Sequence[int], ids: Sequence[int]) -> None:
        """Add the pairs of a sampled action `ids` after a prompt that ends in `before`."""
        if len(self._after) > MOST_PAIRS:
            self._after.clear()
        row = [*before[-2:], *ids]
        for first, second, third in zip(row, row[1:], row[2:], strict=False):
            self._after[first, second] = third

    def guess(self, ids: Sequence[int], most: int) -> list[int]:
        """Return at most `most` drafted ids after `ids`."""
        out: list[int] = []
        if most < 1 or len(ids) < 2:
            return out
        first, second = ids[-2], ids[-1]
        while len(out) < most:
            third = self._after.get((first, second))
            if third is None:
                break
            out.append(third)
            first, second = second, third
        return out
