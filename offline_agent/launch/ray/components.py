"""What the pipelines share under `launcher=ray`: the crew, what its workers are made of, and what they counted."""

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
from offline_agent.store.provenance import code_hash

if TYPE_CHECKING:
    from offline_agent.launch.ray.jobs import Crew, Hand

C = TypeVar("C", bound=RunConfig)
N = TypeVar("N")

_EXAMPLES = 20
_SERVERS_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a worker makes its parts from: the resolved configuration, and what they must turn out to be.

    Attributes:
        kind: Class of the configuration.
        config: The configuration, as JSON.
        hashes: Of the driver's model, tokenizer, chat template and tasks.
        code: Hash of the driver's code.
        replay_only: Copies of the environment were found to be no snapshots.
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
        """Return the recipe of parts that the driver has."""
        data = json.dumps(config.model_dump(mode="json"))
        spec = parts.spec
        return cls(type(config), data, facts_of(parts)["hashes"], code_hash(), spec.replay_only, spec.isolated)

    def make(self) -> tuple[Config, Parts, tuple[str, ...]]:
        """Return configuration, parts, and what the user should be told; in a worker.

        Raises:
            ConfigError: A part cannot be made here.
            DataError: The parts are not the driver's.
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
        code = code_hash()
        other = f"its code ({code[:12]}) differs from the code that runs the command ({self.code[:12]})"
        return config, parts, (other,) if code != self.code else ()


@contextlib.contextmanager
def crew(
    config: RunConfig,
    factory: Callable[[], Hand],
    jobs: int,
    in_flight: int,
    session: Session[Any],
    sound: bool = False,
) -> Iterator[Crew]:
    """Connect to the cluster, or start one, and put workers in it for as long as the context lasts.

    Args:
        config: Its section `ray`.
        factory: See `Crew`.
        jobs: How many there will be: more workers than that are of no use.
        in_flight: Jobs that one worker has at a time, where `ray.in_flight` says nothing.
        session: The run.
        sound: See `Crew`.
    """
    from offline_agent.launch.ray import jobs as cluster

    asked = config.ray
    with cluster.connected(asked.address, (asked.workers or 1) * asked.cpus):
        workers = min(jobs, asked.workers or max(1, cluster.fitting(asked.cpus, asked.gpus)))
        fair = math.ceil(jobs / workers)  # whoever starts first leaves the others something
        terms = cluster.Terms(
            workers=workers, cpus=asked.cpus, gpus=asked.gpus, in_flight=min(fair, asked.in_flight or in_flight),
            deaths=asked.deaths, start_seconds=asked.start_seconds, silent_seconds=asked.silent_seconds,
            fixed=asked.address is None,
        )  # fmt: skip
        name = session.run.manifest["command"]
        with cluster.Crew(factory, terms, lambda text: session.say(f"{name}: {text}"), sound) as made:
            yield made


def added(kind: type[N], parts: Sequence[Mapping[str, Any]]) -> N:
    """Return the sum of counts: numbers are added, texts gathered.

    Args:
        kind: A dataclass of numbers and lists of texts, e.g. `RunCounts`.
        parts: As `dataclasses.asdict` gives them; what is missing counts as nothing.
    """
    total: dict[str, Any] = {}
    for name in (entry.name for entry in fields(kind)):  # type: ignore[arg-type]  # a dataclass
        values = [part[name] for part in parts if name in part]
        if values and isinstance(values[0], list):
            total[name] = list(dict.fromkeys(text for value in values for text in value))[:_EXAMPLES]
        elif values:
            total[name] = sum(values)
    return kind(**total)


def workers(crew: Crew, phases: Sequence[str]) -> list[dict[str, Any]]:
    """Return a line for each worker: where it was, what it did, and how often it died.

    Args:
        crew: The crew.
        phases: Those whose counts are added up.
    """
    lines: dict[int, dict[str, Any]] = {}
    for phase in phases:
        for one in crew.figures(phase):
            line = lines.setdefault(one["worker"], {name: one[name] for name in ("worker", "host", "done", "deaths")})
            for counts in one["counts"]:
                for name, value in counts.get("line", {}).items():
                    line[name] = round(line.get(name, 0) + value, 2)
    return list(lines.values())


class Servers:
    """What a worker asked of its policy's servers; asking takes a request of its own, so it is done now and then.

    Args:
        policy: The policy, with or without servers.
    """

    def __init__(self, policy: Any) -> None:
        self._ask = getattr(policy, "server_figures", None)
        self._asked = time.monotonic()
        self._known: dict[str, Any] = {}

    def figures(self, last: bool) -> dict[str, Any]:
        """Return `servers`, for the figures of a `Hand`; nothing where there are none."""
        if self._ask is not None and (last or time.monotonic() - self._asked > _SERVERS_SECONDS):
            self._known = {"servers": self._ask()}
            self._asked = time.monotonic()
        return self._known


def counts(crew: Crew, phase: str, name: str) -> list[Any]:
    """Return the counts of a name that the workers of a phase sent, of each process one."""
    return [part[name] for one in crew.figures(phase) for part in one["counts"] if part.get(name)]
