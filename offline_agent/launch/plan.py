"""Expected cost of a run: the command on a few tasks (updates, rounds), measured and multiplied.

The probe runs in a process and a directory of its own, which is removed.
"""

from __future__ import annotations

import math
import resource
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from offline_agent.config.build_prefs import RunConfig
from offline_agent.errors import ConfigError, TrainingError
from offline_agent.launch import torchrun
from offline_agent.launch.shards import share_of
from offline_agent.launch.stages import Stage, run_stage
from offline_agent.report.closing import table
from offline_agent.report.mining import peak_memory
from offline_agent.runner import training
from offline_agent.store.events import EventLog

_SIZES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_TIMES = ((3600, "h"), (60, "min"), (1, "s"))


class Cost(NamedTuple):
    """The expected cost of a run.

    Attributes:
        number: How many units the run does.
        unit: tasks, updates or rounds.
        seconds: Without start-up.
        disk: Bytes.
    """

    number: int
    unit: str
    seconds: float
    disk: float


class Probe(NamedTuple):
    """A finished small run: its directory and its summary."""

    path: Path
    summary: Mapping[str, Any]

    def records(self, shard: str = "0000") -> list[dict[str, Any]]:
        """Return the records of one of its event logs."""
        return list(EventLog(self.path / "events" / f"{shard}.jsonl").read())

    def size(self, pattern: str = "**/*") -> int:
        """Return the bytes of its files."""
        return sum(file.stat().st_size for file in self.path.glob(pattern) if file.is_file())


def _with(config: Any, **sections: Mapping[str, Any]) -> Any:
    """Return a configuration with other values in some of its sections."""
    changed = {name: getattr(config, name).model_copy(update=values) for name, values in sections.items()}
    return config.model_copy(update=changed)


def _count(config: Any) -> int:
    from offline_agent.runner.components import load_environment, make_tasks

    return len(make_tasks(load_environment(config.env), config.tasks))


def _fewer_tasks(config: Any) -> Any:
    """Return the configuration with fewer tasks, each with the same budget."""
    n = min(tasks := _count(config), config.plan.probe)
    return _with(config, tasks={"n": n}, search={"budget": share_of(config.search.budget, tasks, n)})


def _fewer_updates(config: Any) -> Any:
    """Return a small training; demonstrations are of fewer tasks, but enough for whole updates."""
    updates = min(config.plan.updates, config.optimizer.max_updates or config.plan.updates)
    small = _with(config, optimizer={"max_updates": updates}, checkpoints={"every": updates, "keep": 1})
    if config.data.runs or config.data.files or not hasattr(config, "demonstrations"):
        return small
    wanted = math.ceil(1.5 * config.plan.updates * config.batch.rows / config.demonstrations.per_task)
    return _with(small, tasks={"n": min(_count(config), max(config.plan.probe, wanted))})


def _fewer_rounds(config: Any) -> Any:
    rounds = min(config.rounds, config.plan.updates)
    return _with(config, checkpoints={"every": rounds, "keep": 1}).model_copy(update={"rounds": rounds})


def _of_tasks(config: Any, seen: Probe) -> Cost:
    """Return the cost of a search or an evaluation."""
    n, seconds = _count(config), seen.summary["seconds"]
    times = n / seen.summary["tasks"]
    took = seconds["search"] + seconds["judging"] if "search" in seconds else sum(seconds.values())
    return Cost(n, "tasks", took * times, seen.size() * times)


def _of_updates(config: Any, seen: Probe) -> Cost:
    """Return the cost of a training on rows."""
    times = 1.0
    if "demonstrations" in seen.summary:  # the probe demonstrated fewer tasks
        times = _count(config) * config.demonstrations.per_task / seen.summary["demonstrations"]["attempts"]
    rows = max(1, round(seen.summary["data"]["kept"] * times))
    updates = training.updates(training.settings(config), rows)
    reading = (seen.summary.get("reading") or {}).get("seconds", 0.0) * times  # the probe reads all of its rows
    return Cost(updates, "updates", reading + _each_update(seen) * updates, _with_checkpoints(config, seen, updates))


def _of_rounds(config: Any, seen: Probe) -> Cost:
    """Return the cost of the online stage."""
    each = config.objective.passes * config.objective.minibatches
    updates = [record["seconds"] for record in seen.records() if "update" in record]  # a round's first plays it
    rounds = [sum(updates[at : at + each]) for at in range(0, len(updates), each)]
    disk = _with_checkpoints(config, seen, config.rounds * each)
    return Cost(config.rounds, "rounds", fmean(rounds[1:] or rounds or [0.0]) * config.rounds, disk)


def _each_update(seen: Probe) -> float:
    done = [record["seconds"] for record in seen.records() if "update" in record]
    return fmean(done[1:] or done or [0.0])  # the first is slower: it fills caches


def _with_checkpoints(config: Any, seen: Probe, updates: int) -> float:
    """Return the bytes of a training with the checkpoints that it keeps."""
    folders = list((seen.path / "checkpoints").glob("checkpoint-*"))
    size = max((seen.size(f"checkpoints/{folder.name}/**/*") for folder in folders), default=0)
    keep = min(config.checkpoints.keep, math.ceil(updates / config.checkpoints.every))
    return seen.size() + size * (keep - len(folders))


COMMANDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Probe], Cost]]] = {
    "build_prefs": (_fewer_tasks, _of_tasks),
    "evaluate": (_fewer_tasks, _of_tasks),
    "train_sft": (_fewer_updates, _of_updates),
    "train_dpo": (_fewer_updates, _of_updates),
    "refine_grpo": (_fewer_rounds, _of_rounds),
}
"""The probe and the cost of each command."""


def plan(pipeline: str, config: RunConfig, say: Callable[[str], None]) -> Any:
    """Return the table of the expected cost of a run; no file is left.

    Raises:
        ConfigError: Nothing is known about the cost of the command, or torchrun started it.
        TrainingError: The probe failed.
    """
    if pipeline not in COMMANDS:
        raise ConfigError(f"--plan: {pipeline} cannot be planned, allowed: {', '.join(COMMANDS)}")
    if torchrun.count() > 1:
        raise ConfigError("plan: the processes of torchrun cannot probe; give --plan without torchrun")
    smaller, cost = COMMANDS[pipeline]
    with tempfile.TemporaryDirectory(prefix="offline-agent-plan-") as folder:
        found = cost(config, _run(pipeline, smaller(config), Path(folder) / "probe", say))
    return show(found, peak_memory(resource.RUSAGE_CHILDREN), pipeline, config)


def show(cost: Cost, memory: int, pipeline: str, config: RunConfig) -> Any:
    """Return the expected cost as a table."""
    title = f"{pipeline}: expected, from a probe of {config.plan.probe} tasks, or {config.plan.updates} updates"
    rows = [
        (cost.unit, f"{cost.number:,}", ""),
        ("time", amount(cost.seconds, _TIMES), "start-up and saving are not counted"),
        ("disk", amount(cost.disk, _SIZES), "with the checkpoints that are kept"),
        ("memory", amount(memory, _SIZES), "resident, largest process; a GPU's is not measured"),
    ]
    return table(title, rows, ("what", ">expected", "note"))


def amount(value: float, units: Sequence[tuple[int, str]]) -> str:
    """Return an amount in the largest unit of which it has two, else in the smallest."""
    size, name = next((one for one in units if value >= 2 * one[0]), units[-1])
    return f"{value / size:,.1f} {name}"


def _run(pipeline: str, small: Any, folder: Path, say: Callable[[str], None]) -> Probe:
    small = _with(small, tracking={"uri": None})
    small = small.model_copy(update={"run_dir": str(folder / pipeline), "launcher": "local"})
    say(f"{pipeline}: a probe of it is run first, in {folder}, which is removed")
    folder.mkdir(parents=True)
    try:
        return Probe(folder / pipeline, run_stage(Stage(pipeline, pipeline, small), say, "give the same command again"))
    except TrainingError as error:
        told = str(error).partition("\nAll of it:")[0]  # the folder of the log is removed
        raise TrainingError(f"the probe of the plan failed, and nothing was begun: {told}") from error
