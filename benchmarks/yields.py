"""Verified successes, distinct ones, and pairs for a call: attempts and searches, on easy, middle and hard tasks.

Run `python benchmarks/yields.py --suite frozenlake --work DIR` (two hours, one processor). Every method plays the same
train tasks with the warm start of a suite of `arms.py`, once for each seed, to the end of its simulations. Four plain
attempts that no method uses sort the tasks: hard = none of them succeeds, middle = one or two, easy = more. All calls
of a task are counted; those that restore states, which a run counts as a whole, are shared among its tasks by the calls
of their trees.

Plain attempts share what they begin with: a call that an earlier attempt of the task has executed in the same place is
not executed again. "Independent" ones share nothing: these are the same attempts, with each of their calls counted.
"Times as many" is the ratio to the number of plain attempts whose calls on these tasks are nearest, with an interval
that draws seeds and tasks anew; "times independent" to 16 independent ones. The rows "4 attempts, then …" add up what a
search by need takes and finds: the sorting attempts on all tasks, and the method where none of them succeeded; they are
compared with further attempts there.

What is there is not run again, so a stopped run goes on; `--plan` prints the commands, `--methods` chooses some.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from _common import write_result
from _experiment import Seed, Stage, arguments, carry_out
from _recipes import SUITES, Suite

from offline_agent.search.serialization import tree_from_json
from offline_agent.store.run_directory import read_tree

_BEST = "search.algorithm=best_of_n"
_FOUR = (_BEST, "search.simulations=4")
_ONE = "search.proposals=1"
_STATES = "search.repeated_states=close"
METHODS: dict[str, tuple[str, ...]] = {
    **{f"{n} plain attempts": (_BEST, f"search.simulations={n}") for n in (16, 32, 64)},
    "UCT": ("search.simulations=16", "search.selection=uct"),
    "PUCT": ("search.simulations=16",),
    "PUCT, one proposal": ("search.simulations=16", _ONE),
    "PUCT over states": ("search.simulations=16", _STATES),
    "PUCT over states, one proposal": ("search.simulations=16", _STATES, _ONE),
}
"""Keys of `build_prefs` by the name of a row."""
ATTEMPTS = tuple(name for name, keys in METHODS.items() if _BEST in keys)
"""Rows that the others are compared with."""
INDEPENDENT = "16 independent attempts"
SORTED = "sorting"
THEN = "4 attempts, then "
NEED = (*ATTEMPTS, "PUCT", "PUCT over states")
"""Methods with a row of their own after four attempts that failed."""
PARTS = ("easy", "middle", "hard", "all")
COUNTS = {
    "successes": "successes a 1,000 calls",
    "distinct": "distinct",
    "pairs": "step pairs",
}
KEPT = (*COUNTS, "solved", "calls", "sampled")


def stages(suite: Suite, names: Sequence[str], tasks: int, seed: int, folder: Path) -> Iterator[Stage]:
    """Yield the commands of one seed."""
    warm: tuple[str, ...] = ()
    policy: tuple[str, ...] = ()
    if suite.warm:
        place, keys = suite.start(seed)
        yield Stage(place, "train_sft", keys)
        warm, policy = (place,), (f"policy.model={(folder / place / 'model').resolve()}",)
    pool = (f"tasks.n={tasks}", f"tasks.offset={suite.first + seed * suite.apart}")
    for name, keys in ((SORTED, _FOUR), *((name, METHODS[name]) for name in names)):
        own = f"seed={seed + 500 if name == SORTED else seed}"
        keys = (*suite.environment, own, *pool, *suite.collect, *keys, *policy)
        yield Stage(_folder(name), "build_prefs", keys, warm)


def _folder(name: str) -> str:
    return name.replace(",", "").replace(" ", "-")


def counted(run: Path) -> dict[str, dict[str, float]]:
    """Return for each task what a run found and what it took.

    Returns:
        solved (0 or 1), successes, distinct ones, step pairs; calls, those of attempts that share nothing, and sampled
        tokens.
    """
    table = pq.read_table(run / "preferences", columns=["kind", "task_id"]).to_pylist()
    pairs = Counter(row["task_id"] for row in table if row["kind"] == "step")
    summary = json.loads((run / "summary.json").read_text())
    if summary["resumed"]:  # its restored states are counted for the last session alone
        raise SystemExit(f"{run} was interrupted; remove it, so that its calls can be counted")
    restoring = 1 + summary["this_session"]["calls_replayed"] / max(1, summary["nodes"] - summary["tasks"])
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
            "calls": (len(tree.nodes) - 1) * restoring,
            "unshared": sum(edge.visits for edge in tree.edges),
            "sampled": tree.counters["generated"],
        }
    return found


def sorted_into(run: Path) -> dict[str, str]:
    """Return the part of each task, by the successes of the sorting run's attempts."""
    names = {0: "hard", 1: "middle", 2: "middle"}
    return {task: names.get(one["successes"], "easy") for task, one in counted(run).items()}


def told(names: Sequence[str], folder: Path) -> dict[str, Any]:
    """Return what is kept of a seed."""
    if not (folder / _folder(SORTED) / "summary.json").exists():
        return {}
    return {
        "parts": sorted_into(folder / _folder(SORTED)),
        "found": {name: counted(folder / _folder(name)) for name in (SORTED, *names)},
    }


def by_row(seed: Seed) -> dict[str, dict[str, dict[str, float]]]:
    """Return each row's counts by task: of a method, of independent attempts, and of either after four attempts.

    After four attempts means: these alone where one of them succeeded, else these and the method.
    """
    found: dict[str, Any] = {name: one for name, one in seed.facts["found"].items() if name != SORTED}
    if ATTEMPTS[0] in found:
        found[INDEPENDENT] = {task: {**one, "calls": one["unshared"]} for task, one in found[ATTEMPTS[0]].items()}
    first = seed.facts["found"][SORTED]
    after: dict[str, Any] = {}
    for name, one in found.items():
        after[THEN + name] = {
            task: dict(Counter(first[task]) + Counter(one[task])) if part == "hard" else first[task]
            for task, part in seed.facts["parts"].items()
        }
    return {**found, **after}


def nearest(calls: Mapping[str, float], name: str) -> str | None:
    """Return the row of plain attempts with the nearest calls; None for rows of attempts, which are not compared.

    Args:
        calls: Of every row.
        name: Of the row.
    """
    then = THEN if name.startswith(THEN) else ""
    controls = [then + plain for plain in ATTEMPTS if then + plain in calls]
    if name in (INDEPENDENT, *controls) or not controls:
        return None
    return min(controls, key=lambda control: abs(calls[control] - calls[name]))


def table(seeds: Sequence[Seed], chosen: Sequence[str], resamples: int = 1000) -> list[dict[str, Any]]:
    """Return the rows: every method on every part, and on all tasks by need too."""
    found = [by_row(seed) for seed in seeds]
    rows = []
    for part in PARTS:
        rng = np.random.default_rng(0)
        there = [[task for task, own in seed.facts["parts"].items() if part in (own, "all")] for seed in seeds]
        names = [*(INDEPENDENT for name in chosen if name == ATTEMPTS[0]), *chosen]
        names += [THEN + name for name in chosen if part == "all" and name in NEED]
        # for each seed the counts [row, task, what]
        counts = [
            np.array([[[one[name][task].get(what, 0) for what in KEPT] for task in tasks] for name in names])
            for one, tasks in zip(found, there, strict=True)
        ]
        whole = sum(one.sum(1) for one in counts)
        again = []
        for _ in range(resamples):
            drawn = [counts[seed] for seed in rng.integers(len(seeds), size=len(seeds))]
            again.append(sum(one[:, rng.integers(one.shape[1], size=one.shape[1])].sum(1) for one in drawn))
        calls = dict(zip(names, whole[:, KEPT.index("calls")], strict=True))
        number = sum(map(len, there))
        for name in names:
            own, control = whole[names.index(name)], nearest(calls, name)
            row: dict[str, Any] = {"tasks": f"{part} ({number})", "by": name, "calls": round(float(calls[name]))}
            row["sampled tokens"] = round(float(own[KEPT.index("sampled")]))
            row["solved"] = f"{own[KEPT.index('solved')] / number:.0%}"
            for what, title in COUNTS.items():
                row[title] = round(float(1000 * own[KEPT.index(what)] / calls[name]), 1)
            for what, title in (("successes", "times as many"), ("distinct", "distinct, times")):
                if control is not None:
                    row[title] = _times(whole, again, names.index(name), names.index(control), what)
            if control is not None:
                row["than"] = control.removeprefix(THEN)
            if INDEPENDENT in names and name not in (INDEPENDENT, *ATTEMPTS):
                pair = names.index(name), names.index(INDEPENDENT)
                row["times independent"] = _times(whole, again, *pair, "successes")
            rows.append(row)
    return rows


def _times(whole: Any, again: Sequence[Any], row: int, control: int, what: str) -> str:
    """Return the ratio of what two rows find for a call, with its 95 % interval."""
    low, high = np.quantile([_ratio(one, row, control, what) for one in again], [0.025, 0.975])
    return f"{_ratio(whole, row, control, what):.2f} ({low:.2f} to {high:.2f})"


def _ratio(sums: Any, row: int, control: int, what: str) -> float:
    """Return how many times as many a row finds for a call as its control, from sums[row, what]."""
    rates = sums[[row, control], KEPT.index(what)] / np.maximum(1, sums[[row, control], KEPT.index("calls")])
    return float(rates[0] / max(1e-9, rates[1]))


def main() -> None:
    """Run, count, print, write."""
    parser = arguments(__doc__, SUITES)
    parser.add_argument("--tasks", type=int, default=150, help="train tasks of each seed")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS, metavar="NAME", help="rows")
    options = parser.parse_args()
    suite, name, methods = SUITES[options.suite], f"yields_{options.suite}", options.methods
    settings = {"train tasks a seed": options.tasks}
    plan, kept = partial(stages, suite, methods, options.tasks), partial(told, methods)
    seeds = carry_out(name, options, plan, settings, kept)
    for seed in seeds:
        if missing := [one for one in methods if one not in seed.facts["found"]]:
            raise SystemExit(
                f"{options.results / name}/seed-{seed.seed}.json was made without {', '.join(missing)}; remove it, so "
                "that these are run, or choose among the others with --methods"
            )
    facts = {**settings, "seeds": len(seeds), "simulations of a tree": 16}
    facts["command"] = f"python benchmarks/yields.py --suite {options.suite} --work DIR"
    if options.tasks != parser.get_default("tasks"):
        facts["command"] += f" --tasks {options.tasks}"
    if methods != list(METHODS):
        facts["command"] += " --methods " + " ".join(f'"{one}"' for one in methods)
    write_result(name, table(seeds, methods), facts, options.results / f"{name}.json")


if __name__ == "__main__":
    main()
