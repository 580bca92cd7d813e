"""Expected cost of a run: the command on a few tasks (updates, rounds), measured and multiplied.

The probe runs in a process and a directory of its own, which is removed.
"""

from __future__ import annotations

import math
import resource
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from offline_agent.config.build_prefs import RunConfig
from offline_agent.errors import ConfigError, TrainingError
from offline_agent.launch import torchrun
from offline_agent.launch.loop_stages import LoopStages
from offline_agent.launch.shards import share_of
from offline_agent.launch.stages import Stage, run_stage
from offline_agent.report.closing import table
from offline_agent.report.mining import peak_memory
from offline_agent.runner import training
from offline_agent.store.events import EventLog
from offline_agent.store.files import read_json
from offline_agent.store.tables import columns_of

_NOT_MADE = "the probe did not come to this stage (no verified success, or no pair); raise plan.probe"
_OF_A_STAGE = ("rows", "rounds", "checkpoint")  # figures that are not added up over the stages of a loop
_UNITS = {  # from which amount on, divided by what, called what
    "seconds": ((7200, 3600, "h"), (120, 60, "min"), (0, 1, "s")),
    "bytes": ((2**30, 2**30, "GiB"), (2**20, 2**20, "MiB"), (0, 2**10, "KiB")),
}


class Figure(NamedTuple):
    """One line of a plan: an amount (None = not known), its unit, and what is to be known about it."""

    amount: float | None
    unit: str = ""
    note: str = ""

    def __str__(self) -> str:
        if self.amount is None:
            return "not known"
        for least, size, name in _UNITS.get(self.unit, ()):
            if self.amount >= least:
                return f"{self.amount / size:,.1f} {name}"
        return f"{self.amount:,.0f} {self.unit}".rstrip()


Figures = dict[str, Figure]


class Probe(NamedTuple):
    """A finished small run: its directory and its summary."""

    path: Path
    summary: Mapping[str, Any]

    def records(self, shard: str = "0000") -> list[dict[str, Any]]:
        """Return the records of one of its event logs."""
        return list(EventLog(self.path / "events" / f"{shard}.jsonl").read())

    def size(self, pattern: str = "*") -> int:
        """Return the bytes of its files."""
        return sum(file.stat().st_size for file in self.path.rglob(pattern) if file.is_file())


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
    updates = min(config.plan.updates, config.optimizer.max_updates or config.plan.updates)
    return _with(config, optimizer={"max_updates": updates}, checkpoints={"every": updates, "keep": 1})


def _fewer_demonstrations(config: Any) -> Any:
    """Return a small fine-tuning; demonstrations are of fewer tasks, but enough for whole updates."""
    small = _fewer_updates(config)
    if config.data.runs or config.data.files:
        return small
    wanted = math.ceil(1.5 * config.plan.updates * config.batch.rows / config.demonstrations.per_task)
    return _with(small, tasks={"n": min(_count(config), max(config.plan.probe, wanted))})


def _fewer_rounds(config: Any) -> Any:
    rounds = min(config.rounds, config.plan.updates)
    return _with(config, checkpoints={"every": rounds, "keep": 1}).model_copy(update={"rounds": rounds})


def _one_iteration(config: Any) -> Any:
    """Return one small iteration; each of its stages is the probe of its command."""
    updates, stages = config.plan.updates, {"sft": config.sft, "dpo": config.dpo}
    fewer = {name: min(updates, one.optimizer.max_updates or updates) for name, one in stages.items()}
    trained = {name: _with(one, optimizer={"max_updates": fewer[name]}) for name, one in stages.items()}
    held_out = {"n": min(config.held_out.n, max(2, config.plan.probe))}
    small = _with(_fewer_tasks(config), held_out=held_out)
    return small.model_copy(update={**trained, "iterations": 1})


def _search(config: Any, seen: Probe, tasks: int | None = None) -> Figures:
    """Return the figures of searching so many tasks."""
    summary, session, seconds = seen.summary, seen.summary["this_session"], seen.summary["seconds"]
    n = _count(config) if tasks is None else tasks
    times = n / summary["tasks"]
    prefilled = session["prefilled_tokens"]
    return {
        "trees": Figure(n),
        "tokens_sampled": Figure(summary["generated"] * times, "tokens"),
        "prompt_tokens": Figure((prefilled + session["reused_tokens"]) * times, "tokens", "of all requests"),
        "prompt_tokens_computed": Figure(prefilled * times, "tokens", "with a prefix cache as it was there"),
        "tool_calls": Figure(summary["tool_calls"] * times, "calls"),
        "calls_replayed": Figure((session["calls_replayed"] + summary["replayed_calls"]) * times, "calls"),
        "pairs": Figure(summary["pairs_total"] * times, "rows"),
        "filtered": Figure(summary["filtered"] * times, "rows"),
        "trajectories": Figure(summary["trajectories"] * times, "rows"),
        "seconds": Figure((seconds["search"] + seconds["judging"]) * times, "seconds", "start-up not counted"),
        "disk": Figure(seen.size() * times, "bytes"),
    }


def _played(config: Any, seen: Probe, tasks: int | None = None) -> Figures:
    """Return the figures of playing so many tasks."""
    times = (_count(config) if tasks is None else tasks) / seen.summary["tasks"]
    names = ("mode", "generated_tokens", "tool_calls")
    rows = [row for file in (seen.path / "attempts").glob("*.parquet") for row in columns_of(file, names)]
    played = [row for row in rows if row["mode"] != "best_of_n"]  # its rows repeat other attempts
    session = seen.summary["this_session"]
    players = [session[label] for label in ("candidate", "against") if label in session]
    computed, reused = (sum(one[f"prompt_tokens_{name}"] for one in players) for name in ("computed", "reused"))
    return {
        "attempts": Figure(len(rows) * times),
        "tokens_sampled": Figure(sum(row["generated_tokens"] for row in played) * times, "tokens"),
        "prompt_tokens": Figure((computed + reused) * times, "tokens", "of all requests"),
        "prompt_tokens_computed": Figure(computed * times, "tokens", "with a prefix cache as it was there"),
        "tool_calls": Figure(sum(row["tool_calls"] for row in played) * times, "calls"),
        "seconds": Figure(sum(seen.summary["seconds"].values()) * times, "seconds", "start-up not counted"),
        "disk": Figure(seen.size() * times, "bytes"),
    }


def _trained(config: Any, seen: Probe, rows: float | None = None, trainings: int = 1) -> Figures:
    """Return the figures of trainings on so many rows; None = those of the probe, which reads all of them."""
    times = 1.0
    if rows is None:
        rows = seen.summary["data"]["kept"]
        if "demonstrations" in seen.summary:  # the probe demonstrated fewer tasks
            shown = seen.summary["demonstrations"]["attempts"] / config.demonstrations.per_task
            times = _count(config) / shown
    count = max(1, round(rows * times))
    updates = training.updates(training.settings(config), count)
    out = {"rows": Figure(count, "rows"), **_updates(config, seen, updates * trainings)}
    if read := seen.summary.get("reading"):
        seconds = read["seconds"] * times  # the probe reads all of its rows
        out["seconds_reading"] = Figure(seconds, "seconds", "before it is trained on actions")
        out["seconds"] = out["seconds"]._replace(amount=(out["seconds"].amount or 0.0) + seconds)
    return out


def _updates(config: Any, seen: Probe, updates: int) -> Figures:
    """Return the figures of so many updates."""
    done = [record for record in seen.records() if "update" in record]
    steady = done[1:] or done  # the first is slower: it fills caches
    each = {name: fmean([one[name] for one in steady] or [0.0]) for name in ("tokens", "raw_tokens", "seconds")}
    folders = list((seen.path / "checkpoints").glob("checkpoint-*"))
    size = max((seen.size(f"{folder.name}/**/*") for folder in folders), default=0)
    keep = min(config.checkpoints.keep, math.ceil(updates / config.checkpoints.every))
    kept = f"each; one every {config.checkpoints.every}, {config.checkpoints.keep} are kept"
    disk = seen.size() + size * (keep - len(folders))
    return {
        "updates": Figure(updates),
        "tokens_computed": Figure(each["tokens"] * updates, "tokens", "shared histories once"),
        "tokens_of_rows": Figure(each["raw_tokens"] * updates, "tokens", "each row for itself"),
        "seconds": Figure(each["seconds"] * updates, "seconds", "start-up and saving not counted"),
        "checkpoint": Figure(size, "bytes", kept),
        "disk": Figure(disk, "bytes", "the model and what checkpoints are kept; logs grow with the updates"),
    }


def _online(config: Any, seen: Probe, trainings: int = 1) -> Figures:
    rounds, asked = seen.records("rounds"), config.rounds * trainings
    played = [record for record in seen.records("rollouts") if "attempt" in record]
    times = asked / len(rounds)
    learnt = _updates(config, seen, asked * config.objective.passes * config.objective.minibatches)
    playing = sum(record["seconds"] for record in rounds) * times
    return {
        "rounds": Figure(asked),
        "episodes": Figure(len(played) * times),
        "tokens_sampled": Figure(sum(one["generated"] for one in played) * times, "tokens"),
        "tool_calls": Figure(sum(one["tool_calls"] for one in played) * times, "calls"),
        "seconds_playing": Figure(playing, "seconds", "start-up not counted"),
        **learnt,
        "seconds": learnt["seconds"]._replace(amount=playing + (learnt["seconds"].amount or 0.0)),
    }


def _loop(config: Any, seen: Probe) -> Figures:
    """Return the sums of all stages, and the seconds of each command."""
    stages, count, first = LoopStages(config, Path("/"), ""), config.iterations, seen.path / "iteration-0"
    made = {file.parent.name: Probe(file.parent, read_json(file)) for file in first.glob("*/summary.json")}
    start, tasks, built = stages.start(), _count(config), made["build_prefs"]
    # the incumbent is evaluated again in each iteration
    evaluations = (1 + config.sft.enabled + config.dpo.enabled) * count
    parts: dict[str, Figures] = {
        "build_prefs": _search(config, built, tasks * count),
        "evaluate": _played(config, made["evaluate_incumbent"], config.held_out.n * evaluations),
    }
    asked = {"train_sft": config.sft.enabled, "train_dpo": config.dpo.enabled}
    for name in [name for name, wanted in asked.items() if wanted]:
        if (one := made.get(name)) is None:
            parts[name] = {"seconds": Figure(None, "seconds", _NOT_MADE)}
        else:
            fine = stages.train_sft(0, start, ()) if name == "train_sft" else None
            stage = fine or stages.train_dpo(0, start, Path("/"), (), ())
            rows = one.summary["data"]["kept"] * tasks / built.summary["tasks"]
            # each fine-tuning is on all successes so far, each training on pairs on those of its iteration
            parts[name] = _trained(stage.config, one, rows * ((count + 1) / 2 if fine else 1), count)
    out = {f"seconds_{name}": figures["seconds"] for name, figures in parts.items()}
    for name in dict.fromkeys(name for figures in parts.values() for name in figures if name not in _OF_A_STAGE):
        known = [figures[name] for figures in parts.values() if name in figures]
        amounts = [figure.amount for figure in known if figure.amount is not None]
        lacking = len(amounts) < len(known)
        out[name] = Figure(None if lacking else sum(amounts), known[0].unit, _NOT_MADE if lacking else "")
    return out


COMMANDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Probe], Figures]]] = {
    "build_prefs": (_fewer_tasks, _search),
    "evaluate": (_fewer_tasks, _played),
    "train_sft": (_fewer_demonstrations, _trained),
    "train_dpo": (_fewer_updates, _trained),
    "refine_grpo": (_fewer_rounds, _online),
    "iterate": (_one_iteration, _loop),
}
"""The probe and the figures of each command."""


def plan(pipeline: str, config: RunConfig, say: Callable[[str], None]) -> Any:
    """Return the table of the expected cost of a run; no file is left.

    Raises:
        ConfigError: Nothing is known about the cost of the command, or torchrun started it.
        TrainingError: The probe failed.
    """
    if pipeline not in COMMANDS:
        raise ConfigError(f"--plan: nothing is known about the cost of {pipeline}; known: {', '.join(COMMANDS)}")
    if torchrun.count() > 1:
        raise ConfigError("plan: the processes of torchrun cannot probe; give --plan without torchrun")
    smaller, figures = COMMANDS[pipeline]
    with tempfile.TemporaryDirectory(prefix="offline-agent-plan-") as folder:
        found = figures(config, _run(pipeline, smaller(config), Path(folder) / "probe", say))
    size = peak_memory(resource.RUSAGE_CHILDREN)
    found["memory"] = Figure(size, "bytes", "resident, largest process; a GPU's is not measured")
    return show(found, pipeline, config)


def show(figures: Figures, pipeline: str, config: RunConfig) -> Any:
    """Return figures as a table."""
    title = f"{pipeline}: expected, from a probe of {config.plan.probe} tasks, or {config.plan.updates} updates"
    rows = [(name.replace("_", " "), str(figure), figure.note) for name, figure in figures.items()]
    return table(title, rows, ("what", ">expected", "note"))


def _run(pipeline: str, small: Any, folder: Path, say: Callable[[str], None]) -> Probe:
    small = _with(small, tracking={"uri": None})
    small = small.model_copy(update={"run_dir": str(folder / pipeline), "launcher": "local"})
    say(f"{pipeline}: a probe of it is run first, in {folder}, which is removed")
    folder.mkdir(parents=True)
    try:
        summary = run_stage(Stage(pipeline, pipeline, small), say, "give the same command again")
        return Probe(folder / pipeline, summary)
    except TrainingError as error:
        told = str(error).partition("\nAll of it:")[0]  # the folder of the log is removed
        raise TrainingError(f"the probe of the plan failed, and nothing was begun: {told}") from error
