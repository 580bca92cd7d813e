"""Verified successes, distinct ones, and pairs for a call: attempts and searches, on easy, middle and hard tasks.

Run `python benchmarks/yields.py --suite frozenlake --work DIR` (an hour, one processor). Every method plays the same
train tasks with the warm start of a suite of `arms.py`, once for each seed, to the end of its simulations. Four plain
attempts that no method uses sort the tasks: hard = none of them succeeds, middle = one or two, easy = more. All calls
of a task are counted; those that restore states, which a run counts as a whole, are shared among its tasks by the calls
of their trees. "Times as many" is the ratio to plain attempts, with an interval that draws seeds and tasks anew.

What is there is not run again, so a stopped run goes on; `--plan` prints the commands.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from _common import write_result
from _experiment import Seed, Stage, arguments, carry_out
from _recipes import SUITES, WARM, Suite

from offline_agent.search.serialization import tree_from_json
from offline_agent.store.run_directory import read_tree

ATTEMPTS = "plain attempts"
_PLAIN = ("search.algorithm=best_of_n", "search.simulations=16")
_FOUR = ("search.algorithm=best_of_n", "search.simulations=4")
_ONE = "search.proposals=1"
_UNSURE = "search.selection=uncertainty"
_STATES = "search.repeated_states=close"
METHODS: dict[str, tuple[str, ...]] = {
    ATTEMPTS: _PLAIN,
    "UCT": ("search.simulations=16", "search.selection=uct"),
    "PUCT": ("search.simulations=16",),
    "Gumbel root": ("search.simulations=16", "search.gumbel_root=true"),
    "PUCT, one proposal": ("search.simulations=16", _ONE),
    "PUCT over states": ("search.simulations=16", _STATES),
    "PUCT over states, one proposal": ("search.simulations=16", _STATES, _ONE),
    "uncertainty": ("search.simulations=16", _UNSURE),
    "uncertainty over states": ("search.simulations=16", _UNSURE, _STATES),
}
"""Keys of `build_prefs` by the name of a row."""
SORTED = "sorting"
PARTS = ("easy", "middle", "hard", "all")
COUNTS = ("solved", "successes", "distinct", "pairs")


def stages(suite: Suite, seed: int, folder: Path, tasks: int) -> Iterator[Stage]:
    """Yield the commands of one seed."""
    warm: tuple[str, ...] = ()
    policy: tuple[str, ...] = ()
    if suite.warm:
        yield Stage(WARM, "train_sft", suite.warm)
        warm, policy = (WARM,), (f"policy.model={(folder / WARM / 'model').resolve()}",)
    pool = (f"tasks.n={tasks}", f"tasks.offset={suite.first + seed * suite.apart}")
    for name, keys in ((SORTED, _FOUR), *METHODS.items()):
        own = f"seed={seed + 500 if name == SORTED else seed}"
        keys = (*suite.environment, own, *pool, *suite.collect, *keys, *policy)
        yield Stage(_folder(name), "build_prefs", keys, warm)


def _folder(name: str) -> str:
    return name.replace(",", "").replace(" ", "-")


def counted(run: Path) -> dict[str, dict[str, float]]:
    """Return for each task what a run found: solved (0 or 1), successes, distinct ones, step pairs, and its calls."""
    table = pq.read_table(run / "preferences", columns=["kind", "task_id"]).to_pylist()
    pairs = Counter(row["task_id"] for row in table if row["kind"] == "step")
    summary = json.loads((run / "summary.json").read_text())
    if summary["resumed"]:  # its restored states are counted for the last session alone
        raise SystemExit(f"{run} was interrupted; remove it, so that its calls can be counted")
    restoring = 1 + summary["this_session"]["calls_replayed"] / max(1, summary["tool_calls"])
    found = {}
    for file in sorted((run / "trees").glob("*.json.gz")):
        tree = tree_from_json(read_tree(file))
        won = [end for end in tree.terminals() if end.verdict is not None and end.verdict.success]
        visits = [1 if end.edge is None else max(1, end.edge.visits) for end in won]
        found[tree.tree_id] = {
            "solved": int(bool(won)),
            "successes": sum(visits),
            "distinct": len(won),
            "pairs": pairs[tree.tree_id],
            "calls": tree.counters["tool_calls"] * restoring,
        }
    return found


def sorted_into(run: Path) -> dict[str, str]:
    """Return the part of each task, by the successes of the sorting run's attempts."""
    names = {0: "hard", 1: "middle", 2: "middle"}
    return {task: names.get(one["successes"], "easy") for task, one in counted(run).items()}


def told(folder: Path) -> dict[str, Any]:
    """Return what is kept of a seed."""
    if not (folder / _folder(SORTED) / "summary.json").exists():
        return {}
    return {
        "parts": sorted_into(folder / _folder(SORTED)),
        "found": {name: counted(folder / _folder(name)) for name in METHODS},
    }


def methods(seeds: Sequence[Seed]) -> list[str]:
    """Return the names of the methods that every seed was searched with: kept seeds may lack those added since."""
    return [name for name in METHODS if all(name in seed.facts["found"] for seed in seeds)]


def rates(seeds: Sequence[Seed], part: str, rng: np.random.Generator | None) -> dict[str, dict[str, float]]:
    """Return each method's counts a 1,000 calls on the tasks of a part; with `rng`, of seeds and tasks drawn again."""
    drawn = seeds if rng is None else [seeds[i] for i in rng.integers(len(seeds), size=len(seeds))]
    sums: dict[str, Any] = {name: Counter() for name in methods(seeds)}
    for seed in drawn:
        tasks = [task for task, where in seed.facts["parts"].items() if part in (where, "all")]
        if rng is not None:
            tasks = [tasks[i] for i in rng.integers(len(tasks), size=len(tasks))]
        for name in sums:
            for task in tasks:
                sums[name].update(seed.facts["found"][name][task])
    return {name: {what: 1000 * one[what] / one["calls"] for what in COUNTS} for name, one in sums.items()}


def table(seeds: Sequence[Seed], resamples: int = 1000) -> list[dict[str, Any]]:
    """Return the rows: every method on every part."""
    rows = []
    for part in PARTS:
        rng = np.random.default_rng(0)
        found = rates(seeds, part, None)
        again = [rates(seeds, part, rng) for _ in range(resamples)]
        number = sum(part in (where, "all") for seed in seeds for where in seed.facts["parts"].values())
        for name in found:
            each = [
                seed.facts["found"][name][task]
                for seed in seeds
                for task, where in seed.facts["parts"].items()
                if part in (where, "all")
            ]
            row: dict[str, Any] = {
                "tasks": f"{part} ({number})",
                "by": name,
                "calls": round(sum(one["calls"] for one in each)),
                "solved": f"{np.mean([one['solved'] for one in each]):.0%}",
                "solved a 1,000 calls": round(found[name]["solved"], 1),
                "successes a 1,000 calls": round(found[name]["successes"], 1),
                "distinct": round(found[name]["distinct"], 1),
                "step pairs": round(found[name]["pairs"], 1),
            }
            for what, title in (("successes", "times as many"), ("distinct", "distinct, times")):
                if name != ATTEMPTS:
                    ratios = [one[name][what] / max(1e-9, one[ATTEMPTS][what]) for one in again]
                    low, high = np.quantile(ratios, [0.025, 0.975])
                    ratio = found[name][what] / max(1e-9, found[ATTEMPTS][what])
                    row[title] = f"{ratio:.2f} ({low:.2f} to {high:.2f})"
            rows.append(row)
    return rows


def main() -> None:
    """Run, count, print, write."""
    parser = arguments(__doc__, SUITES)
    parser.add_argument("--tasks", type=int, default=150, help="train tasks of each seed")
    options = parser.parse_args()
    suite, name = SUITES[options.suite], f"yields_{options.suite}"
    settings = {"train tasks a seed": options.tasks}
    seeds = carry_out(name, options, partial(_planned, suite, options.tasks), settings, told)
    facts = {**settings, "seeds": len(seeds), "simulations": 16}
    facts["command"] = f"python benchmarks/yields.py --suite {options.suite} --work DIR"
    write_result(name, table(seeds), facts, options.results / f"{name}.json")


def _planned(suite: Suite, tasks: int, seed: int, folder: Path) -> Iterator[Stage]:
    return stages(suite, seed, folder, tasks)


if __name__ == "__main__":
    main()
