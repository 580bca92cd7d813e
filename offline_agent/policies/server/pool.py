"""Pool of servers of one model behind the interface of one server; failing ones are out until a check succeeds.

A request that fails on one server is sent to another at once, unless it was refused (4xx) because of itself; where all
servers are out, requests wait. A server that is out is checked after a while. It is taken back when it has the model
and the current weights, and gives the log-probs of a fixed text that the others give (with token ids).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from offline_agent.errors import ConfigError, DataError, PolicyError, PolicyMismatch
from offline_agent.outgoing import masked
from offline_agent.policies.server.client import ModelServer
from offline_agent.policies.server.endpoint import RequestRefused, ServerUnreachable, model_name
from offline_agent.policies.server.router import Router
from offline_agent.policies.server.weights import WantedWeights
from offline_agent.policies.weights import WeightsLock, WeightUpdate

T = TypeVar("T")
LONGEST = 60.0  # seconds between two checks of a server that is out
PROMPT_SECONDS = 30.0  # for the list of models, which a working server answers at once
_log = logging.getLogger(__name__)


class ServerPool:
    """Servers of one model, and the requests to them. Thread-safe.

    Args:
        servers: Clients without retries of their own.
        model: The model's name on the servers; None = their only model.
        retries: Failures after which a request is given up; failed connections do not count.
        concurrency: Most requests in flight for each server, on average; one of several may have a quarter more.
        patience: Seconds that a request waits while all servers are out.
        backoff: Seconds until a server is checked after its first failure; doubled with every failure in a row.
        tolerance: Largest difference of any log-prob of the fixed text, nats.

    Raises:
        ConfigError: No server works, or they have different models; gives the reason of each.
    """

    def __init__(
        self,
        servers: Sequence[ModelServer],
        model: str | None,
        *,
        retries: int = 4,
        concurrency: int = 32,
        patience: float = 300.0,
        backoff: float = 1.0,
        tolerance: float = 0.25,
    ) -> None:
        if backoff <= 0 or concurrency < 1:
            raise ConfigError(f"policy: got backoff={backoff}, concurrency={concurrency}; allowed: above 0, from 1")
        self._servers = {server.url: server for server in servers}
        self._router = Router(list(self._servers), concurrency)
        self._retries, self._patience = retries, patience
        self._backoff, self._tolerance = backoff, tolerance
        self._condition = threading.Condition()  # guards the router and the update
        self._closing = threading.Event()
        self._gate = WeightsLock()
        self._update: WantedWeights | None = None
        self._agreed: tuple[float, ...] | None = None  # log-probs of the fixed text
        found = self._each(self._servers, lambda server: model_name(server.endpoint, model, PROMPT_SECONDS))
        names = sorted({name for name in found.values() if isinstance(name, str)})
        if not names:
            raise ConfigError([str(fault) for fault in found.values()])
        if len(names) > 1:
            raise ConfigError(f"policy.model: the servers of policy.url have {', '.join(names)}; name one of them")
        self.model = names[0]
        for server in servers:
            server.model = self.model
        failed, different = self._agree([name for name in found if isinstance(found[name], str)])
        if different or len(failed) == len(servers):
            raise ConfigError(list((different or failed).values()))
        for name in found:
            if name in failed or not isinstance(found[name], str):
                self._eject(name, failed.get(name, str(found[name])))

    def run(self, key: str, job: Callable[[ModelServer], T]) -> T:
        """Return the result of a job on one of the servers.

        Args:
            key: Jobs with the same key go to the same server where possible.
            job: Sends a request to one server; may be called again with another server.

        Raises:
            PolicyError: A server refuses it, or has another model; it failed too often, or all were out for too long.
        """
        failures: dict[str, str] = {}
        failed, waited = 0, 0.0
        while True:
            with self._gate.answering():  # not held while waiting: an update must not wait for waiting requests
                with self._condition:
                    if self._closing.is_set():
                        raise PolicyError("the policy is closed")
                    name = self._router.choose(key, failures)
                    if name is not None:
                        self._router.states[name].in_flight += 1
                if name is not None:
                    try:
                        return self._ask(name, job)
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
                waited += self._wait(key, failures, waited)

    def _ask(self, name: str, job: Callable[[ModelServer], T]) -> T:
        why, state = "", self._router.states[name]
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
                state.in_flight -= 1
                if why and state.out is None:  # else it is known to be out
                    self._eject(name, why)
                state.falls = state.falls if why else 0
                self._condition.notify_all()

    def _wait(self, key: str, failures: Mapping[str, str], waited: float) -> float:
        """Wait until a request may be sent; return the seconds during which all servers were out."""
        with self._condition:
            started, out = time.monotonic(), not self._router.live()
            if out and waited >= self._patience:
                raise self._all_out(f"none came back within {self._patience:g} s (policy.patience)")

            def changed() -> bool:
                free = self._router.choose(key, failures) is not None
                return free or self._closing.is_set() or (not out and not self._router.live())

            self._condition.wait_for(changed, self._patience - waited if out else None)
            return time.monotonic() - started if out else 0.0

    def _all_out(self, what: str) -> PolicyError:
        reasons = {name: state.out for name, state in self._router.states.items()}
        return PolicyError(f"all {len(reasons)} servers are out, {what}: {_listed(reasons)}")

    def _eject(self, name: str, why: str) -> None:
        """Take a server out, and check it until it works again; where it is out already, note the new reason."""
        with self._condition:
            state = self._router.states[name]
            was_in, state.out = state.out is None, why
            state.falls += 1
            if was_in:
                state.ejections += 1
                threading.Thread(target=self._revive, args=(name, why), name=f"check {name}", daemon=True).start()
            self._condition.notify_all()

    def _revive(self, name: str, why: str) -> None:
        """Check a server that is out until it works again."""
        _log.warning("server %s is out: %s", masked(name), masked(why))
        state = self._router.states[name]
        while not self._closing.wait(min(LONGEST, self._backoff * 2.0 ** min(state.falls - 1, 60))):
            with self._condition:
                update = self._update
                if state.out is None:  # an update of the weights took it back
                    return
            try:
                self._check(self._servers[name], update)
            except Exception as error:  # any error keeps the server out
                if self._update is update:  # else the error may be due to the deleted folder of older weights
                    self._eject(name, str(error) or type(error).__name__)
                continue
            if self._restore(name, update):
                _log.warning("server %s is back", masked(name))
                return

    def _restore(self, name: str, update: WantedWeights | None) -> bool:
        """Take a server back unless its weights are outdated; return whether it was taken back."""
        with self._condition:
            if self._update is not update:
                return False
            self._router.states[name].out = None
            self._condition.notify_all()
            return True

    def _check(self, server: ModelServer, update: WantedWeights | None) -> None:
        """Check a server's model and log-probs; load the weights of the update first where it does not have them."""
        server.model = model_name(server.endpoint, self.model, PROMPT_SECONDS)
        if update is not None and not server.weights.holds(update.version):
            server.weights.take(update)
        if self._agreed is not None and (why := self._difference(server.url, server.fixed_logps())) is not None:
            raise PolicyError(why)

    def _each(self, names: Collection[str], job: Callable[[ModelServer], Any]) -> dict[str, Any]:
        """Run a job on several servers at once; return the result or error of each by its address."""

        def guarded(name: str) -> Any:
            try:
                return job(self._servers[name])
            except (PolicyError, ConfigError, DataError) as error:
                return error

        with ThreadPoolExecutor(max(1, len(names)), "servers") as pool:
            return dict(zip(names, pool.map(guarded, names), strict=True))

    def _agree(self, names: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
        """Make the log-probs of the first server those of all.

        Returns:
            The servers that give none though others do, and those that differ, each with a message for the user.
        """
        scores = self._each(names, lambda server: server.fixed_logps())
        known = {name: logps for name, logps in scores.items() if isinstance(logps, tuple)}
        self._agreed = next(iter(known.values()), None)
        missing = {name: f"{name} cannot be compared with the others: {scores[name]}" for name in scores.keys() - known}
        different = {name: why for name in known if (why := self._difference(name, known[name])) is not None}
        return missing if known else {}, different

    def _difference(self, name: str, logps: tuple[float, ...] | None) -> str | None:
        gap = max((abs(one - other) for one, other in zip(self._agreed or (), logps or (), strict=True)), default=0.0)
        if gap <= self._tolerance:
            return None
        return (
            f"{name} has another model, or other weights: its log-probs of a fixed text differ by up to {gap:.3g} from "
            f"those of the other servers, allowed: {self._tolerance:g} (policy.probe_tolerance). Start it with the "
            "model that they serve, or leave it out of policy.url."
        )

    def check_takes_weights(self, adapters: bool) -> None:
        """See `ServerPolicy.check_takes_weights`."""
        names = self._router.live()
        faults = [error for error in self._each(names, lambda server: server.weights.check(adapters)).values() if error]
        if wrong := [str(error) for error in faults if isinstance(error, ConfigError)]:
            raise ConfigError(wrong)
        if len(faults) == len(names) > 0:
            raise faults[0]

    def take_weights(self, update: WantedWeights) -> WeightUpdate:
        """See `ServerPolicy.take_weights`."""
        started = time.perf_counter()
        with self._gate.changing():
            waited = time.perf_counter() - started
            taken = self._give(update)
        with self._condition:
            self._condition.wait_for(lambda: self._router.live() or self._closing.is_set(), self._patience)
            if not self._router.live():
                raise self._all_out(f"none took the new weights within {self._patience:g} s (policy.patience)")
        gaps = [one.gap for one in taken if one.gap is not None]
        shifts = [one.shift for one in taken if one.shift is not None]
        gap, shift = max(gaps, default=None), max(shifts, default=None)
        return WeightUpdate(update.version, time.perf_counter() - started, waited, gap, shift)

    def _give(self, update: WantedWeights) -> list[WeightUpdate]:
        """Load the weights on the servers that are in (on all where none is); a server that fails is taken out."""
        with self._condition:
            before, self._update = self._update, update
            names = self._router.live() or list(self._servers)
        results: Mapping[str, Any] = self._each(names, lambda server: server.weights.take(update))
        if all(isinstance(result, ConfigError) for result in results.values()):
            with self._condition:
                self._update = before
            raise ConfigError([str(error) for error in results.values()])
        took = [name for name in names if isinstance(results[name], WeightUpdate)]
        failed, different = self._agree(took)
        faults = {name: str(results[name]) for name in names if name not in took} | failed | different
        for name in names:
            if name in faults:
                self._eject(name, faults[name])
            else:
                self._restore(name, update)
        return [results[name] for name in names if name not in faults]

    def figures(self) -> list[dict[str, Any]]:
        """See `ServerPolicy.server_figures`."""
        with self._condition:
            known = {name: {"ejections": s.ejections, "out": masked(s.out)} for name, s in self._router.states.items()}
        return [{**server.figures()[0], **known[name]} for name, server in self._servers.items()]

    def close(self) -> None:
        """Fail the waiting requests and close the connections."""
        self._closing.set()
        with self._condition:
            self._condition.notify_all()
        for server in self._servers.values():
            server.close()


def _listed(reasons: Mapping[str, str | None]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in reasons.items())
