"""Gains of the offline loop on held-out tasks: warm start, rejection fine-tuning, each kind of pairs, two iterations.

Run `python benchmarks/offline_loop.py --work DIR` (hours on a laptop; `--jobs` commands at once). Every stage is one
command of the project with a run directory of its own under DIR; what is there is not run again, so a stopped run goes
on. `--plan` prints the commands and stops. Learns from the train split, gates on validation, is measured on test. A
seed that is finished is kept under `results/`, so seeds may be run one at a time: `--seeds 0`, then `--seeds 0 1`.

For each seed: `iterate` on step pairs (its first iteration gives the rows "rejection fine-tuning" and "step DPO", its
end the last one), two more `train_dpo` from the same fine-tuned model, on trajectory pairs and on all kinds, and
`evaluate` of every model on the same test tasks, alone and with search.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import write_result
from _experiment import Seed, Stage, arguments, carry_out, ending_columns, endings, interval, matrix, share_interval

ROWS = {
    "warm start": "warm",
    "rejection fine-tuning": "rft",
    "trajectory DPO": "dpo_trajectory",
    "step DPO": "dpo_step",
    "step, trajectory, hindsight and minimal": "dpo_all",
    "two iterations (step)": "final",
}
"""Names of the table's rows, and their models."""
_ABLATIONS = {"dpo_trajectory": "trajectory", "dpo_all": "step,trajectory,hindsight,minimal"}


@dataclass(frozen=True)
class Suite:
    """One environment's experiment.

    Attributes:
        environment: Keys that name it.
        iterate: Keys of `iterate`.
        dpo: Keys of the two other `train_dpo`; the same as iterate's.
        evaluate: Keys of every `evaluate`.
        refine: Keys of every `refine_grpo` that begins with the loop's models (`online_loop.py`).
        warm: Keys of the `train_sft` that makes the warm start, the same for every seed; none = the embedded default
            is the warm start.
        tasks: Train tasks searched in each iteration.
        pool: Distance of the seeds' first train tasks.
        first: The first seed's; those before it made the warm start.
        held_out: Test tasks.
        simulations: Of the search at test time; 0 = none.
        ablations: Whether the other kinds of pairs have rows.
        score: Whether a score stands beside the success.
    """

    environment: tuple[str, ...]
    iterate: tuple[str, ...]
    dpo: tuple[str, ...]
    evaluate: tuple[str, ...]
    refine: tuple[str, ...] = ()
    warm: tuple[str, ...] = ()
    tasks: int = 300
    pool: int = 1000
    first: int = 0
    held_out: int = 200
    simulations: int = 8
    ablations: bool = True
    score: bool = False

    def offset(self, seed: int) -> str:
        """Return the key that says where a seed's train tasks begin."""
        return f"tasks.offset={self.first + seed * self.pool}"

    @property
    def rows(self) -> dict[str, str]:
        """Names of the table's rows, and their models."""
        return ROWS if self.ablations else {title: model for title, model in ROWS.items() if model not in _ABLATIONS}


_BUILT = "pairs.kinds=[step,trajectory,hindsight,minimal]"  # the shop's ablations read them all
_RATES = ("optimizer.learning_rate=5e-5", "optimizer.epochs=2", "dpo.sft=0.1", "anchor.weight=0.5")


def _textworld(game: str, params: str, gold: int, kept: int, epochs: int) -> Suite:
    environment = ("env=textworld", f"env.game={game}", f"env.params={params}")
    return Suite(
        environment=environment,
        iterate=(
            "search.simulations=12",
            "search.max_steps=20",
            f"filtered.per_task={kept}",
            "filtered.origins=[search,rollout]",
            "sft.optimizer.learning_rate=5e-4",
            f"sft.optimizer.epochs={epochs}",
            "sft.batch.rows=4",  # its episodes are long and few: batches of 32 would be a handful of updates
            _BUILT,
            "dpo.kinds=[step]",
            "dpo.batch.rows=8",
            "dpo.optimizer.learning_rate=5e-5",
            "dpo.optimizer.epochs=2",
            "dpo.loss.sft=0.1",
            "dpo.anchor.weight=0.5",
            "held_out.n=60",
        ),
        dpo=_RATES,
        evaluate=("max_steps=20",),
        refine=("rollouts.max_steps=20",),
        warm=("--config", "configs/textworld/train_sft.yaml", *environment, f"tasks.n={gold}"),
        tasks=200,
        pool=215,
        first=gold,
        held_out=100,
        simulations=0,
        ablations=False,
        score=True,
    )


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
            _BUILT,
            "dpo.kinds=[step]",
            "dpo.optimizer.learning_rate=5e-5",
            "dpo.optimizer.epochs=2",
            "dpo.loss.sft=0.1",
            "dpo.anchor.weight=0.5",
            "held_out.n=100",
        ),
        dpo=_RATES,
        evaluate=("search.value=success",),
    ),
    "cookingworld": _textworld(
        "cookingworld", "numLocations=1,numIngredients=1,numDistractorItems=2,includeDoors=0",
        gold=350, kept=4, epochs=3,
    ),  # fmt: skip
    # many ways win here, most of them long: two, the shortest first
    "coin": _textworld(
        "coin", "numLocations=6,numDistractorItems=0,includeDoors=0,limitInventorySize=0", gold=100, kept=2, epochs=2,
    ),  # fmt: skip
}


WARM = "../warm"
"""The run directory of a suite's own warm start: one for all seeds."""


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
    for name, kinds in _ABLATIONS.items() if suite.ablations else ():
        data = (f"model.path={models['rft']}", f"data.runs=[{first / 'build_prefs'}]", f"data.kinds=[{kinds}]")
        yield Stage(name, "train_dpo", (f"seed={seed}", *data, *suite.dpo), ("iterate",))
        models[name] = str(folder / name / "model")
    models["final"] = str(folder / "iterate" / "model")
    tasks = ("tasks.split=test", f"tasks.n={options.held_out or suite.held_out}")
    for name, model in models.items():
        after = warm if name == "warm" else (name,) if name in _ABLATIONS else ("iterate",)
        policy = (f"policy.model={model}",) if model else ()
        plain = (f"attempts={options.attempts}",)
        yield Stage(f"test-{name}", "evaluate", (*own, *tasks, *plain, *suite.evaluate, *policy), after)
        if options.simulations:
            search = ("attempts=0", "greedy=false", "test_time.algorithm=mcts")
            search += (f"test_time.simulations={options.simulations}",)
            yield Stage(f"search-{name}", "evaluate", (*own, *tasks, *search, *suite.evaluate, *policy), after)


def searched(folder: Path) -> dict[str, int]:
    """Return what the loop's searches cost: calls of tools, those that restored states, those of mining's replays, and
    tokens sampled.

    Args:
        folder: The seed's. Nothing is returned where it holds no search; nothing of restored states where a search was
            interrupted, since its summary tells of its last session alone.
    """
    names = {"tool_calls": "tool calls", "replayed_calls": "calls in replays", "generated": "tokens sampled"}
    summaries = [json.loads(path.read_text()) for path in folder.glob("iterate/iteration-*/build_prefs/summary.json")]
    if not summaries:
        return {}
    cost = {title: sum(each[name] for each in summaries) for name, title in names.items()}
    if not any(each["resumed"] for each in summaries):
        cost["calls to restore states"] = sum(each["this_session"]["calls_replayed"] for each in summaries)
    return cost


def told(folder: Path) -> dict[str, Any]:
    """Return what is kept of a seed beside its evaluations."""
    return {**endings(folder), "searches": searched(folder), **warmed(folder / WARM)}


def warmed(folder: Path) -> dict[str, Any]:
    """Return from how many gold paths a suite's own warm start in this folder learnt."""
    if not (folder / "summary.json").exists():
        return {}
    summary = json.loads((folder / "summary.json").read_text())
    return {"gold paths": f"{summary['data']['kept']} of {summary['demonstrations']['attempts']} games"}


def table(suite: Suite, seeds: Sequence[Seed], simulations: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows of the table, and facts about them."""
    columns = {"success": "won, ", "reward": "score, "} if suite.score else {"success": ""}
    rows, sampled = [], {}
    for title, model in suite.rows.items():
        row: dict[str, Any] = {"policy": title}
        ways = [("sampled", "sampled at 0.7", f"test-{model}"), ("greedy", "greedy", f"test-{model}")]
        if simulations:
            ways.append(("mcts", f"with search ({simulations})", f"search-{model}"))
        for column, name in columns.items():
            for mode, way, run in ways:
                values = matrix(seeds, run, mode, column)
                low, high = share_interval(values)
                row[name + way] = f"{values.mean():.1%}"
                row[f"{name}{way}: 95 %"] = f"{low:.1%} to {high:.1%}"
                if (mode, column) == ("sampled", "success"):
                    row["each seed"] = ", ".join(f"{mean:.1%}" for mean in values.mean(1))
                    sampled[title] = (values, low, high)
        rows.append(row | ending_columns(seeds, f"test-{model}"))
    base, best = sampled["warm start"], sampled["two iterations (step)"]
    gain = best[0] - base[0]
    low, high = interval(gain)
    facts = {
        "gain of the whole loop, points": round(100 * float(gain.mean()), 1),
        "its 95 % interval": f"{100 * low:.1f} to {100 * high:.1f}",
        "intervals apart": bool(best[1] > base[2]),
        **({} if suite.warm else {"goal": "at least 25 points, intervals apart"}),
        "seeds": len(seeds),
        "test tasks": base[0].shape[1],
    }
    return rows, facts


def main() -> None:
    """Run, print, write."""
    parser = arguments(__doc__, SUITES)
    parser.add_argument("--tasks", type=int, default=None, help="train tasks searched in each iteration")
    parser.add_argument("--simulations", type=int, default=None, help="of the search at test time; 0 = none")
    options = parser.parse_args()
    suite, name = SUITES[options.suite], f"offline_loop_{options.suite}"
    if options.simulations is None:
        options.simulations = suite.simulations
    settings = {
        "train tasks an iteration": options.tasks or suite.tasks,
        "test tasks": options.held_out or suite.held_out,
    }
    settings |= {"attempts": options.attempts, "simulations at test time": options.simulations}
    seeds = carry_out(name, options, lambda seed, folder: stages(suite, seed, folder, options), settings, told)
    rows, facts = table(suite, seeds, options.simulations)
    if all(seed.facts.get("searches") for seed in seeds):
        for what in seeds[0].facts["searches"]:
            facts[f"searches of the loop, {what}"] = ", ".join(f"{seed.facts['searches'][what]:,}" for seed in seeds)
    if "gold paths" in seeds[0].facts:
        facts["gold paths of the warm start"] = seeds[0].facts["gold paths"]
    facts |= {**settings, "commands": f"python benchmarks/offline_loop.py --suite {options.suite} --work DIR --plan"}
    write_result(name, rows, facts, options.results / f"{name}.json")


if __name__ == "__main__":
    main()
