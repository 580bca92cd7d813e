"""Continuous batching over slots: prompts are prefilled in pieces while other samples decode in the same batch."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from offline_agent.errors import PolicyError
from offline_agent.policies.base import as_policy_error
from offline_agent.policies.hf.attention import ROW_STEP, SlotPlan
from offline_agent.policies.hf.kv_cache import KVTrie, SlotCache, copy_path
from offline_agent.policies.hf.requests import DraftTable, EngineCounts, PackedBatch, PromptRequest, RunningSample
from offline_agent.policies.hf.sampling import sample
from offline_agent.rendering.layout import common_prefix

PIECE = 512  # most prompt ids computed in one step
WAIT_FOR = 4  # a prompt waits for another one in prefill that shares more than this many ids beyond the cached ones


class BatchingEngine:
    """The model, its slots and its trie. `submit` may be called from any thread, everything else from one at a time.

    Args:
        forward: Maps packed ids and positions [1, tokens], a plan and n token indices to logits [n, vocabulary].
        cache: The slots.
        trie: Keys and values of earlier histories.
        stop_ids: Ids that end a sample.
        draft_tokens: Ids are drafted while a step decodes fewer tokens than this.
    """

    def __init__(
        self,
        forward: Callable[[torch.Tensor, torch.Tensor, SlotPlan, torch.Tensor], torch.Tensor],
        cache: SlotCache,
        trie: KVTrie,
        stop_ids: Iterable[int],
        draft_tokens: int,
    ) -> None:
        self._forward = forward
        self.cache = cache
        self.trie = trie
        self._stop = frozenset(stop_ids)
        self._draft_tokens = draft_tokens
        self._drafts = DraftTable()
        self.counts = EngineCounts()
        self._inbox: deque[PromptRequest] = deque()
        self._waiting: deque[PromptRequest] = deque()
        self._filling: list[PromptRequest] = []
        self._started: list[PromptRequest] = []
        self._lanes: list[RunningSample] = []
        self._free = list(range(cache.slots))
        self._finished: list[PromptRequest] = []

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._inbox or self._waiting or self._filling or self._started or self._lanes or self._finished)

    def submit(self, job: PromptRequest) -> None:
        """Queue a request."""
        self._inbox.append(job)

    def cancel(self, owner: object, error: PolicyError) -> list[PromptRequest]:
        """Drop the unfinished requests of `owner` and return them, with `error` set."""
        self._take()
        unfinished = (*self._waiting, *self._filling, *self._started, *(lane.job for lane in self._lanes))
        for job in {id(job): job for job in unfinished if job.owner is owner}.values():
            self._drop(job, error)
        finished, self._finished = self._finished, []
        return finished

    def step(self) -> list[PromptRequest]:
        """Do one forward pass and return the finished requests."""
        self._take()
        self._place()
        try:
            self._advance()
        except Exception as error:  # it fails the requests of this batch; others continue
            fault = as_policy_error(error)
            for job in {id(job): job for job in (*self._filling, *(lane.job for lane in self._lanes))}.values():
                self._drop(job, fault)
        finished, self._finished = self._finished, []
        return finished

    def _take(self) -> None:
        while self._inbox:
            job = self._inbox.popleft()
            (self._waiting if job.left else self._finished).append(job)

    def _drop(self, job: PromptRequest, error: PolicyError) -> None:
        job.error = error
        if job in self._waiting:
            self._waiting.remove(job)
        if job in self._filling:
            self._filling.remove(job)
            heapq.heappush(self._free, job.slot)
        if job in self._started:
            self._started.remove(job)
        for lane in job.lanes:
            self._lanes.remove(lane)
            heapq.heappush(self._free, lane.slot)
        job.lanes = []
        self._finished.append(job)

    def _place(self) -> None:
        """Give free slots to samples whose prompt is computed, then to prompts, first come first served.

        Started samples come first: they hold finished prompts, and end soonest. Once the trie is full, prompts that
        continue a kept history come before those whose history is new or evicted, and of the latter one is computed
        at a time: in the order of arrival each would evict what the next one needs, and all would be computed again.
        """
        for job in list(self._started):
            if not self._free:
                return
            self._fork(job)
        full = self.trie.full
        if full:
            self._waiting = deque(sorted(self._waiting, key=lambda job: job.cold))
        put_off: list[PromptRequest] = []
        while self._waiting and self._free:
            if full and self._waiting[0].cold and any(job.cold for job in self._filling):
                break
            job = self._waiting.popleft()
            try:
                if not self._reserve(job):  # later ones wait too: they would keep the slots that are to be given up
                    put_off.append(job)
                    break
                if not self._begin(job):
                    put_off.append(job)
            except PolicyError as error:
                self._drop(job, error)
        self._waiting.extendleft(reversed(put_off))

    def _reserve(self, job: PromptRequest) -> bool:
        """Make room for a prompt and its actions; return False where it waits for slots in use."""
        used = max(set(range(self.cache.slots)).difference(self._free), default=-1) + 1
        enough = self.cache.reserve(len(job.prompt) + job.limit, used)
        self._free = sorted(slot for slot in self._free if slot < self.cache.slots)  # sorted, so a heap
        return enough and bool(self._free)  # those that were given up may have been the last free ones

    def _begin(self, job: PromptRequest) -> bool:
        """Start a prompt in a free slot; return False where it waits for another prompt that computes its prefix."""
        size = len(job.prompt)
        path, known = self.trie.match(job.prompt, *job.anchor)
        if known == size and path[-1][1] == len(path[-1][0].ids) and path[-1][0].logits is not None:
            job.node, job.logits = path[-1][0], path[-1][0].logits
            self.counts.cached += size
            self._started.append(job)
            self._fork(job)
            return True
        known = min(known, size - 1)  # the trie has no logits here: compute the last id again
        head = job.prompt[:known]
        for other in self._filling:
            if common_prefix(other.prompt[known:], job.prompt[known:]) > WAIT_FOR and other.prompt[:known] == head:
                return False
        job.slot = heapq.heappop(self._free)
        copy_path(path, self.cache.data[:, :, job.slot])
        job.filled = known
        self._filling.append(job)
        return True

    def _fork(self, job: PromptRequest) -> None:
        """Start as many samples of a request as there are free slots, each with a copy of the prompt."""
        size = len(job.prompt)
        while job.begun < len(job.results) and self._free:
            slot = heapq.heappop(self._free)
            if job.lanes:
                self.cache.data[:, :, slot, :, :size] = self.cache.data[:, :, job.lanes[0].slot, :, :size]
            else:
                path, known = self.trie.match(job.prompt, job.node, size)
                copy_path(path, self.cache.data[:, :, slot])
                if known < size:  # evicted from the trie meanwhile: compute the rest again
                    job.slot, job.filled, job.logits = slot, min(known, size - 1), None
                    self._filling.append(job)
                    break
            self._open(job, slot)
        if job in self._started and (job.begun == len(job.results) or job.logits is None):
            self._started.remove(job)

    def _open(self, job: PromptRequest, slot: int) -> None:
        lane = RunningSample(job, job.begun, slot)
        job.begun += 1
        job.lanes.append(lane)
        self._lanes.append(lane)

    def _advance(self) -> None:
        """Run one forward pass over decoding samples and pieces of prompts; then draw the next ids."""
        batch = self._pack()
        logits: Any = None
        if batch.tokens:
            logits = self._run(batch)
            self.counts.steps += 1
            self.counts.lane_steps += len(batch.decoding)
        at = sum(row.count for row in batch.rows)
        for job, count in batch.fills:
            job.filled += count
            job.computed += count
            self.counts.prefilled += count
            if job.filled == len(job.prompt):
                self._filled(job, logits[at])
                at += 1
        self._draw(batch.decoding, logits)

    def _pack(self) -> PackedBatch:
        """Return the packed batch: decoding samples, then pieces of prompts."""
        batch = PackedBatch([lane for lane in self._lanes if not lane.fresh])
        batch.add_decoding(self._drafts, self._draft_tokens - len(batch.decoding), self.cache.shape.span)
        batch.add_prompts(self._filling, PIECE)
        return batch

    def _run(self, batch: PackedBatch) -> torch.Tensor:
        # Whole multiples of rows: products of other shapes round differently (see `attention`).
        rows = [row + [0] * (-len(row) % ROW_STEP) for row in (batch.tokens, batch.positions, batch.wanted)]
        ids, places, keep = (torch.tensor(row, dtype=torch.long, device=self.cache.data.device) for row in rows)
        return self._forward(ids[None], places[None], SlotPlan(self.cache, batch.rows, batch.pieces), keep)

    def _filled(self, job: PromptRequest, logits: torch.Tensor) -> None:
        """Store a computed prompt in the trie and start its samples; the first one continues in the prompt's slot."""
        self._filling.remove(job)
        job.logits = logits.clone()
        read = partial(self.cache.read, job.slot)
        job.node = self.trie.insert(job.prompt, read, job.logits, *job.anchor)
        self.counts.cached += len(job.prompt) - min(job.computed, len(job.prompt))
        self._open(job, job.slot)
        self._started.append(job)
        self._fork(job)

    def _draw(self, decoding: list[RunningSample], logits: Any) -> None:
        """Draw the next ids of every sample, and finish the samples that end.

        Ids after the first are drawn from logits of drafted ids; `_accept` keeps those whose drafts were right.
        """
        fresh = [lane for lane in self._lanes if lane.fresh]
        lanes = [lane for lane in decoding for _ in range(1 + len(lane.drafts))] + fresh
        if not lanes:
            return
        spots = [len(lane.ids) + i for lane in decoding for i in range(1 + len(lane.drafts))] + [0] * len(fresh)
        rows = [logits[: len(lanes) - len(fresh)]] if decoding else []
        if fresh:
            rows.append(torch.stack([lane.job.logits for lane in fresh]))
        seeds, temperatures = zip(*((lane.job.seeds[lane.index], lane.job.temperature) for lane in lanes), strict=True)
        ids, logps = sample(torch.cat(rows) if len(rows) > 1 else rows[0], seeds, spots, temperatures)
        at = 0
        for lane in decoding + fresh:
            count = 1 + len(lane.drafts)
            if lane.job.error is None:
                self._accept(lane, ids[at : at + count], logps[at : at + count])
            at += count

    def _accept(self, lane: RunningSample, ids: list[int], logps: list[float]) -> None:
        """Append drawn ids up to the first wrong draft: logits after a wrong draft belong to another history."""
        lane.fresh = False
        drafts, lane.drafts = lane.drafts, []
        self.counts.guessed += len(drafts)
        for i, (token, logp) in enumerate(zip(ids, logps, strict=True)):
            if logp != logp:
                self._drop(lane.job, PolicyError("the model's logits are not numbers; is its dtype too narrow?"))
                return
            lane.ids.append(token)
            lane.logps.append(logp)
            self.counts.generated += 1
            if token in self._stop or len(lane.ids) >= lane.job.limit:
                self._close(lane)
                return
            if i == len(drafts) or token != drafts[i]:
                return
            self.counts.confirmed += 1

    def _close(self, lane: RunningSample) -> None:
        """Finish a sample: store its keys and values (the last id has none yet) and free its slot."""
        job = lane.job
        if len(lane.ids) > 1:
            ids = job.prompt + tuple(lane.ids[:-1])
            self.trie.insert(ids, partial(self.cache.read, lane.slot), None, job.node, len(job.prompt))
        self._drafts.learn(job.prompt, lane.ids)
        job.results[lane.index] = (lane.ids, lane.logps)
        job.lanes.remove(lane)
        self._lanes.remove(lane)
        heapq.heappush(self._free, lane.slot)
        job.left -= 1
        if not job.left:
            self._finished.append(job)
