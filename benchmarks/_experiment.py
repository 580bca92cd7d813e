"""Experiments over seeds: commands run as soon as the stages they need are done, and each seed's results are kept.

A seed that is finished leaves one small file, so that seeds may be run one at a time and on different machines; the
tables are made of these files. Knows nothing of what the commands are.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from _common import RESULTS

from offline_agent.evaluation.statistics import too_alike, wilson

PIPELINE = "offline_agent.pipelines."
COLUMNS = ("success", "reward")


@dataclass(frozen=True)
class Stage:
    """One command.

    Attributes:
        name: Its run directory, under the seed's; with `../` in front, one that all seeds share.
        pipeline: Which.
        keys: Its arguments.
        after: Names of the stages whose results it reads.
    """

    name: str
    pipeline: str
    keys: tuple[str, ...]
    after: tuple[str, ...] = ()

    def command(self, folder: Path) -> list[str]:
        """Return its command line; `folder` is the seed's."""
        keys = [*self.keys, f"run_dir={(folder / self.name).resolve()}", "tracking.uri=null"]
        return [sys.executable, "-m", PIPELINE + self.pipeline, *keys]


@dataclass(frozen=True)
class Script(Stage):
    """A script beside this file; its keys are its arguments, the run directory the last one."""

    def command(self, folder: Path) -> list[str]:
        """Return its command line."""
        return [sys.executable, str(Path(__file__).with_name(self.pipeline)), *self.keys, str(folder / self.name)]


@dataclass
class Seed:
    """The results of one seed's evaluations.

    Attributes:
        seed: Its number.
        settings: What it was run with; seeds of other settings are not put into one table.
        tasks: The held-out tasks.
        runs: For each evaluation and each way of playing, by column: the mean over a task's attempts, in the order of
            `tasks`; None where none of them was judged.
        facts: Whatever else a table says of single runs.
    """

    seed: int
    settings: Mapping[str, Any]
    tasks: list[str] = field(default_factory=list)
    runs: dict[str, dict[str, dict[str, list[float | None]]]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, run_dir: Path) -> None:
        """Take what an evaluation's candidate did."""
        rows = pq.read_table(run_dir / "attempts", columns=["policy", "mode", "task_id", *COLUMNS]).to_pylist()
        rows = [row for row in rows if row["policy"] == "candidate"]
        tasks = sorted({row["task_id"] for row in rows})
        if self.tasks and tasks != self.tasks:
            raise SystemExit(f"{run_dir} was evaluated on other tasks than the seed's evaluations before it")
        self.tasks = tasks
        found: dict[tuple[str, str, str], list[float]] = {}
        for row in rows:
            for column in COLUMNS:
                if row[column] is not None:
                    found.setdefault((row["mode"], column, row["task_id"]), []).append(float(row[column]))
        self.runs[name] = {
            mode: {column: [_mean(found.get((mode, column, task))) for task in tasks] for column in COLUMNS}
            for mode in sorted({row["mode"] for row in rows})
        }


def _mean(values: list[float] | None) -> float | None:
    return round(sum(values) / len(values), 6) if values else None


def matrix(seeds: Sequence[Seed], run: str, mode: str, column: str = "success") -> Any:
    """Return the means [seed, task] of the tasks that every seed has judged.

    Args:
        seeds: With the same settings.
        run: The evaluation.
        mode: The way of playing.
        column: `success` or `reward`.
    """
    each = []
    for seed in seeds:
        means = zip(seed.tasks, seed.runs[run][mode][column], strict=True)
        each.append({task: mean for task, mean in means if mean is not None})
    tasks = sorted(set.intersection(*map(set, each)))
    return np.array([[means[task] for task in tasks] for means in each])


def interval(values: Any, resamples: int = 4000) -> tuple[float, float]:
    """Return the 95 % interval of the mean of values[seed, task]: seeds and tasks are both drawn again."""
    rng = np.random.default_rng(0)
    seeds, tasks = values.shape
    means = [
        values[rng.integers(seeds, size=seeds)][:, rng.integers(tasks, size=tasks)].mean() for _ in range(resamples)
    ]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def share_interval(values: Any) -> tuple[float, float]:
    """Return `interval` of shares in [0, 1]; at least as wide as Wilson's over tasks where these are too alike."""
    low, high = interval(values)
    if too_alike(values.mean(0)):
        below, above = wilson(float(values.mean()), values.shape[1])
        low, high = min(low, below), max(high, above)
    return low, high


def endings(folder: Path) -> dict[str, Any]:
    """Return how the sampled attempts of each of a seed's evaluations ended, in shares of those that were judged.

    Args:
        folder: The seed's.

    Returns:
        For each evaluation `cut` (out of steps), `wrong` (ended by the policy without success) and `invalid` (invalid
        calls an attempt).
    """
    found = {}
    for path in sorted(folder.glob("*/attempts")):
        rows = [row for row in pq.read_table(path).to_pylist() if row["policy"] == "candidate"]
        judged = [row for row in rows if row["mode"] == "sampled" and row["success"] is not None]
        if not judged:
            continue
        counts = {
            "cut": sum(not row["success"] and row["truncated"] for row in judged),
            "wrong": sum(not row["success"] and not row["truncated"] for row in judged),
            "invalid": sum(row["invalid_calls"] for row in judged),
        }
        found[path.parent.name] = {name: round(count / len(judged), 6) for name, count in counts.items()}
    return {"endings": found}


def ending_columns(seeds: Sequence[Seed], run: str) -> dict[str, Any]:
    """Return columns of a table that say how an evaluation's attempts ended, as means of the seeds'."""
    each = [seed.facts["endings"][run] for seed in seeds]
    cut, wrong, invalid = (sum(one[key] for one in each) / len(each) for key in ("cut", "wrong", "invalid"))
    return {"out of steps": f"{cut:.1%}", "ended wrong": f"{wrong:.1%}", "invalid calls": round(invalid, 3)}


def arguments(about: str | None, suites: Iterable[str]) -> argparse.ArgumentParser:
    """Return the arguments that every experiment of this kind takes."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="shop", choices=sorted(suites))
    parser.add_argument("--work", type=Path, required=True, help="where the run directories are")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--held-out", type=int, default=None, help="test tasks; else the suite's own number")
    parser.add_argument("--attempts", type=int, default=4, help="sampled attempts of each test task")
    parser.add_argument("--jobs", type=int, default=2, help="commands at once, one thread each")
    parser.add_argument("--plan", action="store_true", help="print the commands and stop")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where tables and finished seeds are kept")
    return parser


def carry_out(
    name: str,
    options: argparse.Namespace,
    plan: Callable[[int, Path], Iterable[Stage]],
    settings: Mapping[str, Any],
    facts: Callable[[Path], dict[str, Any]] = lambda folder: {},
) -> list[Seed]:
    """Run what is not there of every seed's stages, or print their commands and exit; return what seeds came to.

    A seed that is kept but lacks evaluations of the plan, because rows were added since, is completed by these.

    Args:
        name: Of the experiment: a finished seed is kept as `<results>/<name>/seed-<n>.json`.
        options: Of the command line.
        plan: Gives the stages of a seed, whose folder is the second argument.
        settings: What must be the same for seeds of one table.
        facts: Gives what else is kept of a seed, from its folder.

    Raises:
        SystemExit: A command failed; or a seed that is kept was run with other settings.
    """
    files = {seed: options.results / name / f"seed-{seed}.json" for seed in options.seeds}
    there = () if options.plan else files.items()  # a plan is of all commands, whatever is kept
    kept = {seed: Seed(**json.loads(path.read_text())) for seed, path in there if path.exists()}
    for seed, one in kept.items():
        if one.settings != dict(settings):
            raise SystemExit(
                f"{files[seed]} was made with {one.settings}, asked for is {dict(settings)}; give the same, or remove "
                "that file, or choose another folder with --results"
            )
    plans = {}
    for seed in options.seeds:
        folder = (options.work / f"seed-{seed}").resolve()
        found = list(plan(seed, folder))
        if seed in kept:
            found = _lacking(found, kept[seed])
        if found:
            plans[folder] = (seed, found)
    if options.plan:
        for folder, (_, found) in plans.items():
            for stage in found:
                print(shlex.join(stage.command(folder)))
        raise SystemExit(0)

    def keep(folder: Path) -> None:
        seed, found = plans[folder]
        one = kept.setdefault(seed, Seed(seed, dict(settings)))
        one.facts = _together(one.facts, facts(folder))
        for stage in found:
            if stage.pipeline == "evaluate":
                one.add(stage.name, folder / stage.name)
        files[seed].parent.mkdir(parents=True, exist_ok=True)
        files[seed].write_text(json.dumps(asdict(one)) + "\n")
        print(f"seed {seed}: kept as {files[seed]}", flush=True)

    _run_all({folder: found for folder, (_, found) in plans.items()}, options.jobs, keep)
    return [kept[seed] for seed in options.seeds]


def _lacking(plan: Sequence[Stage], seed: Seed) -> list[Stage]:
    """Return the evaluations that a kept seed has no result of, and the stages that they need, as planned."""
    wanted = {stage.name for stage in plan if stage.pipeline == "evaluate" and stage.name not in seed.runs}
    for stage in reversed(plan):  # what a stage needs stands before it
        if stage.name in wanted:
            wanted.update(stage.after)
    return [stage for stage in plan if stage.name in wanted]


def _together(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return both, the new where they differ, dicts within them likewise."""
    both = {**old, **new}
    for key in old.keys() & new.keys():
        if isinstance(old[key], dict) and isinstance(new[key], dict):
            both[key] = _together(old[key], new[key])
    return both


def _run_all(plans: Mapping[Path, Sequence[Stage]], jobs: int, finished: Callable[[Path], None]) -> None:
    """Run the stages of all seeds, `jobs` at once, each as soon as those it needs are done."""
    # seed after seed, so that what is stopped has kept as many whole seeds as it can
    waiting = [(folder, stage) for folder, plan in plans.items() for stage in plan]
    left = {folder: len(plan) for folder, plan in plans.items()}
    done: set[Path] = set()
    running: dict[Future[None], tuple[Path, Path]] = {}
    with _ended_together(), ThreadPoolExecutor(jobs) as pool:
        while waiting or running:
            for entry in list(waiting):
                folder, stage = entry
                place = (folder / stage.name).resolve()
                ready = all((folder / name).resolve() in done for name in stage.after)
                if len(running) < jobs and ready and place not in (there for there, _ in running.values()):
                    waiting.remove(entry)
                    running[pool.submit(_run, folder, stage)] = place, folder
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                place, folder = running.pop(future)
                future.result()  # a stage that failed ends it all; the same command goes on later
                done.add(place)
                left[folder] -= 1
                if not left[folder]:
                    finished(folder)


_COMMANDS: set[subprocess.Popen[bytes]] = set()
"""Those that run now."""


@contextmanager
def _ended_together() -> Iterator[None]:
    """Let SIGTERM end the commands too; they keep what they have, and the same experiment goes on with it."""

    def end(*_: Any) -> None:
        for command in tuple(_COMMANDS):
            command.terminate()
        raise SystemExit("stopped by SIGTERM; the same command goes on from here")

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(folder: Path, stage: Stage) -> None:
    folder.mkdir(parents=True, exist_ok=True)  # or else a name with ".." is not found
    if _done(folder / stage.name):
        return
    print(f"{folder.name}: {stage.name}", flush=True)
    with (folder / f"{stage.name}.log").open("a") as log:
        own = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        root = Path(__file__).parents[1]  # configurations are named from there
        with subprocess.Popen(stage.command(folder), stdout=log, stderr=log, env=own, cwd=root) as command:
            _COMMANDS.add(command)
            code = command.wait()
            _COMMANDS.discard(command)
    if code:
        raise SystemExit(f"{stage.name} ended with status {code}; see {folder / stage.name}.log")


def _done(run_dir: Path) -> bool:
    try:
        return json.loads((run_dir / "manifest.json").read_text()).get("status") == "done"
    except FileNotFoundError:
        return False
