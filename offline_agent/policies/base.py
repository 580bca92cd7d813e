"""What a policy is: propose n actions for each of many contexts, and score given ids."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from offline_agent.errors import PolicyError
from offline_agent.records import Action, Context

if TYPE_CHECKING:
    from offline_agent.rendering.renderer import Renderer


class ProposeRequest(NamedTuple):
    """Ask for `len(seeds)` actions after one history.

    Attributes:
        context: The history.
        seeds: One per sample, each in [0, 2**63): sample i depends on (context, seeds[i], temperature) alone.
        temperature: 0 = greedy; None = the policy's own.
        max_tokens: Cap on the sampled ids of each action; None = the policy's own.
    """

    context: Context
    seeds: tuple[int, ...]
    temperature: float | None = None
    max_tokens: int | None = None


class Usage(NamedTuple):
    """Tokens one request cost: sampled, prefilled (computed prompt tokens), and cached (prompt tokens reused)."""

    generated: int = 0
    prefilled: int = 0
    cached: int = 0


class Proposals(NamedTuple):
    """The answer to a `ProposeRequest`: one action per seed, in the order of the seeds."""

    actions: tuple[Action, ...]
    usage: Usage = Usage()


Answer = Proposals | PolicyError
Done = Callable[[Answer], None]


class Policy(Protocol):
    """The extension point. `offline_agent.policies.conformance` checks an implementation.

    Attributes:
        name: Short name for tables and manifests.
        renderer: The policy's renderer, or None where it has no tokenizer.
        batch_invariant: True where an answer does not depend on what else is in the batch, bit for bit.
        max_tokens: The most ids one action may have; 0 for a policy without tokens. Budgets reserve it.
        identity: JSON-serialisable facts for the manifest (kind, model hash, temperature, …).

    Optional: `free_arguments`, names of constructor arguments that may differ when a run goes on, because answers do
    not depend on them; and `evidence()`, what shows that the model is still the same (see `server.ServerPolicy`).
    """

    name: str
    renderer: Renderer | None
    batch_invariant: bool
    max_tokens: int
    identity: dict[str, object]

    def propose(self, requests: Sequence[ProposeRequest]) -> list[Answer]:
        """Return one answer per request, in order. A request that fails gets a `PolicyError`, the others go on.

        `ContextFull` where the history leaves no room for another action: that is the policy's failure, no outage.
        """
        ...

    def score(self, context: Context, actions: Sequence[Sequence[int]]) -> list[tuple[float, ...]]:
        """Return the per-token log-probabilities (T = 1) of each given id sequence after `context`.

        Raises:
            PolicyError: The policy cannot score.
        """
        ...

    def engine(self) -> Engine:
        """Return a running engine over this policy; the caller closes it."""
        ...

    def close(self) -> None:
        """Free what the policy holds."""
        ...


class Engine(Protocol):
    """A policy as a queue: requests go in at any time, answers come back through callbacks from any thread.

    Attributes:
        busy_seconds: Seconds in which at least one request was being answered.
    """

    busy_seconds: float

    def submit(self, request: ProposeRequest, done: Done) -> None:
        """Queue a request; `done` is called exactly once with its answer, perhaps before this returns."""
        ...

    def close(self) -> None:
        """Stop; requests still queued are answered with a `PolicyError`."""
        ...


class InlineEngine:
    """Answers each request at once, in the caller's thread. For policies that cost nothing."""

    def __init__(self, policy: Policy) -> None:
        self._propose = policy.propose
        self.busy_seconds = 0.0

    def answer(self, request: ProposeRequest) -> Answer:
        """Return the answer at once; a foreign error is wrapped as a `PolicyError`."""
        try:
            return self._propose((request,))[0]
        except Exception as error:
            return as_policy_error(error)

    def submit(self, request: ProposeRequest, done: Done) -> None:
        """See `Engine.submit`."""
        done(self.answer(request))

    def close(self) -> None:
        """Nothing to stop."""


class ThreadEngine:
    """Answers requests from worker threads, each taking everything queued up to `max_batch`.

    Args:
        policy: The policy; its `propose` must be safe to call from `workers` threads at once.
        workers: Number of threads.
        max_batch: Most requests given to one call of `propose`.
    """

    def __init__(self, policy: Policy, workers: int = 1, max_batch: int = 64) -> None:
        self._policy = policy
        self._max_batch = max_batch
        self._queue: list[tuple[ProposeRequest, Done]] = []
        self._condition = threading.Condition()
        self._closed = False
        self._running = 0
        self._busy_since = 0.0
        self.busy_seconds = 0.0
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def submit(self, request: ProposeRequest, done: Done) -> None:
        """See `Engine.submit`."""
        with self._condition:
            if not self._closed:
                self._queue.append((request, done))
                self._condition.notify()
                return
        done(PolicyError("the engine is closed"))

    def close(self) -> None:
        """See `Engine.close`."""
        with self._condition:
            self._closed = True
            left, self._queue = self._queue, []
            self._condition.notify_all()
        for _, done in left:
            done(PolicyError("the engine was closed before this request was answered"))
        for thread in self._threads:
            thread.join(timeout=5)

    def _work(self) -> None:
        from time import perf_counter

        while True:
            with self._condition:
                while not self._queue and not self._closed:
                    self._condition.wait()
                if self._closed:
                    return
                batch, self._queue = self._queue[: self._max_batch], self._queue[self._max_batch :]
                if self._running == 0:
                    self._busy_since = perf_counter()
                self._running += 1
            answers: Sequence[Answer]
            try:
                answers = self._policy.propose([request for request, _ in batch])
                if len(answers) != len(batch):
                    raise PolicyError(f"{self._policy.name}.propose answered {len(answers)} of {len(batch)} requests")
            except Exception as error:
                answers = [as_policy_error(error)] * len(batch)
            with self._condition:
                self._running -= 1
                if self._running == 0:
                    self.busy_seconds += perf_counter() - self._busy_since
            for (_, done), answer in zip(batch, answers, strict=True):
                done(answer)


def as_policy_error(error: Exception) -> PolicyError:
    """Return `error` itself if it is a `PolicyError`, else one that names it and has it as its cause."""
    if isinstance(error, PolicyError):
        return error
    wrapped = PolicyError(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
