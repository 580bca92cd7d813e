"""Loop of the thread that owns an engine: requests join the running batch, other calls run between two steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from offline_agent.errors import PolicyError

T = TypeVar("T")


class SequenceRequest(NamedTuple):
    """One sequence to sample, or to score.

    Attributes:
        prompt: int [n], n ≥ 1.
        temperature: 0 = greedy.
        max_tokens: Most ids to sample, at least 1.
        seed: Seed of the sample.
        stop: Ids that end it.
        score: Whether to return the log-probs of the prompt instead of sampling.
    """

    prompt: tuple[int, ...]
    temperature: float
    max_tokens: int
    seed: int
    stop: tuple[int, ...]
    score: bool = False


class SequenceResult(NamedTuple):
    """The result of a `SequenceRequest`.

    Attributes:
        ids: int [m], the sampled ids, stop id included.
        logps: float [m], at temperature 1; of a scored prompt [n - 1], for all ids but the first.
        cached: Number of prompt ids reused from the prefix cache.
    """

    ids: tuple[int, ...]
    logps: tuple[float, ...]
    cached: int = 0


class EngineLoop:
    """The thread of an engine.

    Args:
        make: Creates the engine, in the thread, which alone calls it; `engine.VLLMCore` has the methods.

    Raises:
        Exception: Any error of `make`.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._condition = threading.Condition()
        self._queue: list[tuple[SequenceRequest | Callable[[Any], Any], Future[Any]]] = []
        self._closed: str | None = None
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._work, args=(make, ready), name="colocated-engine", daemon=True)
        self._thread.start()
        ready.result()

    def ask(self, ask: SequenceRequest) -> SequenceResult:
        """Return the result of a request.

        Raises:
            PolicyError: The engine failed, refused it, or is closed.
        """
        reply: SequenceResult = self._put(ask)
        return reply

    def run(self, action: Callable[[Any], T]) -> T:
        """Return `action(engine)`, called between two steps. Raises what it raises."""
        result: T = self._put(action)
        return result

    def close(self) -> None:
        """End the thread; waiting callers get a `PolicyError`."""
        with self._condition:
            self._closed = self._closed or "the policy is closed"
            self._condition.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _put(self, item: SequenceRequest | Callable[[Any], Any]) -> Any:
        future: Future[Any] = Future()
        with self._condition:
            if self._closed is not None:
                raise PolicyError(self._closed)
            self._queue.append((item, future))
            self._condition.notify()
        return future.result()

    def _work(self, make: Callable[[], Any], ready: Future[None]) -> None:
        try:
            core = make()
        except BaseException as error:  # the caller's to handle
            ready.set_exception(error)
            return
        ready.set_result(None)
        batch: dict[str, Future[Any]] = {}
        try:
            self._serve(core, batch)
        except Exception as error:  # the engine broke and may have lost any sequence: all of them fail
            with self._condition:
                self._closed = f"the engine broke: {type(error).__name__}: {error}. Look at vLLM's log; start anew"
        with self._condition:
            left = [future for _, future in self._queue] + list(batch.values())
            self._queue = []
        for future in left:
            future.set_exception(PolicyError(self._closed or "the policy is closed"))
        core.close()

    def _serve(self, core: Any, batch: dict[str, Future[Any]]) -> None:
        count = 0
        while True:
            with self._condition:
                while not self._queue and not batch and self._closed is None:
                    self._condition.wait()
                if self._closed is not None:
                    return
                items, self._queue = self._queue, []
            for item, future in items:
                count += 1
                try:
                    if isinstance(item, SequenceRequest):
                        core.add(str(count), item)
                        batch[str(count)] = future
                    else:
                        future.set_result(item(core))
                except Exception as error:  # this caller's alone
                    future.set_exception(error)
            if batch:
                for name, reply in core.step():
                    batch.pop(name).set_result(reply)
