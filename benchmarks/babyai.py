"""BabyAI: the offline loop from the bot's demonstrations, on levels of rising difficulty.

Run `python benchmarks/babyai.py --work DIR` (hours on a laptop; `--jobs` commands at once, one thread each). For each
level and seed: a new small model learns from the bot's demonstrations (`train_sft`, `scratch.*`); it plays new train
tasks, and a tree is searched where its attempts fail (`build_prefs`, `search.until=success`); it learns from the
verified successes (`train_sft`) and then from the pairs (`train_dpo`). Every model is evaluated on the same held-out
seeds. What is there is not run again, so a stopped run goes on; a seed that is finished is kept under `results/`.

A call turns, or walks up to seven cells, and there are at most 24 of them: imitation learning on the grid's symbols
(Chevalier-Boisvert et al. 2019, arXiv 1810.08272) counts single moves, at most 64.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from _common import write_result
from _experiment import Seed, Stage, arguments, carry_out, ending_columns, endings, interval, matrix, share_interval

LEVELS = ("GoToLocal", "PickupLoc", "PutNextLocal")
"""The levels of the table, the easiest first."""
OFFERED = (*LEVELS, "UnlockLocal", "GoToObjMazeS4")

MODELS = {"demonstrations": "warm", "search, successes": "sft", "search, successes and pairs": "dpo"}
"""Names of a level's rows, and their models."""

_POOL = 10_000  # distance of the seeds' first train tasks
_STEPS = 24


def stages(level: str, seed: int, folder: Path, options: argparse.Namespace) -> Iterator[Stage]:
    """Yield the commands of one seed at one level."""
    own = ("env=babyai", f"env.level={level}", f"seed={seed}")
    first = seed * _POOL
    demonstrations = (f"tasks.n={options.demonstrations}", f"tasks.offset={first}")
    epochs = ("scratch.reading=2", "optimizer.epochs=4", "batch.rows=4")
    config = ("--config", "environments/offline_agent_environments/babyai/configs/train_sft.yaml")
    yield Stage("warm", "train_sft", (*config, *own, *demonstrations, *epochs))
    model = {name: str((folder / name / "model").resolve()) for name in MODELS.values()}
    data = f"data.runs=[{(folder / 'search').resolve()}]"
    yield Stage(
        "search",
        "build_prefs",
        (
            *own, f"tasks.n={options.tasks}", f"tasks.offset={first + options.demonstrations}",
            f"policy.model={model['warm']}", "search.simulations=16", f"search.max_steps={_STEPS}",
            "search.until=success", "pairs.kinds=[step,trajectory]", "pairs.rejudge=0", "filtered.per_task=4",
            "filtered.origins=[search,rollout]",
        ),
        ("warm",),
    )  # fmt: skip
    gentle = ("optimizer.learning_rate=5e-4", "optimizer.epochs=3", "batch.rows=4")
    yield Stage("sft", "train_sft", (f"seed={seed}", f"model.path={model['warm']}", data, *gentle), ("search",))
    pairs = ("data.kinds=[step,trajectory]", "optimizer.learning_rate=5e-5", "optimizer.epochs=1", "dpo.sft=0.1")
    pairs += ("anchor.weight=0.5", "batch.rows=8")
    yield Stage("dpo", "train_dpo", (f"seed={seed}", f"model.path={model['sft']}", data, *pairs), ("sft",))
    held_out = (f"tasks.split={options.split}", f"tasks.n={options.held_out}", f"attempts={options.attempts}")
    held_out += ("greedy=false", "against.run=null")
    for name in MODELS.values():
        keys = (*own, *held_out, f"max_steps={_STEPS}", f"policy.model={model[name]}")
        yield Stage(f"{options.split}-{name}", "evaluate", keys, (name,))


def told(folder: Path) -> dict[str, Any]:
    """Return what is kept of a seed beside its evaluations: how they ended, and what the search cost and found."""
    warm, search = (json.loads((folder / name / "summary.json").read_text()) for name in ("warm", "search"))
    demonstrations = f"{warm['data']['kept']} of {warm['demonstrations']['attempts']}"
    return {**endings(folder), "demonstrations": demonstrations, "tool calls of the search": search["tool_calls"]}


def table(level: str, seeds: Sequence[Seed], split: str) -> list[dict[str, Any]]:
    """Return a level's rows."""
    rows = []
    start = matrix(seeds, f"{split}-warm", "sampled")
    for title, model in MODELS.items():
        values = matrix(seeds, f"{split}-{model}", "sampled")
        low, high = share_interval(values)
        row: dict[str, Any] = {"level": level, "learnt from": title}
        row |= {"success": f"{values.mean():.1%}", "95 %": f"{low:.1%} to {high:.1%}"}
        row["each seed"] = ", ".join(f"{mean:.1%}" for mean in values.mean(1))
        if model != "warm":
            low, high = interval(values - start)
            row["gain, points"] = f"{100 * (values - start).mean():+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
        rows.append(row | ending_columns(seeds, f"{split}-{model}"))
    return rows


def main() -> None:
    """Run, print, write."""
    parser = arguments(__doc__, (*OFFERED, "all"))
    parser.set_defaults(suite="all", held_out=100, attempts=2, jobs=1)
    parser.add_argument("--demonstrations", type=int, default=400, help="of the bot, for each level and seed")
    parser.add_argument("--tasks", type=int, default=100, help="train tasks that are searched")
    parser.add_argument("--split", choices=("validation", "test"), default="test", help="held-out tasks")
    options = parser.parse_args()
    settings = {name.replace("_", " "): getattr(options, name) for name in ("demonstrations", "tasks", "held_out")}
    settings |= {"attempts": options.attempts, "split": options.split, "longest episode, calls": _STEPS}
    rows: list[dict[str, Any]] = []
    facts: dict[str, Any] = {**settings, "seeds": len(options.seeds)}
    for level in LEVELS if options.suite == "all" else (options.suite,):
        at_level = copy.copy(options)
        at_level.work = options.work / level

        def plan(seed: int, folder: Path, level: str = level) -> Iterator[Stage]:
            return stages(level, seed, folder, options)

        seeds = carry_out(f"babyai_{level}", at_level, plan, settings, told)
        rows += table(level, seeds, options.split)
        for what in ("demonstrations", "tool calls of the search"):
            facts[f"{level}, {what}"] = ", ".join(str(seed.facts[what]) for seed in seeds)
    facts["command"] = "python benchmarks/babyai.py --work DIR"
    name = "babyai" if options.suite == "all" else f"babyai_{options.suite}"
    write_result(name, rows, facts, options.results / f"{name}.json")


if __name__ == "__main__":
    main()
