"""Continuous batching over slots: prompts are filled in pieces while other samples decode in the same batch."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from offline_agent.errors import PolicyError
from offline_agent.policies.hf_attention import ROW_STEP, Piece, Plan, SlotCache, round_up
from offline_agent.policies.hf_sampling import sample, token_logps
from offline_agent.policies.hf_trie import KVTrie, common_prefix, copy_path

WAIT_FOR = 4  # ids another prompt in flight must share beyond what is cached for it to be worth waiting for


class Job:
    """One prompt and what is wanted after it: samples, or the log-probabilities of given ids.

    Args:
        prompt: int [n], n ≥ 1.
        seeds: One per sample.
        temperature: 0 = greedy.
        limit: Most ids of a sample.
        forced: Given ids to score, none of them empty; takes the place of the samples.
        owner: Whoever may cancel it.

    Attributes:
        results: (ids, log-probabilities) per sample, None while it is not finished.
        computed: Prompt ids that were computed for it.
        error: Why it failed; None where it did not.
    """

    __slots__ = (
        "prompt", "seeds", "temperature", "limit", "forced", "owner", "results", "computed", "error", "logits", "slot",
        "filled", "begun", "left", "lanes", "finish",
    )  # fmt: skip

    def __init__(
        self,
        prompt: tuple[int, ...],
        seeds: Sequence[int],
        temperature: float,
        limit: int,
        forced: Sequence[tuple[int, ...]] | None = None,
        owner: object = None,
        finish: Callable[[Job], None] | None = None,
    ) -> None:
        self.prompt = prompt
        self.seeds = seeds
        self.temperature = temperature
        self.limit = limit
        self.forced = forced
        self.owner = owner
        self.finish = finish
        count = len(seeds) if forced is None else len(forced)
        self.results: list[tuple[list[int], list[float]] | None] = [None] * count
        self.computed = 0
        self.error: PolicyError | None = None
        self.logits: Any = None
        self.slot = -1
        self.filled = 0
        self.begun = 0
        self.left = count
        self.lanes: list[Lane] = []


class Lane:
    """One sample while it holds a slot; `fresh` until its first id is drawn from the prompt's logits."""

    __slots__ = ("job", "index", "slot", "ids", "logps", "fresh")

    def __init__(self, job: Job, index: int, slot: int) -> None:
        self.job = job
        self.index = index
        self.slot = slot
        self.ids: list[int] = []
        self.logps: list[float] = []
        self.fresh = True


@dataclass
class Counts:
    """What the core did so far.

    Attributes:
        steps: Forward passes.
        generated, prefilled, cached: Ids sampled, prompt ids computed, prompt ids reused.
        lane_steps: Sum over steps of the samples that were decoding; / (steps × slots) = slot occupancy.
        seconds: Spent in steps.
    """

    steps: int = 0
    generated: int = 0
    prefilled: int = 0
    cached: int = 0
    lane_steps: int = 0
    seconds: float = 0.0


class Core:
    """The model, its slots and its trie. `submit` is safe from any thread, everything else from one at a time.

    Args:
        forward: Given packed ids and positions [1, tokens], a plan and the rows wanted, returns logits [n, vocabulary].
        cache: The slots.
        trie: Keys and values of earlier histories.
        stop_ids: Ids that end a sample.
        piece_tokens: Most prompt ids computed in one step.
    """

    def __init__(
        self,
        forward: Callable[[torch.Tensor, torch.Tensor, Plan, torch.Tensor], torch.Tensor],
        cache: SlotCache,
        trie: KVTrie,
        stop_ids: Iterable[int],
        piece_tokens: int = 512,
    ) -> None:
        self._forward = forward
        self.cache = cache
        self.trie = trie
        self._stop = frozenset(stop_ids)
        self._piece_tokens = piece_tokens
        self.counts = Counts()
        self._inbox: deque[Job] = deque()
        self._waiting: deque[Job] = deque()
        self._filling: list[Job] = []
        self._started: list[Job] = []
        self._lanes: list[Lane] = []
        self._free = list(range(cache.slots))
        self._finished: list[Job] = []

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._inbox or self._waiting or self._filling or self._started or self._lanes or self._finished)

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self._inbox.append(job)

    def cancel(self, owner: object, error: PolicyError) -> list[Job]:
        """Drop the unfinished jobs of `owner` and return them, with `error` set."""
        self._take()
        dropped = [job for job in self._alive() if job.owner is owner]
        for job in dropped:
            self._drop(job, error)
        finished, self._finished = self._finished, []
        return finished

    def step(self) -> list[Job]:
        """Do one forward pass and return the jobs that are finished."""
        self._take()
        self._place()
        try:
            self._advance()
        except Exception as error:  # a foreign error is wrapped once; what was not in the batch goes on
            fault = error if isinstance(error, PolicyError) else PolicyError(f"{type(error).__name__}: {error}")
            fault.__cause__ = None if fault is error else error
            for job in {id(job): job for job in (*self._filling, *(lane.job for lane in self._lanes))}.values():
                self._drop(job, fault)
        finished, self._finished = self._finished, []
        return finished

    def _take(self) -> None:
        while self._inbox:
            job = self._inbox.popleft()
            if job.left:
                self._waiting.append(job)
            else:
                self._finished.append(job)

    def _alive(self) -> list[Job]:
        jobs = (*self._waiting, *self._filling, *self._started, *(lane.job for lane in self._lanes))
        return list({id(job): job for job in jobs}.values())

    def _drop(self, job: Job, error: PolicyError) -> None:
        job.error = error
        if job in self._waiting:
            self._waiting.remove(job)
        if job in self._filling:
            self._filling.remove(job)
            self._release(job.slot)
        if job in self._started:
            self._started.remove(job)
        for lane in job.lanes:
            self._lanes.remove(lane)
            self._release(lane.slot)
        job.lanes = []
        self._finished.append(job)

    def _release(self, slot: int) -> None:
        heapq.heappush(self._free, slot)

    def _place(self) -> None:
        """Give free slots to samples whose prompt is known, then to prompts, first come first served."""
        for job in list(self._started):
            if not self._free:
                return
            self._fork(job)
        put_off: list[Job] = []
        while self._waiting and self._free:
            job = self._waiting.popleft()
            try:
                if not self._begin(job):
                    put_off.append(job)
            except PolicyError as error:
                self._drop(job, error)
        self._waiting.extendleft(reversed(put_off))

    def _begin(self, job: Job) -> bool:
        """Start a prompt in a free slot; False where another one is computing what it needs."""
        size = len(job.prompt)
        self.cache.reserve(size + max(job.limit, *map(len, job.forced or ((),))))
        path, known = self.trie.match(job.prompt)
        if known == size and path[-1][1] == len(path[-1][0].ids) and path[-1][0].logits is not None:
            job.logits = path[-1][0].logits
            self.counts.cached += size
            self._started.append(job)
            self._fork(job)
            return True
        known = min(known, size - 1)  # the last id is computed again: its logits are not known
        head = job.prompt[:known]
        for other in self._filling:
            if common_prefix(other.prompt[known:], job.prompt[known:]) > WAIT_FOR and other.prompt[:known] == head:
                return False
        job.slot = heapq.heappop(self._free)
        copy_path(path, self.cache.slot(job.slot))
        job.filled = known
        self._filling.append(job)
        return True

    def _fork(self, job: Job) -> None:
        """Start as many of a job's samples as there are free slots, each with a copy of the prompt."""
        size = len(job.prompt)
        while job.begun < len(job.results) and self._free:
            slot = heapq.heappop(self._free)
            if job.lanes:
                self.cache.data[:, :, slot, :, :size] = self.cache.data[:, :, job.lanes[0].slot, :, :size]
            else:
                path, known = self.trie.match(job.prompt)
                copy_path(path, self.cache.slot(slot))
                if known < size:  # thrown away meanwhile: compute the rest again
                    job.slot, job.filled, job.logits = slot, min(known, size - 1), None
                    self._filling.append(job)
                    break
            self._open(job, slot)
        if job in self._started and (job.begun == len(job.results) or job.logits is None):
            self._started.remove(job)

    def _open(self, job: Job, slot: int) -> None:
        lane = Lane(job, job.begun, slot)
        job.begun += 1
        job.lanes.append(lane)
        self._lanes.append(lane)

    def _advance(self) -> None:
        """One forward pass over decoding samples, pieces of prompts and given ids; then draw."""
        decoding = [lane for lane in self._lanes if not lane.fresh]
        pieces, fills, forced, tokens, positions, wanted = self._pack(decoding)
        logits: Any = None
        if tokens:
            logits = self._run(decoding, pieces, tokens, positions, wanted)
            self.counts.steps += 1
            self.counts.lane_steps += len(decoding)
        at = len(decoding)
        for job, count in fills:
            job.filled += count
            job.computed += count
            if job.filled == len(job.prompt):
                self._filled(job, logits[at])
                at += 1
        self._score(forced, logits, at)
        self._draw(decoding, logits)

    def _pack(self, decoding: list[Lane]) -> Any:
        """Lay out the packed batch: decoding rows by slot, pieces of prompts, given ids."""
        rows = max((lane.slot for lane in decoding), default=-1) + 1
        tokens, positions = [0] * rows, [0] * rows
        for lane in decoding:
            tokens[lane.slot] = lane.ids[-1]
            positions[lane.slot] = len(lane.job.prompt) + len(lane.ids) - 1
        wanted = [lane.slot for lane in decoding]
        pieces: list[Piece] = []
        fills: list[tuple[Job, int]] = []
        budget = self._piece_tokens
        for job in self._filling:
            count = min(len(job.prompt) - job.filled, budget)
            if not count:
                break
            budget -= count
            until = job.filled + count
            pieces.append(Piece(job.slot, len(tokens), job.filled, count))
            tokens.extend(job.prompt[job.filled : until])
            positions.extend(range(job.filled, until))
            fills.append((job, count))
            if until == len(job.prompt):
                wanted.append(len(tokens) - 1)
        forced: list[Lane] = []
        for lane in self._lanes:
            if lane.job.forced is None or lane.job.logits is None or lane.ids:
                continue
            lane.ids = list(lane.job.forced[lane.index])
            if len(lane.ids) > 1:
                start, count = len(lane.job.prompt), len(lane.ids) - 1
                pieces.append(Piece(lane.slot, len(tokens), start, count))
                wanted.extend(range(len(tokens), len(tokens) + count))
                tokens.extend(lane.ids[:-1])
                positions.extend(range(start, start + count))
            forced.append(lane)
        return pieces, fills, forced, tokens, positions, wanted

    def _run(
        self, decoding: list[Lane], pieces: list[Piece], tokens: list[int], positions: list[int], wanted: list[int]
    ) -> torch.Tensor:
        device = self.cache.data.device
        rows = max((lane.slot for lane in decoding), default=-1) + 1
        reach = torch.tensor(positions[:rows], dtype=torch.long, device=device)
        write_at = torch.full((rows,), self.cache.capacity, dtype=torch.long, device=device)
        active = [lane.slot for lane in decoding]
        write_at[active] = reach[active]
        plan = Plan(self.cache, rows, reach, write_at, pieces)
        extra = round_up(len(tokens), ROW_STEP) - len(tokens)
        ids = torch.tensor([tokens + [0] * extra], device=device)
        places = torch.tensor([positions + [0] * extra], device=device)
        keep = torch.tensor(wanted + [0] * (-len(wanted) % ROW_STEP), dtype=torch.long, device=device)
        return self._forward(ids, places, plan, keep)

    def _filled(self, job: Job, logits: torch.Tensor) -> None:
        """A prompt is computed: keep it, and begin its samples, the first one where it lies."""
        self._filling.remove(job)
        job.logits = logits.clone()
        self.trie.insert(job.prompt, lambda start, end: self.cache.read(job.slot, start, end), logits)
        self.counts.prefilled += job.computed
        self.counts.cached += len(job.prompt) - min(job.computed, len(job.prompt))
        self._open(job, job.slot)
        self._started.append(job)
        self._fork(job)

    def _score(self, lanes: list[Lane], logits: Any, at: int) -> None:
        """Finish given ids: the first one's comes from the prompt's logits, the others' from row `at` on."""
        for lane in lanes:
            lane.logps = token_logps(lane.job.logits[None], lane.ids[:1])
            count = len(lane.ids) - 1
            if count:
                lane.logps += token_logps(logits[at : at + count], lane.ids[1:])
                at += count
            self._close(lane)

    def _draw(self, decoding: list[Lane], logits: Any) -> None:
        """Draw one id for every sample and finish those that end."""
        fresh = [lane for lane in self._lanes if lane.fresh and lane.job.forced is None]
        lanes = decoding + fresh
        if not lanes:
            return
        rows = [logits[: len(decoding)]] if decoding else []
        if fresh:
            rows.append(torch.stack([lane.job.logits for lane in fresh]))
        ids, logps = sample(
            torch.cat(rows) if len(rows) > 1 else rows[0],
            [lane.job.seeds[lane.index] for lane in lanes],
            [len(lane.ids) for lane in lanes],
            [lane.job.temperature for lane in lanes],
        )
        self.counts.generated += len(lanes)
        for lane, token, logp in zip(lanes, ids, logps, strict=True):
            if lane.job.error is not None:
                continue
            if logp != logp:
                self._drop(lane.job, PolicyError("the model's logits are not numbers; is its dtype too narrow?"))
                continue
            lane.fresh = False
            lane.ids.append(token)
            lane.logps.append(logp)
            if token in self._stop or len(lane.ids) >= lane.job.limit:
                self._close(lane)

    def _close(self, lane: Lane) -> None:
        """A sample is finished: keep its keys and values (the last id has none yet) and free its slot."""
        job = lane.job
        if len(lane.ids) > 1:
            ids = job.prompt + tuple(lane.ids[:-1])
            self.trie.insert(ids, lambda start, end: self.cache.read(lane.slot, start, end))
        job.results[lane.index] = (lane.ids, lane.logps)
        job.lanes.remove(lane)
        self._lanes.remove(lane)
        self._release(lane.slot)
        job.left -= 1
        if not job.left:
            self._finished.append(job)
