"""Ideas that were tried once, on validation tasks with one seed: reasons for what to measure next.

Run `python benchmarks/tried.py --work DIR` after `arms.py --suite frozenlake --work DIR --seeds 0 --arms "states, then
dpo"`: it goes on with the runs of its seed 0. With `--suite cookingworld` only settings of GRPO are tried, from the
warm start, and nothing is needed before. One seed says nothing of another seed's training; intervals are over tasks
alone. `--plan` prints the commands.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _common import write_result
from _experiment import Seed, Stage, arguments, carry_out, matrix, share_interval
from _recipes import GRPO, SUITES
from arms import name_of, points

_CHAIN = ("states", "states, all data", "states+updates+dpo, all data")
_TUNED = "states.states_all_data.states.optimizer.epochs16.again-sft"

_LAKE_GRPO = {
    "rate 1e-4": ("optimizer.learning_rate=1e-4",),
    "rate 2e-4": (),
    "rate 5e-4": ("optimizer.learning_rate=5e-4",),
    "rate 1e-3": ("optimizer.learning_rate=1e-3",),
    "groups of 16": ("rollouts.tasks=8", "rollouts.size=16"),
    "twice the updates": ("rounds=60", "rollouts.tasks=8"),
    "two passes, rate 1e-4": ("objective.passes=2", "optimizer.learning_rate=1e-4"),
    "four passes": ("objective.passes=4", "rounds=60", "rollouts.tasks=8"),
    "eight passes, rate 1e-4": ("objective.passes=8", "optimizer.learning_rate=1e-4", "rounds=60", "rollouts.tasks=8"),
    "DAPO": ("objective.name=dapo", "objective.dynamic=true", "rounds=10"),
    "turns in equal states": ("rollouts.credit=state", "rounds=60", "rollouts.tasks=8"),
}
_COOKING_GRPO = {
    "rate 2e-4": (),
    "rate 5e-4": ("optimizer.learning_rate=5e-4",),
    "rate 1e-3": ("optimizer.learning_rate=1e-3",),
    "four times the updates": ("rounds=20", "rollouts.tasks=4"),
    "four times the updates, rate 5e-4": ("rounds=20", "rollouts.tasks=4", "optimizer.learning_rate=5e-4"),
    "twice the updates, rate 1e-3": ("rounds=10", "rollouts.tasks=8", "optimizer.learning_rate=1e-3"),
    "four passes": ("objective.passes=4",),
    "four passes, rate 5e-4": ("objective.passes=4", "optimizer.learning_rate=5e-4"),
    "DAPO, rate 5e-4": ("objective.name=dapo", "objective.dynamic=true", "rounds=3", "optimizer.learning_rate=5e-4"),
}
TRIED: dict[str, dict[str, tuple[str, ...]]] = {"frozenlake": _LAKE_GRPO, "cookingworld": _COOKING_GRPO}
"""Keys of `refine_grpo` beside `USUAL` and a rate of 2e-4, by suite and name."""
_WIDE = ("rollouts.tasks=16", "rollouts.size=8")
USUAL: dict[str, tuple[str, ...]] = {
    "frozenlake": (*_WIDE, "rounds=30"),
    "cookingworld": (*_WIDE, "rounds=5", "rollouts.max_steps=20"),
}
"""Rounds, groups and episodes of `refine_grpo` where an idea names no others, by suite."""
_LAKE_ROWS: dict[str, tuple[str, str, str]] = {
    "fine-tuned": ("alone", "sampled", ""),
    "… best of four by agreement": ("agreement", "best_of_n", "fine-tuned"),
    "… then step and trajectory DPO": ("dpo", "sampled", "fine-tuned"),
    **{
        f"GRPO, {name}": (f"grpo-{name}", "sampled", "GRPO, twice the updates" if "equal states" in name else "")
        for name in _LAKE_GRPO
    },
}  # fmt: skip
ROWS: dict[str, dict[str, tuple[str, str, str]]] = {
    "frozenlake": _LAKE_ROWS,
    "cookingworld": {
        "warm start": ("warm", "sampled", ""),
        **{f"GRPO, {name}": (f"grpo-{name}", "sampled", "warm start") for name in _COOKING_GRPO},
    },
}
"""Evaluation, way of playing, and the row it is compared with, by suite and name of a row."""


def folder_of(name: str) -> str:
    """Return the run directory of an idea."""
    return f"tried-{name}".replace(",", "").replace(" ", "-")


def stages(seed: int, folder: Path, options: argparse.Namespace) -> Iterator[Stage]:
    """Yield the commands; `folder` is that of the seed in `arms.py`'s work directory."""
    suite = SUITES[options.suite]
    begun, begin = suite.start(seed)
    warm = str((folder / begun / "model").resolve())
    held = (*suite.environment, f"seed={seed}", "tasks.split=validation", f"tasks.n={suite.held_out}")
    held += (f"attempts={options.attempts}", "greedy=false", "against.run=null", *suite.evaluate)

    def test(name: str, model: str, *keys: str, after: tuple[str, ...] = (begun,)) -> Stage:
        return Stage(folder_of(f"{name}-test"), "evaluate", (*held, f"policy.model={model}", *keys), after)

    yield Stage(begun, "train_sft", begin)
    if options.suite == "frozenlake":
        yield from _learnt_from_trees(seed, folder, warm, test)
    else:
        yield test("warm", warm)
    pool = (f"tasks.n={suite.pool}", f"tasks.offset={suite.first + seed * suite.apart}", *USUAL[options.suite])
    for idea, keys in TRIED[options.suite].items():
        name = f"grpo-{idea}"
        given = dict(key.partition("=")[::2] for key in (*pool, *GRPO, *keys))
        settings = tuple(f"{key}={value}" for key, value in given.items())
        start = (*suite.environment, f"seed={seed}", f"model.path={warm}")
        yield Stage(folder_of(name), "refine_grpo", (*start, *settings), (begun,))
        yield test(name, str(folder / folder_of(name) / "model"), after=(folder_of(name),))


def _learnt_from_trees(seed: int, folder: Path, warm: str, test: Callable[..., Stage]) -> Iterator[Stage]:
    """Yield what goes on with the searches and models of `arms.py`."""
    tuned, preferred = str(folder / _TUNED / "model"), str(folder / name_of(_CHAIN, "dpo") / "model")
    yield test("alone", tuned)
    four = "test_time.simulations=4"
    yield test("agreement", tuned, "test_time.algorithm=best_of_n", "test_time.judge=agreement", four)
    yield test("dpo", preferred)


def costs(folder: Path) -> dict[str, Any]:
    """Return the calls and updates of each online training of a seed."""
    found = {}
    for path in sorted(folder.glob("tried-grpo-*/summary.json")):
        summary = json.loads(path.read_text())
        if "rollouts" in summary:  # else it is an evaluation
            found[path.parent.name] = {
                "calls": summary["rollouts"]["env_steps"],
                "updates": summary["training"]["updates"],
            }
    return {"online": found}


def table(seeds: list[Seed], suite: str) -> list[dict[str, Any]]:
    """Return the rows."""
    rows = []
    for title, (name, mode, other) in ROWS[suite].items():
        values = matrix(seeds, folder_of(f"{name}-test"), mode)
        low, high = share_interval(values)
        row: dict[str, Any] = {"what": title}
        online = [seed.facts.get("online", {}).get(folder_of(name)) for seed in seeds]
        if all(online):
            for part in ("calls", "updates"):
                row[part] = round(sum(one[part] for one in online) / len(online))
        row |= {"success": f"{values.mean():.1%}", "95 %": f"{low:.1%} to {high:.1%}"}
        if other:
            gain = values - matrix(seeds, folder_of(f"{ROWS[suite][other][0]}-test"), ROWS[suite][other][1])
            row["against"] = other
            row["points"] = points(gain)
        rows.append(row)
    return rows


def main() -> None:
    """Run, print, write."""
    parser = arguments(__doc__, TRIED)
    parser.set_defaults(suite="frozenlake", seeds=[0])
    options = parser.parse_args()
    name = "tried" if options.suite == "frozenlake" else f"tried_{options.suite}"
    settings = {"split": "validation", "tasks": SUITES[options.suite].held_out, "attempts": options.attempts}
    seeds = carry_out(name, options, lambda seed, folder: stages(seed, folder, options), settings, costs)
    command = "python benchmarks/tried.py --work DIR"
    command += "" if options.suite == "frozenlake" else f" --suite {options.suite}"
    facts = {**settings, "seeds": len(seeds), "command": command}
    write_result(name, table(seeds, options.suite), facts, options.results / f"{name}.json")


if __name__ == "__main__":
    main()
