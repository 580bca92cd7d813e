"""Interfaces between the runner and the commands: command, session, shards; and the opening of run directories."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from offline_agent.config.build_prefs import RunConfig
from offline_agent.config.loading import free_keys, growing_keys
from offline_agent.errors import ConfigError
from offline_agent.outgoing import masked
from offline_agent.runner.terminal import Progress, say
from offline_agent.store.manifest import Growth

if TYPE_CHECKING:
    from offline_agent.store.run_directory import RunDirectory
    from offline_agent.store.tracking import Tracker

DONE, FAILED, WRONG = 0, 1, 2
"""Exit statuses: done, failed while running, wrong request."""

C = TypeVar("C", bound=RunConfig)
P = TypeVar("P")


@dataclass(frozen=True)
class Facts:
    """Facts about a run that are known before it begins, for the manifest and for tracking.

    Attributes:
        manifest: Entries of the manifest: `seeds`, `hashes` (model, tokenizer, chat_template, task_set; a different
            hash is refused on resume), `served` (evidence of the servers' models; another model is refused),
            `policy`, `env` …
        tags: Tags for MLflow, beside commit and run directory.
        free: Dotted keys that may differ on resume, beside those declared free.
        fixed: Why keys of which there may be more on resume cannot grow in this run.
        first_tasks: Returns the hash of the first so many tasks; None = no key adds tasks.
    """

    manifest: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    free: tuple[str, ...] = ()
    fixed: Mapping[str, str] = field(default_factory=dict)
    first_tasks: Callable[[int], str] | None = None


@dataclass(frozen=True)
class Session(Generic[C]):
    """The resources of a running command.

    Attributes:
        config: The resolved configuration; `run_dir` is set.
        run: The run directory, locked.
        tracker: Receives metrics.
        progress: The progress bar, or a line every 30 s.
        say: Prints a line for the user on stderr.
    """

    config: C
    run: RunDirectory
    tracker: Tracker
    progress: Progress
    say: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Shard:
    """A slice of a run's tasks.

    Attributes:
        number: From 0.
        path: Its run directory.
        start, stop: Range of its tasks among the tasks of the run.
    """

    number: int
    path: Path
    start: int
    stop: int

    @property
    def file(self) -> Path:
        """Its configuration file."""
        return self.path.with_name(f"{self.path.name}.yaml")

    @property
    def tasks(self) -> int:
        """The number of its tasks."""
        return self.stop - self.start


@dataclass(frozen=True)
class Spread(Generic[C, P]):
    """The functions by which a command is divided into shards.

    Attributes:
        tasks: Returns the number of tasks.
        share: Does the work of a shard; returns its summary, with `seconds` and `this_session`.
        gather: Copies the results of shards into the run directory; raises DataError if a result is missing.
    """

    tasks: Callable[[P], int]
    share: Callable[[P, Session[C]], Mapping[str, Any]]
    gather: Callable[[P, Session[C], Sequence[Shard]], None]


@dataclass(frozen=True)
class Command(Generic[C, P]):
    """A command.

    Attributes:
        name: As in `python -m offline_agent.pipelines.<name>`.
        config: Class of its configuration.
        prepare: Loads and checks the inputs without writing (raises ConfigError with every fault); returns them with
            the facts for the manifest.
        run: Does the work; returns the summary, JSON-serialisable.
        show: Returns the closing text or table of a summary.
        complete: Fills in keys whose defaults depend on the environment or the model (`components.completed`); called
            before `prepare`.
        spread: Division of its tasks into shards; None = none.
        alone: Whether one process does it, whatever `launcher` says: another one is refused.
        failed: Whether a summary is that of a run whose subject failed: all is written, and the exit status is 1.
    """

    name: str
    config: type[C]
    prepare: Callable[[C], tuple[P, Facts]]
    run: Callable[[P, Session[C]], Mapping[str, Any]]
    show: Callable[[Mapping[str, Any], Path], Any]
    complete: Callable[[C], C] = lambda config: config
    spread: Spread[C, P] | None = None
    alone: bool = False
    failed: Callable[[Mapping[str, Any]], bool] = lambda summary: False


def open_run(command: Command[C, P], config: C, facts: Facts) -> tuple[C, RunDirectory]:
    """Open the run directory; return it with the configuration that names it. Raises as `RunDirectory.open`."""
    from offline_agent.sandbox.trust import fall, report_fall
    from offline_agent.store.provenance import sources
    from offline_agent.store.run_directory import RunDirectory

    config = config.model_copy(update={"run_dir": str(place(command.name, config.run_dir))})
    run = RunDirectory.open(
        config.run_dir or "",
        config=config.resolved(),
        facts={
            "seeds": {"run": config.seed}, "sources": sources(config.resolved()), **fall(),
            **masked(dict(facts.manifest)),
        },
        command=command.name,
        free=(*free_keys(command.config), *facts.free),
        growth=Growth(growing_keys(command.config, command.name), facts.fixed, facts.first_tasks),
    )
    say(f"{command.name}: {'going on with' if run.resumed else 'writing to'} {run.path}")
    for warning in run.warnings:
        say(f"{command.name}: {warning}")
    report_fall(lambda text: say(f"{command.name}: {text}"))
    return config, run


def place(name: str, run_dir: str | None) -> Path:
    """Return the given run directory, or a new name under `runs/`."""
    if run_dir is not None:
        return Path(run_dir)
    stamp = f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    names = itertools.chain([stamp], (f"{stamp}-{number}" for number in itertools.count(2)))
    return next(path for path in (Path("runs") / one for one in names) if not path.exists())


def refuse(command: Command[Any, Any], error: ConfigError) -> int:
    """Print every fault of a request, and return the exit status."""
    count = len(error.faults)
    say(f"{command.name}: the request is wrong ({count} fault{'s' * (count > 1)}), nothing was written:")
    for fault in error.faults:
        say(f"  {fault}")
    say(f"All keys: python -m offline_agent.pipelines.{command.name} --help")
    return WRONG
