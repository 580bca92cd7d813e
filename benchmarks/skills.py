"""Skills made of an expert's successes: decisions saved on other tasks, and what a random search finds with them.

Run `python benchmarks/skills.py --work DIR` (ten minutes, one processor).
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
from collections import Counter
from contextlib import closing
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
from offline_agent_environments.adapters.skills import Skill, calls_of, environment, library, opened

SEEDS, CALLS, HELD_OUT, FIRST = 3, 400, 60, 1000
FAMILIES = {"babyai": ({"level": "PickupLoc,UnlockLocal"}, 40), "shop": ({}, 15)}
"""Arguments of the environment, and the most calls of an attempt."""


def decisions(spec: EnvSpec, skills: dict[str, Skill], tasks: list[Task], longest: int) -> tuple[float, float]:
    """Return the mean calls of the expert's successes, and the mean decisions with the skills that are offered."""
    player, before, after = ScriptedPlayer(spec, longest), [], []
    for task in tasks:
        played = player.expert(task)
        if played.verdict is None or not played.verdict.success:
            continue
        made = [step.action.call for step in played.steps if step.action.call is not None]
        items = [skill_maker.Item(one.name, {name: skill_maker._text(value) for name, value in one.arguments.items()},
                                  turn) for turn, one in enumerate(made)]  # fmt: skip
        offered = {schema["function"]["name"] for schema in played.context.tools} & skills.keys()
        flat = {name: list(calls_of(skills, name, {one: {"$": one} for one in skills[name].parameters}))
                for name in offered}  # fmt: skip
        before.append(len(items))
        for name in sorted(offered, key=lambda name: (-len(flat[name]), name)):
            items = skill_maker.encoded(items, name, Skill({}, flat[name], {}), {})
        after.append(len(items))
    return float(np.mean(before)), float(np.mean(after))


def solved(spec: EnvSpec, task: Task, seed: int, longest: int) -> tuple[bool, int]:
    """Return whether the random policy solves a task within `CALLS` calls, and how many attempts do."""
    policy, spent, won, attempt = RandomPolicy(), 0, 0, 0
    while spent < CALLS:
        most, calls, attempt = min(longest, CALLS - spent), 0, attempt + 1
        with closing(spec.open()) as episode:
            context = begin(episode, task)
            while not episode.terminated and calls < most:
                own = derive_seed(seed, task.task_id, attempt, context.depth)
                action = policy.propose([ProposeRequest(context, (own,), 1.0)])[0].actions[0]
                result = episode.step(action)
                context = context.child(action, result.observation, result.role)
                calls = max(context.depth, episode.own_verdict().evidence["calls"])
            won += bool(episode.verdict().success) and calls <= most
        spent += calls
    return won > 0, won


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    rows: list[dict[str, Any]] = []
    work = parser.parse_args().work
    for name, (args, longest) in FAMILIES.items():
        keys = [f"env={name}", *(f"env.{key}={value}" for key, value in args.items()), "policy=noisy",
                "policy.noise=0.2", "tasks.n=80", "search.algorithm=best_of_n", "search.simulations=3",
                f"search.max_steps={longest}", "pairs.kinds=[trajectory]", "tracking.uri=null"]  # fmt: skip
        command = [sys.executable, "-m", "offline_agent.pipelines.build_prefs", *keys, f"run_dir={work / name}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        inner, left_out = opened(name, args), Counter[str]()
        found = list(skill_maker.successes(work / name, inner, left_out))
        records, dropped = skill_maker.make(found, inner)
        skills = library(records, inner)
        tasks = list(itertools.islice(inner.tasks("train"), FIRST, FIRST + HELD_OUT))
        plain, more = (EnvSpec(environment(inner, one), sandboxed=True) for one in ({}, skills))
        before, after = decisions(more, skills, tasks, longest)
        arms = {title: np.array([[solved(spec, task, seed, longest) for task in tasks] for seed in range(SEEDS)])
                for title, spec in (("without", plain), ("with", more))}  # fmt: skip
        gain = (arms["with"] - arms["without"])[:, :, 0]
        low, high = interval(gain)
        rows.append({
            "": name, "successes": len(found), "skills": len(records),
            "of other skills": sum(any(step["tool"] in skills for step in one["steps"]) for one in records),
            "dropped": sum(dropped.values()), "decisions of a success": f"{before:.2f} → {after:.2f}",
            **{f"solved {title}": f"{arm[:, :, 0].mean():.1%}" for title, arm in arms.items()},
            "gain, points": f"{100 * gain.mean():+.1f} ({100 * low:+.1f} to {100 * high:+.1f})",
            "successes found": " and ".join(str(int(arm[:, :, 1].sum())) for arm in arms.values()),
        })  # fmt: skip
    facts = {"train tasks": 80, "other tasks": HELD_OUT, "seeds": SEEDS, "calls of a task and arm": CALLS}
    write_result("skills", rows, facts)


if __name__ == "__main__":
    main()
