"""Pool of servers of one model behind the interface of one server: requests, weights and figures."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offline_agent.errors import ConfigError
from offline_agent.outgoing import masked
from offline_agent.policies.server.agreement import each
from offline_agent.policies.server.dispatch import Dispatch
from offline_agent.policies.server.weights import KeptCheckpoint, forget, keep
from offline_agent.policies.weights import Probe, Shapes, WeightUpdate, check_same_model, tensor_shapes


class ServerPool(Dispatch):
    """The pool; see `Dispatch` for the arguments."""

    _shapes: Shapes | None = None

    def check_takes_weights(self) -> None:
        """See `ServerPolicy.check_takes_weights`."""
        names = self._live()
        faults = [error for error in each(self._those(names), lambda server: server.weights.check()).values() if error]
        wrong = [str(error) for error in faults if isinstance(error, ConfigError)]
        if wrong:
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
        update = keep(path, probe, timeout, self._update)
        with self._gate.changing():
            waited = time.perf_counter() - started
            taken = self._give(update)
        self._shapes = shapes
        self._await_one()
        gaps = [one.gap for one in taken if one.gap is not None]
        shifts = [one.shift for one in taken if one.shift is not None]
        seconds = time.perf_counter() - started
        return WeightUpdate(update.version, seconds, waited, max(gaps, default=None), max(shifts, default=None))

    def _give(self, update: KeptCheckpoint) -> list[WeightUpdate]:
        """Load the weights on the servers that are in (on all where none is); a server that fails is taken out."""
        with self._condition:
            before, self._update = self._update, update
            names = self._router.live() or list(self._servers)
        results: Mapping[str, Any] = each(
            self._those(names),
            lambda server: server.weights.take(update.folder, update.probe, update.timeout, update.version),
        )
        if all(isinstance(result, ConfigError) for result in results.values()):
            with self._condition:
                self._update = before
            forget(update)
            raise ConfigError([str(error) for error in results.values()])
        took = [name for name in names if isinstance(results[name], WeightUpdate)]
        faults = {name: str(results[name]) for name in names if name not in took}
        for name, why in (faults | self._agreement.vote(self._those(took))).items():
            self._eject(name, why)
            took = [one for one in took if one != name]
        for name in took:
            self._restore(name, update)
        if before is not None:
            forget(before)
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

    def cache_figures(self) -> dict[str, int] | None:
        """See `ServerPolicy.cache_figures`."""
        found = list(each(self._those(self._live()), lambda server: server.weights.cache_figures()).values())
        known = [one for one in found if isinstance(one, dict)]
        errors = [one for one in found if isinstance(one, Exception)]
        if errors and not known:
            raise errors[0]
        return {name: sum(one[name] for one in known) for name in ("queries", "hits")} if known else None

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
        if self._update is not None:
            forget(self._update)
        for server in self._servers.values():
            server.close()
