"""Expected cost of a run, from a small run of the same configuration (the probe) or from given figures.

The probe is the command itself on a few tasks (updates, rounds), in a process and a directory of its own; the
directory is removed. A run with `plan.expect=true` keeps the trees of its probe, and its summary compares expected
with actual cost.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.config.build_prefs import RunConfig
from offline_agent.errors import ConfigError, DataError, TrainingError
from offline_agent.planning.figures import Figure, beside, table
from offline_agent.planning.loop import STAGES, Iterate
from offline_agent.planning.planner import Planner, ReferenceRun
from offline_agent.store.files import read_json, write_json
from offline_agent.store.manifest import read_manifest

if TYPE_CHECKING:
    from offline_agent.store.run_directory import RunDirectory

KEPT = "plan.json"
Say = Callable[[str], None]
_PLANNERS: dict[str, Planner] = {**STAGES, "iterate": Iterate()}


def planner(command: str) -> Planner:
    """Return the planner of a command; raises ConfigError if there is none."""
    if command not in _PLANNERS:
        raise ConfigError(f"--plan: nothing is known about the cost of {command}; known: {', '.join(_PLANNERS)}")
    return _PLANNERS[command]


def check(config: RunConfig, planned: bool) -> None:
    """Raise ConfigError where no process can run the probe."""
    from offline_agent.launch import torchrun

    if torchrun.count() > 1:
        raise ConfigError("plan: the processes of torchrun cannot probe; give --plan without torchrun")
    if not planned and config.launcher == "slurm":
        raise ConfigError(
            "plan.expect: got true, but with launcher=slurm the jobs begin without a driver; look at --plan beforehand"
        )


def plan(pipeline: str, config: RunConfig, say: Say) -> Any:
    """Return the table of the expected cost of a run; no file is left.

    Raises:
        ConfigError: plan.rates names no finished run of the pipeline.
        TrainingError: The probe failed.
    """
    one = planner(pipeline)
    with _seen(pipeline, one, config, say) as seen:
        figures = one.expected(config, seen)
        return show({figure.name: figure.to_json() for figure in figures}, pipeline, config)


def show(figures: Mapping[str, Mapping[str, Any]], pipeline: str, config: RunConfig) -> Any:
    """Return figures as a table, with their source."""
    section = config.plan
    if section.rates is not None:
        source = f"from {section.rates}"
    elif section.probe:
        source = f"from a probe of {section.probe} tasks"
        if pipeline not in ("build_prefs", "evaluate"):
            source += f", {section.updates} updates"
    else:
        source = "from the configuration and given figures"
    count = f"{section.generators} generator{'s' * (section.generators > 1)}"
    return table(figures, f"{pipeline}: expected on {count}, {source}")


class CostComparison:
    """Expected cost of a run, kept in its directory so that a resumed run still has it.

    Args:
        pipeline: Name of the command.
        config: The configuration.
        run: The run directory.
        say: Prints a line for the user.

    Raises:
        ConfigError: plan.rates names no finished run of the pipeline.
        DataError: plan.json of an earlier session is broken.
        TrainingError: The probe failed.
    """

    def __init__(self, pipeline: str, config: RunConfig, run: RunDirectory, say: Say) -> None:
        self.pipeline, self.config, self.run, self._planner = pipeline, config, run, planner(pipeline)
        file = run.path / KEPT
        if not file.is_file():
            self._look(file, say)
        try:
            data = read_json(file, "")
            self.figures = [Figure.from_json(name, figure) for name, figure in data["figures"].items()]
            self._spent: dict[str, float] = data["spent"]
        except (DataError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{file}: not readable ({error!r}). Remove it: the probe is repeated.") from error

    def _look(self, file: Path, say: Say) -> None:
        with _seen(self.pipeline, self._planner, self.config, say) as seen:
            figures = self._planner.expected(self.config, seen)
            probed = seen is not None and self.config.plan.rates is None
            spent = self._planner.adopt(seen, self.run) if seen is not None and probed else {}
            write_json(file, {"figures": {one.name: one.to_json() for one in figures}, "spent": spent})

    def against(self, summary: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return expected and actual values, for summary.json."""
        seen = ReferenceRun(self.run.path, summary, True)
        actual = self._planner.actual(self.config, seen)
        for name, spent in self._spent.items():
            came = actual.get(name)
            if came is not None:
                actual[name] = came + spent
        return beside(self.figures, actual)

    def show(self, figures: Mapping[str, Mapping[str, Any]]) -> Any:
        """Return the table of `against`."""
        return show(figures, self.pipeline, self.config)


@contextmanager
def _seen(pipeline: str, one: Planner, config: RunConfig, say: Say) -> Iterator[ReferenceRun | None]:
    """Yield the reference run: a named one, a probe, or None."""
    section = config.plan
    if section.rates is not None:
        yield _finished(pipeline, Path(section.rates))
    elif section.probe:
        with tempfile.TemporaryDirectory(prefix="offline-agent-plan-") as folder:
            yield _probe(pipeline, one, config, Path(folder) / "probe", say)
    else:
        yield None


def _finished(pipeline: str, path: Path) -> ReferenceRun:
    try:
        manifest, summary = read_manifest(path), read_json(path / "summary.json")
        command, status = manifest["command"], manifest.get("status")
    except (DataError, KeyError) as error:
        raise ConfigError(
            f"plan.rates: {path} is no finished run ({type(error).__name__}: {error}); name a run directory of "
            f"{pipeline}"
        ) from error
    if command != pipeline or status != "done":
        raise ConfigError(
            f"plan.rates: {path} is a run of {command} with status {status}; name a finished one of {pipeline}"
        )
    return ReferenceRun(path, summary, known=False)


def _probe(pipeline: str, one: Planner, config: RunConfig, folder: Path, say: Say) -> ReferenceRun:
    from offline_agent.config.plan import PlanSection
    from offline_agent.launch.stages import Stage, run_stage

    small = one.probe(config)
    small = small.model_copy(
        update={
            "run_dir": str(folder / pipeline),
            "tracking": config.tracking.model_copy(update={"uri": None}),
            "launcher": "local",
            "plan": PlanSection(),
        }
    )
    say(f"{pipeline}: a probe of it is run first, in {folder}, which is removed")
    folder.mkdir(parents=True)
    try:
        summary = run_stage(Stage(pipeline, pipeline, small), say, "give the same command again")
    except TrainingError as error:
        told = str(error).partition("\nAll of it:")[0]  # the folder of the log is removed
        raise TrainingError(f"the probe of the plan failed, and nothing was begun: {told}") from error
    return ReferenceRun(folder / pipeline, summary, known=True, memory=_memory())


def _memory() -> int | None:
    """Return the largest resident memory of an ended child process, bytes; None = not known."""
    import resource

    size = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return (size if sys.platform == "darwin" else size * 1024) or None
