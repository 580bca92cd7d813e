"""A Ray of threads: actors that answer one call at a time, can be killed at any moment, and nodes that have CPUs."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


class ActorDiedError(RayError):
    pass


class ActorUnavailableError(RayError):
    pass


class Ref:
    """The answer to a call."""

    def __init__(self) -> None:
        self.there = threading.Event()
        self.value: Any = None

    def put(self, value: Any) -> None:
        if not self.there.is_set():
            self.value = value
            self.there.set()


class Actor:
    """One worker: a thread that carries calls out in order.

    Args:
        cluster: Where it is.
        kind: Its class.
    """

    def __init__(self, cluster: FakeRay, kind: type) -> None:
        self.cluster = cluster
        self.instance = kind()
        self.dead: RayError | None = None
        self._calls: queue.SimpleQueue[tuple[Ref, str, tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._open: list[Ref] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._work, daemon=True).start()

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *given: self._call(name, given))

    def _call(self, name: str, given: tuple[Any, ...]) -> Ref:
        ref = Ref()
        with self._lock:
            if self.dead is not None:
                ref.put(self.dead)
            else:
                self._open.append(ref)
                self._calls.put((ref, name, given))
        return ref

    def die(self, error: RayError) -> None:
        with self._lock:
            self.dead = self.dead or error
            for ref in self._open:
                ref.put(self.dead)
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            ref, name, given = call
            try:
                value = getattr(self.instance, name)(*given)
            except Exception as error:  # as Ray wraps it
                value = RayTaskError(repr(error))
            with self._lock:
                if self.dead is None:
                    ref.put(value)
                    self._open.remove(ref)


class FakeRay:
    """The part of the module `ray` that `WorkerPool` uses.

    Args:
        cpus: Of each node.
        room: Workers that are started; others wait for ever.
    """

    exceptions = SimpleNamespace(
        RayError=RayError, RayTaskError=RayTaskError, ActorDiedError=ActorDiedError,
        ActorUnavailableError=ActorUnavailableError,
    )  # fmt: skip

    def __init__(self, cpus: Sequence[float] = (8,), room: int = 1000) -> None:
        self.cpus = cpus
        self.room = room
        self.actors: list[Actor] = []

    def remote(self, kind: type) -> Any:
        return SimpleNamespace(options=lambda **asked: SimpleNamespace(remote=lambda: self._start(kind)))

    def _start(self, kind: type) -> Any:
        if len([actor for actor in self.actors if actor.dead is None]) >= self.room:
            return SimpleNamespace(set_up=SimpleNamespace(remote=lambda *given: Ref()))
        actor = Actor(self, kind)
        self.actors.append(actor)
        return actor

    def kill(self, actor: Any, no_restart: bool) -> None:
        if isinstance(actor, Actor):
            actor.die(ActorDiedError("it was killed"))

    def wait(self, refs: Sequence[Ref], num_returns: int = 1, timeout: float = 0) -> tuple[list[Ref], list[Ref]]:
        until = time.monotonic() + timeout
        while True:
            there = [ref for ref in refs if ref.there.is_set()]
            if len(there) >= num_returns or time.monotonic() >= until:
                return there, [ref for ref in refs if ref not in there]
            time.sleep(0.0005)

    def get(self, ref: Ref) -> Any:
        if isinstance(ref.value, RayError):
            raise ref.value
        return ref.value

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": cpus}} for cpus in self.cpus]

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 0.0}

    def is_initialized(self) -> bool:
        return False


Killer = Callable[[], None]
