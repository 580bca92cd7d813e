"""What a pipeline is to the frame that carries it out, and what it works with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from offline_agent.config.build_prefs import RunConfig
from offline_agent.runner.progress import Progress

if TYPE_CHECKING:
    from offline_agent.store.run_directory import RunDirectory
    from offline_agent.tracking.client import Tracker

DONE, FAILED, WRONG = 0, 1, 2
"""Exit statuses: done, failed while running, wrong request."""

C = TypeVar("C", bound=RunConfig)
P = TypeVar("P")


@dataclass(frozen=True)
class Facts:
    """What a pipeline knows before it begins, for the manifest and for tracking.

    Attributes:
        manifest: Put into the manifest as it is: `seeds`, `hashes` (model, tokenizer, chat_template, task_set; one
            that differs on resume is refused), `served` (what servers say of their models; another model is refused),
            `policy`, `env` …
        tags: Tags for MLflow beside commit and run directory.
        free: Dotted keys that may differ on resume, beside those that always may.
    """

    manifest: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    free: tuple[str, ...] = ()


@dataclass(frozen=True)
class Session(Generic[C]):
    """What a running pipeline works with.

    Attributes:
        config: The resolved configuration; `run_dir` is set.
        run: The run directory, locked.
        tracker: Where metrics go.
        progress: The bar, or the line every 30 s.
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
        start, stop: Its tasks, as places among the run's.
    """

    number: int
    path: Path
    start: int
    stop: int

    @property
    def file(self) -> Path:
        """Its configuration."""
        return self.path.with_name(f"{self.path.name}.yaml")

    @property
    def tasks(self) -> int:
        """How many tasks it has."""
        return self.stop - self.start


@dataclass(frozen=True)
class Spread(Generic[C, P]):
    """How a pipeline is cut into shards.

    Attributes:
        tasks: Returns how many tasks there are.
        share: Does a shard's work; returns its summary, with `seconds` and `this_session`.
        gather: Takes what shards made into the run directory; raises DataError where something is missing.
    """

    tasks: Callable[[P], int]
    share: Callable[[P, Session[C]], Mapping[str, Any]]
    gather: Callable[[P, Session[C], Sequence[Shard]], None]


@dataclass(frozen=True)
class Command(Generic[C, P]):
    """One pipeline.

    Attributes:
        name: As in `python -m offline_agent.pipelines.<name>`.
        config: Its keys.
        prepare: Load what can be found faulty without writing anything (raises ConfigError with every fault), and
            return it with the facts for the manifest.
        run: Do the work; returns the summary, JSON-serialisable.
        show: Turn the summary into what is printed at the end: the text, or anything rich can print.
        spread: How its tasks are cut into shards that are run apart; None = it is one piece.
    """

    name: str
    config: type[C]
    prepare: Callable[[C], tuple[P, Facts]]
    run: Callable[[P, Session[C]], Mapping[str, Any]]
    show: Callable[[Mapping[str, Any], Path], Any]
    spread: Spread[C, P] | None = None


class Expectation(Protocol):
    """A plan that was made before a run, for the end of its summary."""

    def against(self, summary: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return expected beside actual figures."""

    def show(self, figures: Mapping[str, Any]) -> Any:
        """Return what is printed of them."""


class Extensions(Protocol):
    """The launchers and the planner of a command. They are handed to the runner, which knows neither."""

    def launcher(
        self, command: Command[Any, Any], config: RunConfig, part: str | None, arguments: list[str]
    ) -> Callable[..., int] | None:
        """Return what carries the command out in place of this process alone; None = nothing does.

        Args:
            command: The pipeline.
            config: Its configuration.
            part: `--submit`, `--shard`, `--merge` or None.
            arguments: The command line.

        Raises:
            ConfigError: An option that goes with something else, or there is no such launcher on this machine.
        """

    def merge(self, spread: Spread[Any, Any], prepared: Any, session: Session[Any]) -> Any:
        """Gather what shards made; return what the summary says of them."""

    def check_plan(self, config: RunConfig, planned: bool) -> None:
        """Raise ConfigError where the keys of the plan contradict each other."""

    def plan(self, name: str, config: RunConfig, say: Callable[[str], None]) -> Any:
        """Return what is printed of the costs that a command is expected to have."""

    def expectation(
        self, name: str, config: RunConfig, run: RunDirectory, say: Callable[[str], None]
    ) -> Expectation | None:
        """Return what the run is expected to cost, where it was begun with a plan; else None."""
