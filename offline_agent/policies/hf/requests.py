"""What the engine works on: jobs (one prompt and what is wanted after it), lanes (a sample in a slot), counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offline_agent.errors import PolicyError
    from offline_agent.policies.hf.trie import TrieNode


class PromptRequest:
    """One prompt and what is wanted after it: samples, or the log-probabilities of given ids.

    Args:
        prompt: int [n], n ≥ 1.
        seeds: One per sample.
        temperature: 0 = greedy.
        limit: Most ids of a sample.
        forced: Given ids to score, none of them empty; takes the place of the samples.
        owner: Whoever may cancel it.
        finish: Called with the job when it is over.
        anchor: A node of the trie that ends a prefix of the prompt, and that prefix's length; (None, 0) for none.

    Attributes:
        results: (ids, log-probabilities) per sample, None while it is not finished.
        computed: Prompt ids that were computed for it.
        error: Why it failed; None where it did not.
        node: The trie's node at the end of the prompt, once it is known.
        logits: [vocabulary] after the prompt, once they are known.
        slot, filled: Where the prompt is being computed and how far it is.
        begun, left: Samples that were given a slot; samples that are not finished.
        lanes: Samples under way.
    """

    __slots__ = (
        "prompt", "seeds", "temperature", "limit", "forced", "owner", "finish", "anchor", "results", "computed",
        "error", "node", "logits", "slot", "filled", "begun", "left", "lanes",
    )  # fmt: skip

    def __init__(
        self,
        prompt: tuple[int, ...],
        seeds: Sequence[int],
        temperature: float,
        limit: int,
        forced: Sequence[tuple[int, ...]] | None = None,
        owner: object = None,
        finish: Callable[[PromptRequest], None] | None = None,
        anchor: tuple[TrieNode | None, int] = (None, 0),
    ) -> None:
        self.prompt = prompt
        self.seeds = seeds
        self.temperature = temperature
        self.limit = limit
        self.forced = forced
        self.owner = owner
        self.finish = finish
        self.anchor = anchor
        count = len(seeds) if forced is None else len(forced)
        self.results: list[tuple[list[int], list[float]] | None] = [None] * count
        self.computed = 0
        self.error: PolicyError | None = None
        self.node: TrieNode | None = None
        self.logits: Any = None
        self.slot = -1
        self.filled = 0
        self.begun = 0
        self.left = count
        self.lanes: list[RunningSample] = []


class RunningSample:
    """One sample while it holds a slot.

    Attributes:
        fresh: Its first id is still to be drawn, from the prompt's logits.
        drafts: Guessed ids that are in the batch under way, after the last sampled one.
    """

    __slots__ = ("job", "index", "slot", "ids", "logps", "fresh", "drafts")

    def __init__(self, job: PromptRequest, index: int, slot: int) -> None:
        self.job = job
        self.index = index
        self.slot = slot
        self.ids: list[int] = []
        self.logps: list[float] = []
        self.fresh = True
        self.drafts: list[int] = []

    @property
    def position(self) -> int:
        """Where the last sampled id stands."""
        return len(self.job.prompt) + len(self.ids) - 1


@dataclass
class EngineCounts:
    """What the core did so far.

    Attributes:
        steps: Forward passes.
        generated, prefilled, cached: Ids sampled, prompt ids computed, prompt ids reused.
        lane_steps: Sum over steps of the samples that were decoding; / (steps × slots) = slot occupancy.
        guessed, confirmed: Ids that were guessed ahead, and those of them that were sampled indeed.
        seconds: Spent in steps.
    """

    steps: int = 0
    generated: int = 0
    prefilled: int = 0
    cached: int = 0
    lane_steps: int = 0
    guessed: int = 0
    confirmed: int = 0
    seconds: float = 0.0
