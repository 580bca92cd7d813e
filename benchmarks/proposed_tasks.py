"""Tasks from failures: does `iterate curriculum.source=failures` learn more than from given tasks, at equal calls?

Run `python benchmarks/proposed_tasks.py --work DIR`. Countdown with three numbers, a model from scratch that learnt
from 2,000 of the solver's plays. Three iterations of plain attempts and fine-tuning on all successes, without
preferences; all loops go on from one warm start. In the end the warm start is fine-tuned anew on all that a loop found,
for three times the epochs, and tested. All commands run in this process, one after another: on a shared core starting
them would take longer than they do. The gate lets every candidate pass.

With `--proposer` the warm start has learnt to propose tasks, too, from 1,000 demonstrations of `env=propose:countdown`
beside the 2,000 plays. There are two iterations of 48 tasks; half of them are what the policy proposes
(`curriculum.source=proposer`), while the control takes new tasks of the split alone. Calls of `propose` and of the
checks are paid for with attempts. The last fine-tuning is on what the searches found, not on proposals. Predictions,
written before each run: benchmarks/notes/arms.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from _common import write_result
from _experiment import Seed, interval, matrix, share_interval
from _recipes import SUITES

from offline_agent.envs.countdown import Countdown
from offline_agent.launch import stages
from offline_agent.launch.stages import portable
from offline_agent.pipelines import build_prefs, evaluate, iterate, rejudge, train_sft
from offline_agent.pipelines.entry import main as run_command
from offline_agent.store.files import write_atomic

SUITE = SUITES["countdown-easy"]
COMMANDS = {one.COMMAND.name: one.COMMAND for one in (build_prefs, evaluate, iterate, rejudge, train_sft)}
STAGES = ("propose", "build_prefs")  # those of an iteration that call tools
TASKS, HELD_OUT, GATE = 64, 400, 100  # train tasks of an iteration; validation tasks; those that the gate draws from
FEWER, SHORT = 48, 300  # with --proposer: tasks of each of two iterations; validation tasks
LOOP = (
    *SUITE.environment, "policy.temperature=1.0", "iterations=3", f"tasks.n={TASKS}", "search.algorithm=best_of_n",
    "search.until=spent", "search.value=success", "pairs.kinds=[step]", "pairs.rejudge=0",
    "filtered.origins=[search,rollout]", "dpo.enabled=false", "sft.begin=start", "sft.optimizer.epochs=4",
    "sft.optimizer.learning_rate=1e-3", "sft.batch.rows=16", "sft.per_task=3", "held_out.n=10", "held_out.attempts=1",
    f"held_out.pool={GATE}", "gate.margin=0.9", "audit=off", "report=false", "threads=1",
)  # fmt: skip
LONGER = (
    "optimizer.epochs=12", "optimizer.learning_rate=1e-3", "batch.rows=16", "data.per_task=3", "threads=1",
    "report=false",
)  # fmt: skip
ARMS: dict[str, tuple[str, ...]] = {
    "64 tasks, again each time": ("few", "curriculum.enabled=false", "search.simulations=9"),
    "64 tasks, then half from failures": ("few", "curriculum.source=failures", "search.simulations=8"),
    "new tasks of the split": ("many", "curriculum.enabled=false", "search.simulations=9"),
    "new tasks, then a quarter from failures": ("many", "curriculum.source=failures", "search.simulations=8"),
}
"""Keys of each arm, after the tasks that it has. Without checks to pay for, a task gets an attempt more."""
SMALL = ("iterations=2", f"tasks.n={FEWER}", "policy.max_tokens=48")
HALF = ("many", *SMALL, "curriculum.source=proposer", "curriculum.new_share=1")
PROPOSER: dict[str, tuple[str, ...]] = {
    "new tasks of the split": ("many", *SMALL, "curriculum.enabled=false", "search.simulations=8"),
    "half of them proposed by the policy": (*HALF, "search.simulations=6"),
    "half of them proposed, seven attempts": (*HALF, "search.simulations=7"),
}
AGAINST = dict(zip(list(ARMS)[1::2], list(ARMS)[::2], strict=True))
AGAINST |= dict.fromkeys(list(PROPOSER)[1:], list(PROPOSER)[0])


def main() -> None:
    """Run what is not there, and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="where the run directories are")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS))
    parser.add_argument("--proposer", action="store_true", help="the policy proposes; a warm start that can")
    options = parser.parse_args()
    stages._run = in_process
    warm, arms = options.work.resolve() / "warm", PROPOSER if options.proposer else ARMS
    options.arms = options.arms or list(arms)[: None if options.proposer else 2]
    done("train_sft", warm, SUITE.warm if not options.proposer else both_demonstrated(warm))
    seeds = [Seed(seed, {}) for seed in options.seeds]
    for seed, (number, arm) in itertools.product(seeds, enumerate(options.arms)):
        folder = options.work.resolve() / f"seed-{seed.seed}"
        source, *keys = arms[arm]
        first = SUITE.first + seed.seed * 3 * TASKS
        train = (f"tasks.offset={first}",) if source == "many" else (f"tasks.file={few(folder, first)}",)
        loop = folder / f"arm-{list(arms).index(arm)}"
        done("iterate", loop, (*LOOP, *keys, *train, f"seed={seed.seed}", f"policy.model={warm / 'model'}"))
        seed.facts[arm] = cost(loop)
        longer = loop.with_name(f"{loop.name}-longer")
        runs = ",".join(map(str, sorted(loop.glob("iteration-*/build_prefs"))))
        done("train_sft", longer, (f"data.runs=[{runs}]", f"model.path={warm / 'model'}", *LONGER, f"seed={seed.seed}"))
        models = [(arm, longer / "model"), *([("warm start", warm / "model")] if number == 0 else [])]
        for name, model in models:
            tested = model.parent.with_name(f"{model.parent.name}-seed-{seed.seed}-tested")
            done("evaluate", tested, (
                *SUITE.environment, *SUITE.evaluate, f"policy.model={model}", "tasks.split=validation", "greedy=false",
                f"tasks.offset={GATE}", f"tasks.n={SHORT if options.proposer else HELD_OUT}", "attempts=1",
                f"seed={seed.seed}", "against.run=null", "report=false",
                *(("policy.max_tokens=48",) if options.proposer else ()),
            ))  # fmt: skip
            seed.add(name, tested)
        whole = seeds[: seeds.index(seed) + 1] if arm == options.arms[-1] else seeds[: seeds.index(seed)]
        report(whole, "proposed_by_policy" if options.proposer else "proposed_tasks")


def both_demonstrated(warm: Path) -> tuple[str, ...]:
    """Return keys of the warm start on demonstrations of solving and of proposing, which are made first."""
    files, learner = [], [key for key in SUITE.warm if key.startswith("scratch.")]
    for name, env, n in (("solve", "env=countdown", 2000), ("propose", "env=propose:countdown", 1000)):
        made = warm.with_name(f"demo-{name}")
        done("train_sft", made, (env, *SUITE.environment[1:], *learner, f"tasks.n={n}", "optimizer.max_updates=1"))
        files += [str(file) for file in sorted((made / "demonstrations").glob("*.parquet"))]
    kept = (key for key in SUITE.warm if key.startswith(("scratch.", "batch.", "optimizer.")))
    return (f"data.files=[{','.join(files)}]", *kept, "threads=1", "report=false")


def in_process(stage: Any, say: Any, again: str) -> None:
    """Run a stage of the loop in this process."""
    write_atomic(stage.file, portable(stage.config)[0].encode())
    if run_command(COMMANDS[stage.pipeline], ["--config", str(stage.file)]):
        raise SystemExit(f"{stage.label} failed")


def done(pipeline: str, run_dir: Path, keys: tuple[str, ...]) -> None:
    """Run a command unless it was run."""
    manifest = run_dir / "manifest.json"
    if manifest.exists() and json.loads(manifest.read_text()).get("status") == "done":
        return
    if run_command(COMMANDS[pipeline], [*keys, f"run_dir={run_dir}", "tracking.uri=null"]):
        sys.exit(f"{pipeline} failed: {run_dir}")


def few(folder: Path, first: int) -> Path:
    """Return a file of the 64 tasks that an arm has."""
    file = folder / "few.jsonl"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        some = itertools.islice(Countdown.tasks("train", n=3), first, first + TASKS)
        file.write_text("".join(json.dumps({"task_id": f"few-{n}", **task}) + "\n" for n, task in enumerate(some)))
    return file


def cost(loop: Path) -> dict[str, Any]:
    """Return calls of a loop's searches and checks, resets of the checks, and what became of the proposals."""
    records = json.loads((loop / "summary.json").read_text())["iterations"]
    calls = 0
    runs = [loop / f"iteration-{n}" / name / "summary.json" for n in range(len(records)) for name in STAGES]
    for told in (json.loads(file.read_text()) for file in runs if file.is_file()):
        calls += told["tool_calls"] + told["this_session"]["calls_replayed"] + told["replayed_calls"]
    proposed = [record["proposed"] for record in records if "proposed" in record]
    return {
        "calls": calls + sum(one["calls"] for one in proposed),
        "check calls": sum(one["calls"] for one in proposed), "check resets": sum(one["resets"] for one in proposed),
        "accepted": sum(sum(one["proofs"].values()) for one in proposed),
        "refused": sum(sum(one["refused"].values()) for one in proposed),
        "learnt": sum(one.get("rewards", {}).get("learnt", 0) for one in proposed),
        "successes": sum(record["filtered"] for record in records), "last": proposed[-1] if proposed else None,
    }  # fmt: skip


def report(seeds: list[Seed], result: str) -> None:
    """Write the table of the seeds that have all arms, as a result of that name."""
    if not seeds:
        return
    rows = []
    for arm in seeds[0].runs:
        values = matrix(seeds, arm, "sampled")
        low, high = share_interval(values)
        row = {"loop": arm, "success": f"{values.mean():.1%}", "95 %": f"{low:.1%} to {high:.1%}"}
        row["each seed"] = ", ".join(f"{each:.1%}" for each in values.mean(1))
        if arm in seeds[0].facts:
            row |= {name: _mean(seeds, arm, name) for name in ("calls", "check calls", "check resets", "accepted",
                                                               "refused", "learnt", "successes")}  # fmt: skip
            last = [seed.facts[arm]["last"] for seed in seeds if seed.facts[arm]["last"] is not None]
            for group in ("searched", "others") if last else ():
                told = [one[group] for one in last]
                name = {"searched": "p(1-p) of proposed ones", "others": "of others"}[group]
                row[name] = round(float(np.mean([one["learnability"] for one in told if one["tasks"]])), 3)
        other = AGAINST.get(arm)
        if other in seeds[0].runs:
            gaps = 100 * (values - matrix(seeds, other, "sampled"))
            low, high = interval(gaps)
            row |= {"points above the control": f"{gaps.mean():+.1f} ({low:+.1f} to {high:+.1f})"}
        rows.append(row)
    refused: dict[str, int] = {}
    for seed in seeds:
        for told in seed.facts.values():
            for reason, count in (told["last"] or {"refused": {}})["refused"].items():
                refused[reason] = refused.get(reason, 0) + count
    numbers = (2, FEWER, SHORT) if result == "proposed_by_policy" else (3, TASKS, HELD_OUT)
    sizes = zip(("iterations", "train tasks an iteration", "held-out validation tasks"), numbers, strict=True)
    facts: Mapping[str, Any] = {
        **dict(sizes), "attempts": 1, "seeds": len(seeds), "refused before the last iteration": refused,
        "command": f"python benchmarks/proposed_tasks.py --work DIR{' --proposer' * (result == 'proposed_by_policy')}",
    }  # fmt: skip
    write_result(result, rows, facts)


def _mean(seeds: list[Seed], arm: str, name: str) -> int:
    return round(float(np.mean([seed.facts[arm][name] for seed in seeds])))


if __name__ == "__main__":
    main()
