"""A lesson between two attempts, against two attempts without one: `env=retry:countdown`, a model from scratch.

Run `python benchmarks/retries.py --work DIR` (an hour, one processor). The model learns from a scripted expert that
errs in half of its calls, and names the failed calls in its lesson; failed attempts are not learnt. On held-out tasks
it plays episodes of two attempts. Two attempts of one policy without a lesson between them are its first attempts,
taken in pairs: pass@2. Intervals draw seeds and tasks anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from _common import write_result
from _experiment import Seed, Stage, arguments, carry_out, interval, share_interval

from offline_agent.evaluation.report import pass_at_k

ENVIRONMENT = ("env=retry:countdown", "env.n=3")
LEARNER = ("scratch.layers=4", "scratch.hidden_size=128", "scratch.vocabulary=300", "scratch.reading=0")


def stages(seed: int, folder: Path, options: Any) -> Iterator[Stage]:
    """Yield the commands of one seed."""
    own = (*ENVIRONMENT, f"seed={seed}")
    yield Stage("expert", "build_prefs", (
        *own, "policy=noisy", "policy.noise=0.5", f"tasks.n={options.tasks}", "search.algorithm=best_of_n",
        "search.simulations=8", "filtered.per_task=4", "filtered.origins=[search,rollout]", "pairs.kinds=[trajectory]",
    ))  # fmt: skip
    yield Stage("model", "train_sft", (
        f"seed={seed}", f"data.runs=[{folder / 'expert'}]", *LEARNER, "batch.rows=16", "optimizer.learning_rate=1e-3",
        "optimizer.epochs=4",
    ), ("expert",))  # fmt: skip
    yield Stage("played", "evaluate", (
        *own, f"policy.model={folder / 'model' / 'model'}", "tasks.split=validation", "tasks.n=400", "attempts=4",
        "policy.temperature=1.0", "greedy=false", "against.run=null",
    ), ("model",))  # fmt: skip


def first_attempts(folder: Path) -> dict[str, Any]:
    """Return for each held-out task pass@2 of the episodes' first attempts, and the lessons and calls of an episode."""
    rows = pq.read_table(folder / "played" / "attempts").to_pylist()
    rows = [row for row in rows if row["policy"] == "candidate" and row["success"] is not None]
    once: dict[str, list[bool]] = {}
    for row in rows:
        attempt = json.loads(row["verdict"])["evidence"].get("attempt", 1)
        once.setdefault(row["task_id"], []).append(row["success"] and attempt == 1)
    pairs = {task: pass_at_k(len(won), sum(won), 2) for task, won in once.items() if len(won) > 1}
    ones = {task: sum(won) / len(won) for task, won in once.items()}
    return {"first": ones, "pairs": pairs, "calls": sum(row["tool_calls"] for row in rows) / len(rows)}


def main() -> None:
    """Run, print, write."""
    parser = arguments(__doc__, ["countdown"])
    parser.add_argument("--tasks", type=int, default=2000, help="train tasks of the expert")
    options = parser.parse_args()
    settings = {"train tasks": options.tasks, "held-out tasks": 400, "attempts": 4}
    seeds = carry_out("retries", options, lambda seed, folder: stages(seed, folder, options), settings, first_attempts)
    tasks = sorted(set.intersection(*(set(seed.facts["pairs"]) & set(seed.tasks) for seed in seeds)))

    def of(seed: Seed, name: str) -> list[float]:
        return [seed.facts[name][task] for task in tasks]

    both = np.array([
        [seed.runs["played"]["sampled"]["success"][seed.tasks.index(task)] for task in tasks] for seed in seeds
    ])  # fmt: skip
    rows = []
    for title, values in (
        ("one attempt", np.array([of(seed, "first") for seed in seeds])),
        ("two attempts, no lesson", np.array([of(seed, "pairs") for seed in seeds])),
        ("two attempts, a lesson between them", both),
    ):
        low, high = share_interval(values)
        gain = both - values
        rows.append({
            "": title, "success": f"{values.mean():.1%}", "95 %": f"{low:.1%} to {high:.1%}",
            "each seed": ", ".join(f"{mean:.1%}" for mean in values.mean(1)),
            "success with the lesson less this row's, points": None if values is both else
            f"{100 * gain.mean():+.1f} ({100 * interval(gain)[0]:+.1f} to {100 * interval(gain)[1]:+.1f})",
        })  # fmt: skip
    facts = {**settings, "seeds": len(seeds), "calls an episode": float(np.mean([s.facts["calls"] for s in seeds]))}
    write_result("retries", rows, facts, options.results / "retries.json")


if __name__ == "__main__":
    main()
