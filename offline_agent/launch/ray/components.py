"""Shared parts of commands under `launcher=ray`: the pool, the components of its workers, and their counts."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from offline_agent.config.build_prefs import RunConfig
from offline_agent.errors import DataError
from offline_agent.runner.components import Config, Parts, facts_of, make_parts
from offline_agent.runner.pipeline import Session
from offline_agent.store.provenance import code_hash, hash_json, sources

if TYPE_CHECKING:
    from offline_agent.launch.ray.pool import WorkerPool
    from offline_agent.launch.ray.worker import Executor

C = TypeVar("C", bound=RunConfig)
N = TypeVar("N")

_EXAMPLES = 20
_SERVERS_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """The resolved configuration from which a worker makes its components, and the hashes that they must have.

    Attributes:
        kind: Class of the configuration.
        config: The configuration as JSON.
        hashes: Hashes of the driver's model, tokenizer, chat template and tasks.
        code: Hash of the driver's code.
        replay_only: Copies of the environment are no snapshots (found by `copy_check`).
        isolated: Environments run in processes of their own.
    """

    kind: type[Config]
    config: str
    hashes: Mapping[str, str]
    code: str
    replay_only: bool
    isolated: bool

    @classmethod
    def of(cls, config: Config, parts: Parts) -> Recipe:
        """Return the recipe of the driver's components."""
        data = json.dumps(config.model_dump(mode="json"))
        spec = parts.spec
        return cls(type(config), data, facts_of(parts)["hashes"], _code(config), spec.replay_only, spec.isolated)

    def make(self) -> tuple[Config, Parts, tuple[str, ...]]:
        """Make the components in a worker; return the configuration, the components and notes for the user.

        Raises:
            ConfigError: A component cannot be made here.
            DataError: A component differs from the driver's.
        """
        config = self.kind.model_validate(json.loads(self.config))
        parts = make_parts(config)
        here = facts_of(parts)["hashes"]
        if differ := [name for name in sorted(self.hashes) if here.get(name) != self.hashes[name]]:
            raise DataError(
                f"this machine has another {', another '.join(differ)} than the one where the command was given; "
                "workers need the same models and task files under the same paths"
            )
        parts.spec.replay_only, parts.spec.isolated = self.replay_only, self.isolated
        code = _code(config)
        other = f"its code ({code[:12]}) differs from the code that runs the command ({self.code[:12]})"
        return config, parts, (other,) if code != self.code else ()


def _code(config: RunConfig) -> str:
    """Return the hash of the code here: this package's, and what the configuration names."""
    return hash_json([code_hash(), sources(config.model_dump(mode="json"))])


@contextlib.contextmanager
def worker_pool(
    config: RunConfig,
    factory: Callable[[], Executor],
    items: int,
    in_flight: int,
    session: Session[Any],
    proven: bool = False,
) -> Iterator[WorkerPool]:
    """Connect to the cluster, or start one, and keep a pool of workers in it inside the context.

    Args:
        config: The configuration; its section `ray` is used.
        factory: See `WorkerPool`.
        items: Number of items; the pool has no more workers than that.
        in_flight: Items that a worker has at once, where `ray.in_flight` is null.
        session: The run.
        proven: See `WorkerPool`.
    """
    from offline_agent.launch.ray import cluster
    from offline_agent.launch.ray.pool import WorkerPool
    from offline_agent.launch.ray.work_items import PoolSettings

    asked = config.ray
    with cluster.connected(asked.address, (asked.workers or 1) * asked.cpus):
        workers = min(items, asked.workers or max(1, cluster.fitting(asked.cpus, asked.gpus)))
        fair = math.ceil(items / workers)  # the worker that starts first must leave items for the others
        settings = PoolSettings.of(asked, workers, min(fair, asked.in_flight or in_flight))
        name = session.run.manifest["command"]
        with WorkerPool(factory, settings, lambda text: session.say(f"{name}: {text}"), proven) as made:
            yield made


def added(kind: type[N], parts: Sequence[Mapping[str, Any]]) -> N:
    """Return the sum of counts: numbers are added, lists of texts are joined.

    Args:
        kind: A dataclass of numbers and lists of texts, e.g. `RunCounts`.
        parts: Dictionaries of `dataclasses.asdict`; a missing field counts as nothing.
    """
    total: dict[str, Any] = {}
    for name in (entry.name for entry in fields(kind)):  # type: ignore[arg-type]  # a dataclass
        values = [part[name] for part in parts if name in part]
        if values and isinstance(values[0], list):
            total[name] = list(dict.fromkeys(text for value in values for text in value))[:_EXAMPLES]
        elif values:
            total[name] = sum(values)
    return kind(**total)


def workers(pool: WorkerPool, phases: Sequence[str]) -> list[dict[str, Any]]:
    """Return a record for each worker: its host, its counts, and how often it died.

    Args:
        pool: The pool.
        phases: The phases whose counts are added up.
    """
    lines: dict[int, dict[str, Any]] = {}
    for phase in phases:
        for one in pool.figures(phase):
            line = lines.setdefault(one["worker"], {name: one[name] for name in ("worker", "host", "done", "deaths")})
            for counts in one["counts"]:
                for name, value in counts.get("line", {}).items():
                    line[name] = round(line.get(name, 0) + value, 2)
    return list(lines.values())


class ServerFigures:
    """Figures of the servers of a worker's policy; asked for at intervals, since they cost a request.

    Args:
        policy: The policy, with or without servers.
    """

    def __init__(self, policy: Any) -> None:
        self._ask = getattr(policy, "server_figures", None)
        self._asked = time.monotonic()
        self._known: dict[str, Any] = {}

    def figures(self, last: bool) -> dict[str, Any]:
        """Return the entry `servers` for `Executor.figures`; nothing where the policy has no servers."""
        if self._ask is not None and (last or time.monotonic() - self._asked > _SERVERS_SECONDS):
            self._known = {"servers": self._ask()}
            self._asked = time.monotonic()
        return self._known


def counts(pool: WorkerPool, phase: str, name: str) -> list[Any]:
    """Return the counts under a name that the workers of a phase sent, one for each process."""
    return [part[name] for one in pool.figures(phase) for part in one["counts"] if part.get(name)]
