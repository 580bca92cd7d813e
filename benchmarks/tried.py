"""Ideas that were tried once, on validation maps of FrozenLake with one seed: reasons for what to measure next.

Run `python benchmarks/tried.py --work DIR` after `arms.py --suite frozenlake --work DIR --seeds 0 --arms "states, then
dpo"`: it goes on with the runs of its seed 0. Settings of GRPO are tried from the warm start. One seed says nothing of
another seed's training; intervals are over tasks alone. `--plan` prints the commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _common import write_result
from _experiment import Seed, Stage, arguments, carry_out, interval, matrix, share_interval
from _recipes import GRPO, LAKE
from arms import name_of

_CHAIN = ("states", "states, all data", "states+updates+dpo, all data")
_DATA = ("states-data", "states.states-data", "states.states_all_data.states-data")
_TUNED = "states.states_all_data.states.optimizer.epochs16.again-sft"
_HELD = (*LAKE, "seed=0", "tasks.split=validation", "tasks.n=130", "attempts=4", "greedy=false")
_SFT = ("optimizer.learning_rate=5e-4", "optimizer.epochs=4", "batch.rows=8")

TRIED: dict[str, tuple[str, ...]] = {
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
"""Keys of `refine_grpo` beside 30 rounds of 16 groups of 8 at a rate of 2e-4."""
WEIGHTS = ("0", "0.1", "0.3", "1")
ROWS: dict[str, tuple[str, str, str]] = {
    "fine-tuned": ("alone", "sampled", ""),
    "… best of four by agreement": ("agreement", "best_of_n", "fine-tuned"),
    "… rerank of four by the preference model": ("rerank", "rerank", "fine-tuned"),
    "… then step and trajectory DPO": ("dpo", "sampled", "fine-tuned"),
    "… then all siblings at once, as many updates": ("siblings", "sampled", "… then step and trajectory DPO"),
    **{
        f"fine-tuned for 524 updates, observations {weight}": (f"observations-{weight}", "sampled",
        "fine-tuned for 524 updates, observations 0" if weight != "0" else "")
        for weight in WEIGHTS
    },
    **{
        f"GRPO, {name}": (f"grpo-{name}", "sampled", "GRPO, twice the updates" if "equal states" in name else "")
        for name in TRIED
    },
}  # fmt: skip
"""Evaluation, way of playing, and the row it is compared with, by the name of a row."""


def folder_of(name: str) -> str:
    """Return the run directory of an idea."""
    return f"tried-{name}".replace(",", "").replace(" ", "-")


def stages(seed: int, folder: Path) -> Iterator[Stage]:
    """Yield the commands; `folder` is that of the seed in `arms.py`'s work directory."""
    warm, tuned = str((folder / "../warm/model").resolve()), str(folder / _TUNED / "model")
    preferred = str(folder / name_of(_CHAIN, "dpo") / "model")
    runs = f"data.runs=[{','.join(str(folder / name) for name in _DATA)}]"

    def test(name: str, model: str, *keys: str, after: tuple[str, ...] = ()) -> Stage:
        return Stage(folder_of(f"{name}-test"), "evaluate", (*_HELD, f"policy.model={model}", *keys), after)

    yield test("alone", tuned)
    four = "test_time.simulations=4"
    yield test("agreement", tuned, "test_time.algorithm=best_of_n", "test_time.judge=agreement", four)
    yield test("rerank", tuned, "test_time.algorithm=rerank", f"test_time.scorer={preferred}", four)
    yield test("dpo", preferred)
    keys = ("dpo.loss=siblings", "siblings.tau=0.1", "optimizer.learning_rate=1e-4", "optimizer.epochs=7")
    keys += ("optimizer.max_updates=1088", "batch.rows=8", "dpo.sft=0.3", "anchor.weight=0.5")
    yield Stage(folder_of("siblings"), "train_dpo", (f"seed={seed}", f"model.path={tuned}", runs, *keys))
    yield test("siblings", str(folder / folder_of("siblings") / "model"), after=(folder_of("siblings"),))
    for weight in WEIGHTS:
        name = f"observations-{weight}"
        keys = ("observations.source=executed", "observations.per_update=4") if weight != "0" else ()
        keys += (f"observations.weight={weight}",)
        yield Stage(folder_of(name), "train_sft", (f"seed={seed}", f"model.path={warm}", runs, *_SFT, *keys))
        yield test(name, str(folder / folder_of(name) / "model"), after=(folder_of(name),))
    pool = ("tasks.n=1500", "tasks.offset=100", "rounds=30", "rollouts.tasks=16", "rollouts.size=8")
    for idea, keys in TRIED.items():
        name = f"grpo-{idea}"
        given = dict(key.partition("=")[::2] for key in (*pool, *GRPO, *keys))
        settings = tuple(f"{key}={value}" for key, value in given.items())
        yield Stage(folder_of(name), "refine_grpo", (*LAKE, f"seed={seed}", f"model.path={warm}", *settings))
        yield test(name, str(folder / folder_of(name) / "model"), after=(folder_of(name),))


def table(seeds: list[Seed]) -> list[dict[str, Any]]:
    """Return the rows."""
    rows = []
    for title, (name, mode, other) in ROWS.items():
        values = matrix(seeds, folder_of(f"{name}-test"), mode)
        low, high = share_interval(values)
        row: dict[str, Any] = {"what": title, "success": f"{values.mean():.1%}", "95 %": f"{low:.1%} to {high:.1%}"}
        if other:
            gain = values - matrix(seeds, folder_of(f"{ROWS[other][0]}-test"), ROWS[other][1])
            low, high = interval(gain)
            row["against"] = other
            row["points"] = f"{100 * gain.mean():+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
        rows.append(row)
    return rows


def main() -> None:
    """Run, print, write."""
    parser = arguments(__doc__, ["frozenlake"])
    parser.set_defaults(suite="frozenlake", seeds=[0])
    options = parser.parse_args()
    settings = {"split": "validation", "tasks": 130, "attempts": options.attempts}
    seeds = carry_out("tried", options, stages, settings)
    facts = {**settings, "seeds": len(seeds), "command": "python benchmarks/tried.py --work DIR"}
    write_result("tried", table(seeds), facts, options.results / "tried.json")


if __name__ == "__main__":
    main()
