"""Gains of the online stage on held-out tasks, from the offline checkpoint and from the warm start.

Run `python benchmarks/online_loop.py --offline DIR --work DIR` after `offline_loop.py --work DIR`: its models are where
this begins. Every stage is one command with a run directory of its own; what is there is not run again. `--plan` prints
the commands and stops. Learns from the train split; is measured on test, where nothing was chosen.

For each seed: `refine_grpo` with each objective from the offline loop's model, with GRPO from the warm start, all with
about the same number of environment steps; GRPO from the warm start for twice as many, which is near what the offline
loop and the stage after it use together; and `evaluate` of every model on the same test tasks.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from _common import write_result
from _experiment import Seed, Stage, arguments, carry_out, interval, matrix, share_interval
from offline_loop import SUITES, WARM, Suite, searched

OBJECTIVES = {
    "grpo": ("objective.name=grpo", "objective.kl=0.0"),
    "dapo": ("objective.name=dapo",),
    "rloo": ("objective.name=rloo", "objective.kl=0.0"),
    "ppo": ("objective.name=ppo", "objective.kl=0.0", "critic.lam=1"),  # a turn's worth shows a hundred tokens later
}
SHARE = {"dapo": 1 / 3}
"""Of the rounds: DAPO plays about three times as many episodes in each, for the groups that it replaces."""
COMMON = ("rollouts.reward=success", "optimizer.learning_rate=2e-4", "checkpoints.every=10", "watch.stop=[mask]")
TWICE = "warm start → GRPO, twice the rounds"
ROWS = {
    "warm start": "warm",
    "warm start → GRPO": "warm-grpo",
    TWICE: "warm-grpo-twice",
    "offline loop": "offline",
    **{f"offline loop → {name.upper()}": f"offline-{name}" for name in OBJECTIVES},
}
"""Names of the table's rows, and their models."""


def stages(suite: Suite, seed: int, folder: Path, options: argparse.Namespace) -> Iterator[Stage]:
    """Yield the commands of one seed."""
    made = (options.offline / f"seed-{seed}").resolve()
    own = (*suite.environment, f"seed={seed}")
    warm = str((made / WARM / "model").resolve()) if suite.warm else None
    models: dict[str, tuple[str | None, tuple[str, ...]]] = {"warm": (warm, ())}
    models["offline"] = (str(made / "iterate" / "model"), ())
    pool = (f"tasks.n={suite.pool}", suite.offset(seed))
    size = (f"rollouts.tasks={options.tasks}", f"rollouts.size={options.size}")
    ways = [("warm-grpo", "warm", "grpo", 1.0), ("warm-grpo-twice", "warm", "grpo", 2.0)]
    ways += [(f"offline-{name}", "offline", name, SHARE.get(name, 1.0)) for name in OBJECTIVES]
    for name, begin, objective, share in ways:
        start = models[begin][0]
        model = (f"model.path={start}",) if start else ()
        rounds = f"rounds={max(1, round(options.rounds * share))}"
        how = (rounds, *size, *COMMON, *suite.refine, *OBJECTIVES[objective])
        yield Stage(name, "refine_grpo", (*own, *pool, *how, *model))
        models[name] = (str(folder / name / "model"), (name,))
    tasks = ("tasks.split=test", f"tasks.n={options.held_out or suite.held_out}", f"attempts={options.attempts}")
    for name, (path, after) in models.items():
        policy = (f"policy.model={path}",) if path else ()
        yield Stage(f"test-{name}", "evaluate", (*own, *tasks, *suite.evaluate, *policy), after)


def played(offline: Path, folder: Path) -> dict[str, Any]:
    """Return the environment steps of each of a seed's trainings, and of the searches before them; and the calls that
    these repeated without the policy, to restore states and to mine pairs.

    Args:
        offline: What `offline_loop.py --work` wrote.
        folder: The seed's, whose name is the same there.
    """
    cost = searched(offline / folder.name)
    steps = {"offline": cost["tool calls"]} if cost else {}
    for model in ROWS.values():
        summary = folder / model / "summary.json"
        if summary.exists():
            steps[model] = json.loads(summary.read_text())["rollouts"]["env_steps"]
    names = {"restored": "calls to restore states", "replayed": "calls in replays"}
    return {"environment steps": steps, **{name: cost[title] for name, title in names.items() if title in cost}}


def table(seeds: Sequence[Seed]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows of the table, and facts about them."""
    rows, sampled = [], {}
    for title, model in ROWS.items():
        row: dict[str, Any] = {"policy": title}
        for mode, column in (("sampled", "sampled at 0.7"), ("greedy", "greedy")):
            values = matrix(seeds, f"test-{model}", mode)
            low, high = share_interval(values)
            row[column], row[f"{column}: 95 %"] = f"{values.mean():.1%}", f"{low:.1%} to {high:.1%}"
            if mode == "sampled":
                row["each seed"] = ", ".join(f"{mean:.1%}" for mean in values.mean(1))
                sampled[title] = values
        steps = [seed.facts["environment steps"].get(model) for seed in seeds]
        row["environment steps"] = ", ".join(f"{each:,}" if each else "–" for each in steps)
        rows.append(row)
    told = {}
    for name, why in (("restored", "restore states"), ("replayed", "mine pairs")):
        calls = [f"{seed.facts[name]:,}" if name in seed.facts else "–" for seed in seeds]
        told[f"offline loop: calls repeated to {why}"] = ", ".join(calls)
    gains = {}
    pairs = [(title, "offline loop" if title.startswith("offline loop →") else "warm start") for title in ROWS]
    for title, begin in [*pairs, ("offline loop → GRPO", TWICE)]:
        if title == begin:
            continue
        gain = 100 * (sampled[title] - sampled[begin])
        low, high = interval(gain)
        gains[f"{title} over {begin}, points"] = f"{gain.mean():.1f} ({low:.1f} to {high:.1f})"
    return rows, {**gains, **told, "seeds": len(seeds), "test tasks": sampled["warm start"].shape[1]}


def main() -> None:
    """Run, print, write."""
    parser = arguments(__doc__, SUITES)
    parser.add_argument("--offline", type=Path, required=True, help="what offline_loop.py --work wrote")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--tasks", type=int, default=16, help="tasks of a round")
    parser.add_argument("--size", type=int, default=8, help="episodes of a task in a round")
    options = parser.parse_args()
    suite, name = SUITES[options.suite], f"online_loop_{options.suite}"
    settings = {"rounds": options.rounds, "episodes a round": f"{options.tasks} × {options.size}"}
    settings |= {"test tasks": options.held_out or suite.held_out, "attempts": options.attempts}
    plan, facts_of = partial(stages, suite, options=options), partial(played, options.offline)
    seeds = carry_out(name, options, plan, settings, facts_of)
    rows, facts = table(seeds)
    command = f"python benchmarks/online_loop.py --suite {options.suite} --offline DIR --work DIR --plan"
    write_result(name, rows, {**facts, **settings, "commands": command}, options.results / f"{name}.json")


if __name__ == "__main__":
    main()
