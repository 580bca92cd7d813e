"""Skills made of an expert's successes: decisions saved on other tasks, and what a random search finds with them.

Run `python benchmarks/skills.py DIR` (ten minutes, one processor).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from _common import write_result
from _experiment import interval

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.play import ScriptedPlayer, begin
from offline_agent.policies.base import ProposeRequest
from offline_agent.policies.scripted import RandomPolicy
from offline_agent.records import Task
from offline_agent.seeding import derive_seed
from offline_agent_environments.adapters import skill_maker
from offline_agent_environments.adapters.skills import calls_of, environment, library, opened

SEEDS, CALLS, HELD_OUT, FIRST = 3, 300, 120, 2000
FAMILIES = {"babyai": ({"level": "PickupLoc,UnlockLocal"}, 40), "shop": ({}, 15)}
"""Arguments of the environment, and the most calls of an attempt."""


def decisions(spec: EnvSpec, inner: EnvSpec, skills: Any, tasks: Sequence[Task], longest: int) -> Any:
    """Return the mean calls of the expert's successes, and the mean decisions with the skills that are offered."""
    counts = []
    for task in tasks:
        played = ScriptedPlayer(spec, longest).expert(task)
        success = skill_maker.repeated(inner, task, played.context.actions())
        if success is not None:
            steps = {one["function"]["name"]: list(calls_of(skills, one["function"]["name"]))
                     for one in played.context.tools if one["function"]["name"] in skills}  # fmt: skip
            items = success.items
            for name in sorted(steps, key=lambda name: -len(steps[name])):
                items = skill_maker.encoded(items, name, steps[name], success.since)
            counts.append((len(success.items), len(items)))
    return np.mean(counts, 0)


def solved(spec: EnvSpec, task: Task, seed: int, longest: int) -> int:
    """Return how many of the random policy's attempts solve a task, until `CALLS` calls are made."""
    policy, spent, won = RandomPolicy(), 0, 0
    while spent < CALLS:
        most, calls = min(longest, CALLS - spent), 0
        with closing(spec.open()) as episode:
            context = begin(episode, task)
            while not episode.terminated and calls < most:
                own = derive_seed(seed, task.task_id, spent, context.depth)
                action = policy.propose([ProposeRequest(context, (own,), 1.0)])[0].actions[0]
                result = episode.step(action)
                context = context.child(action, result.observation, result.role)
                calls = max(context.depth, episode.own_verdict().evidence["calls"])
            won += bool(episode.verdict().success) and calls <= most
        spent += calls
    return won


def measured(name: str, args: dict[str, str], longest: int, run: Path) -> dict[str, Any]:
    """Return the row of one family."""
    keys = [f"env={name}", *(f"env.{key}={value}" for key, value in args.items()), "policy=noisy", "policy.noise=0.2",
            "tasks.n=80", "search.algorithm=best_of_n", "search.simulations=3", f"search.max_steps={longest}",
            "pairs.kinds=[trajectory]", "tracking.uri=null", f"run_dir={run}"]  # fmt: skip
    subprocess.run([sys.executable, "-m", "offline_agent.pipelines.build_prefs", *keys], check=True)
    inner = opened(name, args)
    found = [one for one in skill_maker.successes(run, inner, {}) if one is not None]
    records, dropped = skill_maker.make(found, inner)
    skills = library(records, inner)
    tasks = list(islice(inner.tasks("train"), FIRST, FIRST + HELD_OUT))
    plain, more = (EnvSpec(environment(inner, one), sandboxed=True) for one in ({}, skills))
    before, after = decisions(more, inner, skills, tasks, longest)
    arms = [np.array([[solved(spec, task, seed, longest) for task in tasks] for seed in range(SEEDS)])
            for spec in (plain, more)]  # fmt: skip
    gain = 100.0 * ((arms[1] > 0) * 1 - (arms[0] > 0))
    low, high = interval(gain)
    return {
        "": name, "successes": len(found), "skills": len(records), "made of others": sum(
            any(step["tool"] in skills for step in one["steps"]) for one in records),
        "dropped": sum(dropped.values()), "decisions of a success": f"{before:.2f} → {after:.2f}",
        "tasks solved without": f"{(arms[0] > 0).mean():.1%}", "with": f"{(arms[1] > 0).mean():.1%}",
        "gain, points": f"{gain.mean():+.1f} ({low:+.1f} to {high:+.1f})",
        "successes found": f"{arms[0].sum()} and {arms[1].sum()}",
    }  # fmt: skip


if __name__ == "__main__":
    rows = [measured(name, *one, Path(sys.argv[1]) / name) for name, one in FAMILIES.items()]
    write_result("skills", rows, {"train tasks": 80, "other tasks": HELD_OUT, "seeds": SEEDS,
                                  "calls of a task and arm": CALLS})  # fmt: skip
