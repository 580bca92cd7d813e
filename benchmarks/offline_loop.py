"""What the offline loop gains on held-out tasks: warm start, rejection fine-tuning, each kind of pairs, two iterations.

Run `python benchmarks/offline_loop.py --work DIR` (hours on a laptop; `--jobs` seeds at once). Every stage is one
command of the project with a run directory of its own under DIR; what is there is not run again, so a stopped run goes
on. `--plan` prints the commands and stops. Learns from the train split, gates on validation, is measured on test.

For each seed: `iterate` on step pairs (its first iteration gives the rows "rejection fine-tuning" and "step DPO", its
end the last one), two more `train_dpo` from the same fine-tuned model, on trajectory pairs and on all kinds, and
`evaluate` of every model on the same test tasks, alone and with search.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from _common import write_result

PIPELINE = "offline_agent.pipelines."


@dataclass(frozen=True)
class Suite:
    """One environment's experiment.

    Attributes:
        environment: Keys that name it.
        iterate: Keys of `iterate`.
        dpo: Keys of the two other `train_dpo`; the same as iterate's.
        evaluate: Keys of every `evaluate`.
        warm: Keys of the `train_sft` that makes the warm start, the same for every seed; none = the embedded default
            is the warm start.
        tasks: Train tasks searched in each iteration.
        pool: Distance of the seeds' first train tasks.
        first: The first seed's; those before it made the warm start.
        games: Whether tasks are of several games, whose names their ids begin with: each has rows of its own then,
            and its score stands beside its success.
    """

    environment: tuple[str, ...]
    iterate: tuple[str, ...]
    dpo: tuple[str, ...]
    evaluate: tuple[str, ...]
    warm: tuple[str, ...] = ()
    tasks: int = 500
    pool: int = 1000
    first: int = 0
    games: bool = False

    def offset(self, seed: int) -> str:
        """Return the key that says where a seed's train tasks begin."""
        return f"tasks.offset={self.first + seed * self.pool}"


_GAMES = (
    "env=textworld",
    "env.game=[cookingworld,coin]",
    "env.params.cookingworld=numLocations=1,numIngredients=2,numDistractorItems=2,includeDoors=0",
    "env.params.coin=numLocations=4,numDistractorItems=0,includeDoors=0,limitInventorySize=0",
)
_RATES = ("optimizer.learning_rate=5e-4", "optimizer.epochs=2", "dpo.sft=0.1", "anchor.weight=0.5")

SUITES = {
    "shop": Suite(
        environment=("env=shop",),
        iterate=(
            "search.simulations=16",
            "search.value=success",  # what is measured; partial credit teaches to buy what is nearly right
            "filtered.per_task=6",
            "filtered.origins=[search,rollout]",
            "sft.optimizer.learning_rate=5e-4",
            "sft.optimizer.epochs=2",
            "dpo.kinds=[step]",
            "dpo.optimizer.learning_rate=5e-4",
            "dpo.optimizer.epochs=2",
            "dpo.loss.sft=0.1",
            "dpo.anchor.weight=0.5",
            "held_out.n=100",
        ),
        dpo=_RATES,
        evaluate=("search.value=success",),
    ),
    "textworld": Suite(
        environment=_GAMES,
        iterate=(
            "search.simulations=12",
            "search.max_steps=30",
            "filtered.per_task=4",
            "filtered.origins=[search,rollout]",
            "sft.optimizer.learning_rate=5e-4",
            "sft.optimizer.epochs=2",
            "dpo.kinds=[step]",
            "dpo.optimizer.learning_rate=5e-4",
            "dpo.optimizer.epochs=2",
            "dpo.loss.sft=0.1",
            "dpo.anchor.weight=0.5",
            "held_out.n=60",
        ),
        dpo=_RATES,
        evaluate=("max_steps=30",),
        warm=("--config", "configs/textworld/train_sft.yaml"),
        tasks=200,
        pool=400,
        first=600,
        games=True,
    ),
}


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
        keys = [*self.keys, f"run_dir={(folder / self.name).resolve()}", "tracking.uri=null"]
        return [sys.executable, "-m", PIPELINE + self.pipeline, *keys]


WARM = "../warm"
"""The run directory of a suite's own warm start: one for all seeds."""

ROWS = {
    "warm start": "warm",
    "rejection fine-tuning": "rft",
    "trajectory DPO": "dpo_trajectory",
    "step DPO": "dpo_step",
    "step, trajectory, hindsight and minimal": "dpo_all",
    "two iterations (step)": "final",
}
"""What a row of the table is called, and its model."""


def stages(suite: Suite, seed: int, folder: Path, options: argparse.Namespace) -> Iterator[Stage]:
    """Yield the commands of one seed."""
    own = (*suite.environment, f"seed={seed}")
    warm: tuple[str, ...] = ()
    models: dict[str, str | None] = {"warm": None}
    if suite.warm:
        yield Stage(WARM, "train_sft", suite.warm)
        models["warm"] = str((folder / WARM / "model").resolve())
        warm = (WARM,)
    start = (f"policy.model={models['warm']}",) if models["warm"] else ()
    loop = ("iterations=2", f"tasks.n={options.tasks or suite.tasks}", suite.offset(seed))
    yield Stage("iterate", "iterate", (*own, *loop, *suite.iterate, *start), warm)
    first = folder / "iterate" / "iteration-0"
    models |= {"rft": str(first / "train_sft" / "model"), "dpo_step": str(first / "train_dpo" / "model")}
    for name, kinds in (("trajectory", "trajectory"), ("all", "step,trajectory,hindsight,minimal")):
        data = (f"model.path={models['rft']}", f"data.runs=[{first / 'build_prefs'}]", f"data.kinds=[{kinds}]")
        yield Stage(f"dpo_{name}", "train_dpo", (f"seed={seed}", *data, *suite.dpo), ("iterate",))
        models[f"dpo_{name}"] = str(folder / f"dpo_{name}" / "model")
    models["final"] = str(folder / "iterate" / "model")
    tasks = ("tasks.split=test", f"tasks.n={options.held_out}")
    for name, model in models.items():
        after = {"dpo_trajectory": ("dpo_trajectory",), "dpo_all": ("dpo_all",), "warm": warm}.get(name, ("iterate",))
        policy = (f"policy.model={model}",) if model else ()
        plain = (f"attempts={options.attempts}",)
        yield Stage(f"test-{name}", "evaluate", (*own, *tasks, *plain, *suite.evaluate, *policy), after)
        if options.simulations:
            search = ("attempts=0", "greedy=false", "test_time.algorithm=mcts")
            search += (f"test_time.simulations={options.simulations}",)
            yield Stage(f"search-{name}", "evaluate", (*own, *tasks, *search, *suite.evaluate, *policy), after)


class Runner:
    """Runs the stages of all seeds, `jobs` at once, each as soon as those it needs are done."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs

    def run(self, plans: Mapping[Path, Sequence[Stage]]) -> None:
        # the first stages of every seed come before the second of any: the long ones begin early
        waiting = sorted(
            ((number, folder, stage) for folder, plan in plans.items() for number, stage in enumerate(plan)),
            key=lambda entry: entry[0],
        )
        done: set[Path] = set()
        running: dict[Future[None], Path] = {}
        with ThreadPoolExecutor(self.jobs) as pool:
            while waiting or running:
                for entry in list(waiting):
                    _, folder, stage = entry
                    place = (folder / stage.name).resolve()
                    ready = all((folder / name).resolve() in done for name in stage.after)
                    if len(running) < self.jobs and ready and place not in running.values():
                        waiting.remove(entry)
                        running[pool.submit(_run, folder, stage)] = place
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    place = running.pop(future)
                    future.result()  # a stage that failed ends it all; the same command goes on later
                    done.add(place)


def _run(folder: Path, stage: Stage) -> None:
    if _done(folder / stage.name):
        return
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{folder.name}: {stage.name}", flush=True)
    with (folder / f"{stage.name}.log").open("a") as log:
        own = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        root = Path(__file__).parents[1]  # configurations are named from there
        code = subprocess.run(stage.command(folder), stdout=log, stderr=log, env=own, cwd=root, check=False).returncode
    if code:
        raise SystemExit(f"{stage.name} ended with status {code}; see {folder / stage.name}.log")


def _done(run_dir: Path) -> bool:
    try:
        return json.loads((run_dir / "manifest.json").read_text()).get("status") == "done"
    except FileNotFoundError:
        return False


@dataclass
class Played:
    """Success and score per task and seed, of one row and one way of playing; what nobody judged is left out.

    Args:
        game: Tasks whose ids begin with it; "" = all.
        column: `success` or `reward`.
    """

    game: str = ""
    column: str = "success"
    means: list[dict[str, float]] = field(default_factory=list)

    def add(self, run_dir: Path, mode: str) -> None:
        columns = ["policy", "mode", "task_id", self.column]
        judged: dict[str, list[float]] = {}
        for row in pq.read_table(run_dir / "attempts", columns=columns).to_pylist():
            mine = row["policy"] == "candidate" and row["mode"] == mode and row["task_id"].startswith(self.game)
            if mine and row[self.column] is not None:
                judged.setdefault(row["task_id"], []).append(float(row[self.column]))
        if judged:
            self.means.append({task: sum(each) / len(each) for task, each in judged.items()})

    def matrix(self) -> Any:
        tasks = sorted(set.intersection(*(set(means) for means in self.means)))
        return np.array([[means[task] for task in tasks] for means in self.means])


def interval(values: Any, resamples: int = 4000) -> tuple[float, float]:
    """Return the 95 % interval of the mean of values[seed, task]: seeds and tasks are both drawn again."""
    rng = np.random.default_rng(0)
    seeds, tasks = values.shape
    means = [
        values[rng.integers(seeds, size=seeds)][:, rng.integers(tasks, size=tasks)].mean() for _ in range(resamples)
    ]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def table(suite: Suite, folders: Sequence[Path], simulations: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows of the table, and facts about them; for each game where there are several."""
    if not suite.games:
        return _table("", folders, simulations, {"success": ""})
    played = pq.read_table(folders[0] / "test-warm" / "attempts", columns=["task_id"])["task_id"].to_pylist()
    rows: list[dict[str, Any]] = []
    facts: dict[str, Any] = {}
    for game in sorted({task.partition("-")[0] for task in played}):
        own, found = _table(game, folders, simulations, {"success": "won, ", "reward": "score, "})
        rows += [{"game": game, **row} for row in own]
        facts[game] = found
    return rows, facts


def _table(
    game: str, folders: Sequence[Path], simulations: int, columns: Mapping[str, str]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    rows, sampled = [], {}
    for title, model in ROWS.items():
        row: dict[str, Any] = {"policy": title}
        ways = [("sampled", "sampled at 0.7", f"test-{model}"), ("greedy", "greedy", f"test-{model}")]
        if simulations:
            ways.append(("mcts", f"with search ({simulations})", f"search-{model}"))
        for column, name in columns.items():
            for mode, way, run in ways:
                played = Played(game, column)
                for folder in folders:
                    played.add(folder / run, mode)
                values = played.matrix()
                low, high = interval(values)
                row[name + way] = f"{values.mean():.1%}"
                row[f"{name}{way}: 95 %"] = f"{low:.1%} to {high:.1%}"
                if (mode, column) == ("sampled", "success"):
                    row["each seed"] = ", ".join(f"{mean:.1%}" for mean in values.mean(1))
                    sampled[title] = (values, low, high)
        rows.append(row)
    base, best = sampled["warm start"], sampled[next(title for title, model in ROWS.items() if model == "final")]
    gain = best[0] - base[0]
    low, high = interval(gain)
    facts = {
        "gain of the whole loop, points": round(100 * float(gain.mean()), 1),
        "its 95 % interval": f"{100 * low:.1f} to {100 * high:.1f}",
        "intervals apart": bool(best[1] > base[2]),
        **({} if game else {"goal": "at least 25 points, intervals apart"}),
        "seeds": len(folders),
        "test tasks": base[0].shape[1],
    }
    return rows, facts


def arguments(about: str | None) -> argparse.ArgumentParser:
    """Return the arguments that every experiment of this kind takes."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--suite", default="shop", choices=sorted(SUITES))
    parser.add_argument("--work", type=Path, required=True, help="where the run directories are")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--held-out", type=int, default=200, help="test tasks")
    parser.add_argument("--attempts", type=int, default=4, help="sampled attempts of each test task")
    parser.add_argument("--jobs", type=int, default=2, help="commands at once, one thread each")
    parser.add_argument("--plan", action="store_true", help="print the commands and stop")
    parser.add_argument("--out", type=Path, default=None)
    return parser


def carry_out(
    options: argparse.Namespace, plan: Callable[[Suite, int, Path, argparse.Namespace], Iterable[Stage]]
) -> list[Path]:
    """Run every seed's stages, or print their commands and exit; return the seeds' folders."""
    folders = [(options.work / f"seed-{seed}").resolve() for seed in options.seeds]
    plans = {
        folder: list(plan(SUITES[options.suite], seed, folder, options))
        for seed, folder in zip(options.seeds, folders, strict=True)
    }
    if options.plan:
        for folder, found in plans.items():
            for stage in found:
                print(shlex.join(stage.command(folder)))
        raise SystemExit(0)
    Runner(options.jobs).run(plans)
    return folders


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--tasks", type=int, default=None, help="train tasks searched in each iteration")
    parser.add_argument("--simulations", type=int, default=16, help="of the search at test time; 0 = none")
    options = parser.parse_args()
    suite = SUITES[options.suite]
    rows, facts = table(suite, carry_out(options, stages), options.simulations)
    facts |= {"train tasks an iteration": options.tasks or suite.tasks}
    facts |= {"commands": "python benchmarks/offline_loop.py --plan"}
    write_result(f"offline_loop_{options.suite}", rows, facts, options.out)


if __name__ == "__main__":
    main()
