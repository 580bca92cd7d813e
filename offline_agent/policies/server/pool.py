"""Pool of servers of one model behind the interface of one server; failing ones are out until a check succeeds.

A request that fails on one server is sent to another at once, unless it was refused (4xx) because of itself.
Where all servers are full or out, requests wait (`server.router`). A server that is out is checked after a while. It is
taken back when it has the model and the current weights, and agrees with the others on the log-probs of a fixed text
(with token ids; `server.agreement`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from offline_agent.errors import ConfigError, PolicyError, PolicyMismatch
from offline_agent.outgoing import masked
from offline_agent.policies.server.agreement import PROMPT_SECONDS, Agreement, each
from offline_agent.policies.server.client import ModelServer
from offline_agent.policies.server.endpoint import RequestRefused, ServerUnreachable, model_name
from offline_agent.policies.server.router import Router, ServerQueue, WaitingRequest
from offline_agent.policies.server.weights import WantedWeights, new_name
from offline_agent.policies.weights import Probe, Shapes, WeightsLock, WeightUpdate, check_same_model, tensor_shapes
from offline_agent.rendering.renderer import Renderer

T = TypeVar("T")
_log = logging.getLogger(__name__)


class ServerPool:
    """Servers of one model, and the requests to them. Thread-safe.

    Args:
        servers: Strict clients without retries of their own.
        model: The model's name on the servers; None = their only model.
        renderer: Renderer of the model, for token ids in and out; None = chat.
        retries: Failures after which a request is given up; failed connections do not count.
        concurrency: Most requests at one server at once.
        patience: Seconds that a request waits while all servers are out.
        bound, backoff: See `router.Router`.
        tolerance: See `Agreement`.

    Raises:
        ConfigError: No server works; gives the reason of each.
    """

    def __init__(
        self,
        servers: Sequence[ModelServer],
        model: str | None,
        renderer: Renderer | None,
        *,
        retries: int = 4,
        concurrency: int = 32,
        patience: float = 300.0,
        bound: float = 1.25,
        backoff: float = 1.0,
        tolerance: float = 0.25,
    ) -> None:
        self._servers = {server.url: server for server in servers}
        self._router = Router(list(self._servers), bound=bound, most=concurrency, backoff=backoff)
        self._retries, self._patience = retries, patience
        self._agreement = Agreement(renderer, tolerance)
        self._queue = ServerQueue(self._router)
        self._condition = threading.Condition()  # guards the router, the queue, the reasons and the update
        self._closing = threading.Event()
        self._gate = WeightsLock()
        self._reasons: dict[str, str] = {}
        self._update: WantedWeights | None = None
        self._shapes: Shapes | None = None
        self.model, faults = self._agreement.begin(list(self._servers.values()), model)
        for url, why in faults.items():
            self._eject(url, why)

    def run(self, key: str, job: Callable[[ModelServer], T]) -> T:
        """Return the result of a job on one of the servers.

        Args:
            key: Jobs with the same key go to the same server where possible.
            job: Sends a request to one server; may be called again with another server.

        Raises:
            Refused: A server refuses what every server would.
            PolicyMismatch: A server's answers are of another model.
            PolicyError: It failed too often, or all servers were out for too long; names each with its last error.
        """
        failures: dict[str, str] = {}
        failed, waited = 0, 0.0
        waiter = self._queue.waiter(key, failures)
        try:
            while True:
                with self._gate.answering():  # not held while waiting: an update must not wait for waiting requests
                    name, began = self._choose(waiter)
                    if name is not None:
                        try:
                            return self._ask(name, began, job)
                        except PolicyMismatch:
                            raise
                        except PolicyError as error:
                            if isinstance(error, RequestRefused) and not error.by_this_server_alone:
                                raise
                            failures[name] = str(error)
                            failed += not isinstance(error, ServerUnreachable) or error.made
                            if failed > self._retries:
                                raise PolicyError(f"a request failed {failed} times: {_listed(failures)}") from error
                if name is None:
                    waited += self._wait(waiter, waited)
        finally:
            with self._condition:
                self._queue.leave(waiter)
                self._call_next()

    def _choose(self, waiter: WaitingRequest) -> tuple[str | None, int]:
        with self._condition:
            self._check_open()
            self._queue.join(waiter)
            name = self._queue.take(waiter)
            began = 0 if name is None else self._router.begin(name)
            self._call_next()
            return name, began

    def _call_next(self) -> None:
        """Wake the request whose turn it is; called after every change that can affect the turn, with the lock held."""
        waiter = self._queue.next()
        if waiter is not None:
            waiter.turn.set()

    def _call_all(self) -> None:
        """Wake all waiting requests; the lock is held."""
        self._condition.notify_all()
        for waiter in self._queue.waiting:
            waiter.turn.set()

    def _ask(self, name: str, began: int, job: Callable[[ModelServer], T]) -> T:
        why = ""
        try:
            return job(self._servers[name])
        except PolicyError as error:
            why = "" if isinstance(error, RequestRefused) and not error.by_this_server_alone else str(error) or "failed"
            raise
        except ConfigError as error:  # it was restarted without the development mode: it has no weight routes
            why = str(error)
            raise PolicyError(why) from error
        finally:
            with self._condition:
                if self._router.end(name, not why, began):
                    self._fell(name, why)
                self._call_next()

    def _wait(self, waiter: WaitingRequest, waited: float) -> float:
        """Wait for a change; return the seconds during which all servers were out."""
        with self._condition:
            self._check_open()
            if self._queue.next() is waiter:
                return 0.0
            started, out = time.monotonic(), not self._router.live()
            if out and waited >= self._patience:
                raise self._all_out(f"none came back within {self._patience:g} s (policy.patience)")
            waiter.turn.clear()
        waiter.turn.wait(self._patience - waited if out else None)
        return time.monotonic() - started if out else 0.0

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise PolicyError("the policy is closed")

    def _all_out(self, what: str) -> PolicyError:
        return PolicyError(f"all {len(self._servers)} servers are out, {what}: {_listed(self._reasons)}")

    def _fell(self, name: str, why: str) -> None:
        """Store why a server was taken out, and check it until it works again; the lock is held."""
        self._reasons[name] = why
        self._call_all()  # a request that waited for a free place may now have to wait with a time limit
        if not self._closing.is_set():
            threading.Thread(target=self._revive, args=(name, why), name=f"check {name}", daemon=True).start()

    def _live(self) -> list[str]:
        with self._condition:
            return self._router.live()

    def _those(self, names: Sequence[str]) -> list[ModelServer]:
        return [self._servers[name] for name in names]

    def _eject(self, name: str, why: str) -> None:
        with self._condition:
            if self._router.eject(name):
                self._fell(name, why)
            self._reasons[name] = why

    def _revive(self, name: str, why: str) -> None:
        """Check a server that is out until it works again."""
        _log.warning("server %s is out: %s", masked(name), masked(why))
        while True:
            with self._condition:
                left, update = self._router.wait(name), self._update
            if self._closing.wait(left) or name in self._live():
                return  # an update of the weights took it back
            try:
                self._check(self._servers[name], update)
            except Exception as error:  # any error keeps the server out
                if self._update is update:  # else the error may be due to the deleted folder of older weights
                    self._eject(name, str(error) or type(error).__name__)
                continue
            if self._restore(name, update):
                break
        _log.warning("server %s is back", masked(name))

    def _restore(self, name: str, update: WantedWeights | None) -> bool:
        """Take a server back unless its weights are outdated; return whether it was taken back."""
        with self._condition:
            if self._update is not update:
                return False
            self._router.restore(name)
            self._call_all()
            return True

    def _check(self, server: ModelServer, update: WantedWeights | None) -> None:
        """Check a server's model and log-probs; load the weights of the update first where it does not have them."""
        server.model = model_name(server.endpoint, self.model, PROMPT_SECONDS)
        if update is not None and not server.weights.holds(update.version):
            server.weights.take(*update)
        self._agreement.check(server)

    def check_takes_weights(self) -> None:
        """See `ServerPolicy.check_takes_weights`."""
        names = self._live()
        faults = [error for error in each(self._those(names), lambda server: server.weights.check()).values() if error]
        if wrong := [str(error) for error in faults if isinstance(error, ConfigError)]:
            raise ConfigError(wrong)
        if faults and len(faults) == len(names):
            raise faults[0]

    def take_weights(self, folder: str | Path, probe: Probe | None, timeout: float) -> WeightUpdate:
        """See `ServerPolicy.take_weights`."""
        started = time.perf_counter()
        path = Path(folder).expanduser().resolve()
        shapes = tensor_shapes(path)
        if self._shapes is not None:
            check_same_model(self._shapes, shapes)
        update = WantedWeights(path, probe, timeout, new_name(path))
        with self._gate.changing():
            waited = time.perf_counter() - started
            taken = self._give(update)
        self._shapes = shapes
        self._await_one()
        gaps = [one.gap for one in taken if one.gap is not None]
        shifts = [one.shift for one in taken if one.shift is not None]
        seconds = time.perf_counter() - started
        return WeightUpdate(update.version, seconds, waited, max(gaps, default=None), max(shifts, default=None))

    def _give(self, update: WantedWeights) -> list[WeightUpdate]:
        """Load the weights on the servers that are in (on all where none is); a server that fails is taken out."""
        with self._condition:
            before, self._update = self._update, update
            names = self._router.live() or list(self._servers)
        results: Mapping[str, Any] = each(self._those(names), lambda server: server.weights.take(*update))
        if all(isinstance(result, ConfigError) for result in results.values()):
            with self._condition:
                self._update = before
            raise ConfigError([str(error) for error in results.values()])
        took = [name for name in names if isinstance(results[name], WeightUpdate)]
        faults = {name: str(results[name]) for name in names if name not in took}
        for name, why in (faults | self._agreement.vote(self._those(took))).items():
            self._eject(name, why)
            took = [one for one in took if one != name]
        for name in took:
            self._restore(name, update)
        return [results[name] for name in took]

    def _await_one(self) -> None:
        """Wait for a server that has the current weights."""
        until = time.monotonic() + self._patience
        with self._condition:
            while not self._router.live():
                self._check_open()
                if time.monotonic() >= until:
                    raise self._all_out(f"none took the new weights within {self._patience:g} s (policy.patience)")
                self._condition.wait(until - time.monotonic())

    def figures(self) -> list[dict[str, Any]]:
        """See `ServerPolicy.server_figures`."""
        with self._condition:
            out = {name: self._reasons.get(name) for name in self._servers if name not in self._router.live()}
            falls = {name: self._router.states[name].ejections for name in self._servers}
        found = each(self._servers.values(), lambda server: server.figures(reachable=server.url not in out)[0])
        return [{**found[name], "ejections": falls[name], "out": masked(out.get(name))} for name in self._servers]

    def close(self) -> None:
        """Fail the waiting requests and close the connections."""
        self._closing.set()
        with self._condition:
            self._call_all()
        for server in self._servers.values():
            server.close()


def _listed(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in reasons.items())
