"""Expected cost of a run: the command on a few tasks (updates, rounds), measured and multiplied.

The probe runs in a process and a directory of its own, which is removed.
"""

from __future__ import annotations

import math
import resource
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from offline_agent.config.build_prefs import RunConfig
from offline_agent.errors import ConfigError, TrainingError
from offline_agent.launch import torchrun
from offline_agent.launch.loop_stages import LoopStages
from offline_agent.launch.stages import Stage, run_stage
from offline_agent.report.closing import table
from offline_agent.runner import training
from offline_agent.store.events import EventLog
from offline_agent.store.files import read_json

_NOT_MADE = "the probe did not come to this stage (no verified success, or no pair); raise plan.probe"
_OF_A_STAGE = ("rows", "rounds", "checkpoint", "memory")  # figures that are not added up over the stages of a loop
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


@dataclass(frozen=True, slots=True)
class Probe:
    """A finished small run: its directory and its summary."""

    path: Path
    summary: Mapping[str, Any]

    def records(self, shard: str = "0000") -> list[dict[str, Any]]:
        """Return the records of one of its event logs."""
        return list(EventLog(self.path / "events" / f"{shard}.jsonl").read())

    def size(self, pattern: str = "*") -> int:
        """Return the bytes of its files."""
        return sum(file.stat().st_size for file in self.path.rglob(pattern) if file.is_file())

    def stage(self, name: str) -> Probe | None:
        """Return a stage of the first iteration of a loop; None where the loop did not come to it."""
        path = self.path / "iteration-0" / name
        return Probe(path, read_json(path / "summary.json")) if (path / "summary.json").is_file() else None


def _with(config: Any, **sections: Mapping[str, Any]) -> Any:
    """Return a configuration with other values in some of its sections."""
    changed = {name: getattr(config, name).model_copy(update=values) for name, values in sections.items()}
    return config.model_copy(update=changed)


def _count(config: Any) -> int:
    from offline_agent.runner.components import load_environment, make_tasks

    return len(make_tasks(load_environment(config.env), config.tasks))


def _fewer_tasks(config: Any) -> Any:
    """Return the configuration with fewer tasks, each with the same budget."""
    tasks, budget = _count(config), config.search.budget
    n = min(tasks, config.plan.probe)
    shared = {name: value for name in ("tokens", "prefilled", "tool_calls") if (value := getattr(budget, name))}
    kept = budget.model_copy(update={name: value // tasks * n for name, value in shared.items()})
    return _with(config, tasks={"n": n}, search={"budget": kept})


def _compared_with_nobody(config: Any) -> Any:
    """Return the evaluation of fewer tasks; an earlier run to compare with costs nothing, and has other tasks."""
    small = _fewer_tasks(config) if config.other_policy() else _with(_fewer_tasks(config), against={"run": None})
    return small.model_copy(update={"resamples": 100})


def _fewer_updates(config: Any) -> Any:
    most = config.optimizer.max_updates
    updates = config.plan.updates if most is None else min(config.plan.updates, most)
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
    trained = {}
    for name in ("sft", "dpo"):
        most, updates = getattr(config, name).optimizer.max_updates, config.plan.updates
        trained[name] = _with(getattr(config, name), optimizer={"max_updates": min(updates, most or updates)})
    when = "never" if config.refine.when == "never" else "last"
    small = _with(
        _fewer_tasks(config),
        held_out={"n": min(config.held_out.n, max(2, config.plan.probe))},
        refine={"when": when, "rounds": min(config.refine.rounds, config.plan.updates)},
    )
    return small.model_copy(update={**trained, "iterations": 1})


def _search(config: Any, seen: Probe, tasks: int | None = None) -> Figures:
    """Return the figures of searching so many tasks."""
    summary, session, seconds = seen.summary, seen.summary["this_session"], seen.summary["seconds"]
    n = _count(config) if tasks is None else tasks
    times = n / summary["tasks"]
    prefilled = session["prefilled_tokens"]
    held = session.get("memory", {})
    memory = _memory()
    if held:  # keys and values that are kept may grow up to their limit
        note = f"at most: {held['kept_limit'] / 1e9:.2f} GB of it for keys and values kept (policy.cache_bytes)"
        memory = Figure(held["resident"] + held["kept_limit"] - held["kept"], "bytes", note)
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
        "memory": memory,
        "disk": Figure(seen.size() * times, "bytes"),
    }


def _played(config: Any, seen: Probe, tasks: int | None = None) -> Figures:
    """Return the figures of playing so many tasks."""
    import pyarrow.parquet as pq

    times = (_count(config) if tasks is None else tasks) / seen.summary["tasks"]
    names = ["mode", "generated_tokens", "tool_calls"]
    files = sorted((seen.path / "attempts").glob("*.parquet"))
    rows = [row for file in files for row in pq.read_table(file, columns=names).to_pylist()]
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
        "memory": _memory(),
        "disk": Figure(seen.size() * times, "bytes"),
    }


def _memory() -> Figure:
    """Return the largest resident memory of an ended child process."""
    size = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    note = "resident, largest process; a GPU's is not measured"
    return Figure(float(size if sys.platform == "darwin" else size * 1024), "bytes", note)


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
        "memory": _memory(),
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
    stages, count = LoopStages(config, Path("/"), ""), config.iterations
    start, nowhere = stages.start(), Path("/tasks.jsonl")
    built, played = seen.stage("build_prefs"), seen.stage("evaluate_incumbent")
    assert built is not None and played is not None  # the loop fails where one of them does
    found = _search(config, built, _count(config) * count)
    refined = {"never": 0, "last": 1, "each": count}[config.refine.when]
    # the incumbent is evaluated again in each iteration
    evaluations = (1 + config.sft.enabled + config.dpo.enabled) * count + refined
    parts: dict[str, Figures] = {
        "build_prefs": found, "evaluate": _played(config, played, config.held_out.n * evaluations)
    }  # fmt: skip
    fine, pairs = stages.train_sft(0, start, ()), stages.train_dpo(0, start, Path("/"), (), ())
    # each fine-tuning is on all successes so far, each training on pairs on those of its iteration
    for stage, asked, rows, key in ((fine, config.sft.enabled, "filtered", "filtered"),
                                    (pairs, config.dpo.enabled, "pairs", "pairs_total")):  # fmt: skip
        if asked and (one := seen.stage(stage.name)) is not None:
            each = (found[rows].amount or 0.0) / count * one.summary["data"]["kept"] / built.summary[key]
            parts[stage.name] = _trained(stage.config, one, each * ((count + 1) / 2 if stage is fine else 1), count)
        elif asked:
            parts[stage.name] = {"seconds": Figure(None, "seconds", _NOT_MADE)}
    if refined:
        one = seen.stage("refine_grpo")
        online = stages.refine(0, start, nowhere, ()).config
        parts["refine_grpo"] = (
            {"seconds": Figure(None, "seconds", _NOT_MADE)} if one is None else _online(online, one, refined)
        )
    out = {f"seconds_{name}": figures["seconds"] for name, figures in parts.items()}
    for name in dict.fromkeys(name for figures in parts.values() for name in figures if name not in _OF_A_STAGE):
        known = [figures[name] for figures in parts.values() if name in figures]
        amounts = [figure.amount for figure in known if figure.amount is not None]
        lacking = len(amounts) < len(known)
        out[name] = Figure(None if lacking else sum(amounts), known[0].unit, _NOT_MADE if lacking else "")
    return {**out, "memory": _memory()}


COMMANDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Probe], Figures]]] = {
    "build_prefs": (_fewer_tasks, _search),
    "evaluate": (_compared_with_nobody, _played),
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
        return show(figures(config, _run(pipeline, smaller(config), Path(folder) / "probe", say)), pipeline, config)


def show(figures: Figures, pipeline: str, config: RunConfig) -> Any:
    """Return figures as a table."""
    title = f"{pipeline}: expected, from a probe of {config.plan.probe} tasks, or {config.plan.updates} updates"
    rows = [(name.replace("_", " "), str(figure), figure.note) for name, figure in figures.items()]
    return table(title, rows, ("what", ">expected", "note"))


def _run(pipeline: str, small: Any, folder: Path, say: Callable[[str], None]) -> Probe:
    tracking = small.tracking.model_copy(update={"uri": None})
    update = {"run_dir": str(folder / pipeline), "tracking": tracking, "launcher": "local"}
    say(f"{pipeline}: a probe of it is run first, in {folder}, which is removed")
    folder.mkdir(parents=True)
    try:
        stage = Stage(pipeline, pipeline, small.model_copy(update=update))
        return Probe(stage.path, run_stage(stage, say, "give the same command again"))
    except TrainingError as error:
        told = str(error).partition("\nAll of it:")[0]  # the folder of the log is removed
        raise TrainingError(f"the probe of the plan failed, and nothing was begun: {told}") from error
