"""On-policy distillation (`objective.teacher`) from a sibling and from a stronger model, against GRPO and fine-tuning.

Run `python benchmarks/distillation.py --work DIR` (an hour, a quarter of a core). Countdown with three numbers, models
of 0.4 million weights from scratch. One warm start learns 1,000 tasks of the solver's, in half of the rows with a
passage in the prompt that tells a success's calls, as `objective.teacher=sibling` writes it: so small a model cannot
read what it was never shown. The teacher is the warm start after 3,000 further tasks of the solver's. Each seed trains
every arm from the warm start: GRPO, the same with half of the advantage of failed attempts from the policy's own
hindsight, the teacher's log-probabilities alone, and, as control, fine-tuning on the successes of as many plays of the
teacher as the roll-outs were. All play the same held-out tasks, sampled. Accepted: turns that are calls which the
environment carried out.

Written before the first run. GRPO gains 1 to 4 points over the warm start. The sibling adds nothing to it (−2 to 2
points, the interval holds 0). The teacher alone closes half or more of the distance between warm start and teacher.
Fine-tuning on the teacher's successes is level with that (−3 to 3 points) at equal calls. No arm loses accepted calls
(at most 1 point below the warm start): both teachers write calls as the policy does.

A first try with 15 rounds at a rate of 2e-4 and episodes of up to 8 steps was stopped after two arms of seed 0, for
want of time; the settings below are what then fitted, and were tried once.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from _common import RESULTS, write_result
from _experiment import interval, share_interval

from offline_agent.pipelines.entry import main as command
from offline_agent.policies.base import DEFAULT_MODEL
from offline_agent.records import ToolCall
from offline_agent.rendering.renderer import Renderer
from offline_agent.training.online.distillation import PASSAGE

ENVIRONMENT = ("env=countdown", "env.n=3")
LEARNER = ("scratch.layers=3", "scratch.hidden_size=96", "scratch.vocabulary=300", "scratch.reading=0")
ONLINE = (
    "rollouts.reward=success", "objective.kl=0", "optimizer.learning_rate=5e-4", "rollouts.tasks=8", "rollouts.size=8",
    "rollouts.max_steps=4", "watch.stop=[mask]", "tasks.offset=4000", "tasks.n=1000",
)  # fmt: skip
ARMS = {
    "GRPO": (),
    "GRPO and a sibling's calls": ("objective.teacher=sibling", "objective.distil=0.5"),
    "the teacher alone": ("objective.teacher={teacher}",),
}
CONTROL, START, TEACHER = "fine-tuning on the teacher's successes", "warm start", "the teacher itself"


def run(folder: Path, pipeline: str, *keys: str) -> Path:
    """Run a command in this process, unless it is done; return its run directory."""
    manifest = folder / "manifest.json"
    if not manifest.exists() or json.loads(manifest.read_text()).get("status") != "done":
        given = [*keys, f"run_dir={folder}", "tracking.uri=null"]
        if command(importlib.import_module(f"offline_agent.pipelines.{pipeline}").COMMAND, given):
            sys.exit(f"{pipeline} failed: {folder}")
    return folder


def told(expert: Path, file: Path) -> Path:
    """Write the expert's rows as they are, and again with a passage that tells the calls of a success at the task."""
    renderer, rows = Renderer.load(DEFAULT_MODEL), pq.read_table(expert / "filtered").to_pylist()
    last = {row["task_id"]: row for row in rows}  # another success than the row's own, where there are two
    with file.open("w") as out:
        for row in rows:
            messages = [json.loads(message) for message in row["messages"]]
            calls = [
                call["function"] for message in map(json.loads, last[row["task_id"]]["messages"])
                for call in message.get("tool_calls") or ()
            ]  # fmt: skip
            lines = [PASSAGE, *(renderer.write("", ToolCall(one["name"], one["arguments"])) for one in calls)]
            shown = [dict(message) for message in messages]
            shown[1]["content"] += "\n\n" + "\n".join(lines)
            for version in (messages, shown):
                made = {"messages": version, "tools": json.loads(row["tools"]), "success": True}
                out.write(json.dumps(made | {"task_id": row["task_id"]}) + "\n")
    return file


def played(folder: Path, model: Path, seed: int, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return by column and held-out task what a model does: `success` and `accepted`, means over the attempts."""
    run(
        folder, "evaluate", *ENVIRONMENT, f"seed={seed}", f"policy.model={model}", "tasks.split=validation",
        f"tasks.n={options.held_out}", f"attempts={options.attempts}", "policy.temperature=1", "greedy=false",
        "max_steps=4", "against.run=null",
    )  # fmt: skip
    found: dict[str, dict[str, list[float]]] = {"success": {}, "accepted": {}}
    for row in pq.read_table(folder / "attempts").to_pylist():
        done = row["calls"] - row["invalid_calls"] - row["refused_calls"]
        for column, value in (("success", row["success"]), ("accepted", done / max(row["steps"], 1))):
            found[column].setdefault(row["task_id"], []).append(float(value))
    return {column: {task: float(np.mean(x)) for task, x in tasks.items()} for column, tasks in found.items()}


def one_seed(seed: int, warm: Path, teacher: Path, work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return what each arm of a seed does on held-out tasks, and the environment's calls in training."""
    out: dict[str, Any] = {"calls": {}}
    for number, (name, keys) in enumerate(ARMS.items()):
        trained = run(
            work / f"{seed}-{number}", "refine_grpo", *ENVIRONMENT, f"seed={seed}", f"model.path={warm}", *ONLINE,
            f"rounds={options.rounds}", *(key.format(teacher=teacher) for key in keys),
        )  # fmt: skip
        summary = json.loads((trained / "summary.json").read_text())
        out["calls"][name] = summary["rollouts"]["env_steps"]
        out[name] = played(work / f"{seed}-{number}-test", trained / "model", seed, options)
    plays = run(
        work / f"{seed}-plays", "build_prefs", *ENVIRONMENT, f"seed={seed}", f"policy.model={teacher}",
        "policy.temperature=1", f"tasks.n={options.rounds * 8}", "tasks.offset=4000", "search.algorithm=best_of_n",
        "search.simulations=8", "search.max_steps=4", "filtered.per_task=8", "filtered.origins=[search,rollout]",
        "pairs.kinds=[trajectory]", "pairs.rejudge=0",
    )  # fmt: skip
    summary = json.loads((plays / "summary.json").read_text())
    out["calls"][CONTROL] = summary["tool_calls"]
    out["successes"] = summary["filtered"]
    tuned = run(
        work / f"{seed}-tuned", "train_sft", f"seed={seed}", f"model.path={warm}", f"data.runs=[{plays}]",
        "batch.rows=16", "optimizer.learning_rate=1e-3", "optimizer.epochs=4",
    )  # fmt: skip
    out[CONTROL] = played(work / f"{seed}-tuned-test", tuned / "model", seed, options)
    out[START] = played(work / "warm-test", warm, 0, options)  # the same models for every seed, played once
    out[TEACHER] = played(work / "teacher-test", teacher, 0, options)
    return out


def table(seeds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each arm, its differences paired over seeds and tasks."""
    tasks = sorted(seeds[0][START]["success"])

    def of(name: str, column: str) -> Any:
        return np.array([[seed[name][column][task] for task in tasks] for seed in seeds])

    def points(gain: Any) -> str:
        low, high = interval(gain)
        return f"{100 * gain.mean():+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"

    rows = []
    for name in (START, *ARMS, CONTROL, TEACHER):
        won, low_high = of(name, "success"), share_interval(of(name, "success"))
        rows.append({
            "": name, "calls": round(float(np.mean([seed["calls"].get(name, 0) for seed in seeds]))) or None,
            "success": f"{won.mean():.1%}", "95 %": f"{low_high[0]:.1%} to {low_high[1]:.1%}",
            "each seed": ", ".join(f"{mean:.1%}" for mean in won.mean(1)),
            "over the warm start, points": None if name == START else points(won - of(START, "success")),
            "over GRPO": None if name in (START, "GRPO") else points(won - of("GRPO", "success")),
            "accepted calls": f"{of(name, 'accepted').mean():.1%}",
            "accepted, over the warm start": None if name == START
            else points(of(name, "accepted") - of(START, "accepted")),
        })  # fmt: skip
    return rows


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="where the run directories are")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--held-out", type=int, default=300, help="validation tasks")
    parser.add_argument("--attempts", type=int, default=1, help="sampled attempts of each")
    options = parser.parse_args()
    work = options.work.resolve()
    expert = run(
        work / "expert", "build_prefs", *ENVIRONMENT, "policy=noisy", "policy.noise=0.0", "tasks.n=1000",
        "search.algorithm=best_of_n", "search.simulations=2", "filtered.per_task=2", "pairs.rejudge=0",
        "filtered.origins=[search,rollout]", "pairs.kinds=[trajectory]",
    )  # fmt: skip
    rows = told(expert, work / "rows.jsonl")
    warm = run(
        work / "warm", "train_sft", f"data.files=[{rows}]", *LEARNER, "batch.rows=16", "optimizer.learning_rate=2e-3",
        "optimizer.epochs=3",
    ) / "model"  # fmt: skip
    teacher = run(
        work / "teacher", "train_sft", *ENVIRONMENT, f"model.path={warm}", "tasks.n=3000", "tasks.offset=1000",
        "batch.rows=16", "optimizer.learning_rate=1e-3", "optimizer.epochs=3",
    ) / "model"  # fmt: skip
    for name, model in (("warm", warm), ("teacher", teacher)):
        print(name, {column: np.mean(list(by_task.values())) for column, by_task in
                     played(work / f"{name}-test", model, 0, options).items()}, flush=True)  # fmt: skip
    seeds = []
    for seed in options.seeds:
        seeds.append(one_seed(seed, warm, teacher, work, options))
        print(f"seed {seed}", [f"{name}: {np.mean(list(seeds[-1][name]['success'].values())):.1%}" for name in ARMS])
    facts = {
        "seeds": len(seeds), "held-out tasks": options.held_out, "attempts": options.attempts, "rounds": options.rounds,
        "the teacher's successes": [seed["successes"] for seed in seeds],
    }  # fmt: skip
    write_result("distillation", table(seeds), facts, RESULTS / "distillation.json")


if __name__ == "__main__":
    main()
