"""Every environment of the catalog: speed of its calls, cost of its states, and what a search adds to plain attempts.

Run `python benchmarks/environments.py` (minutes; `--only shop babyai` measures some anew). Steps, snapshots and
verdicts are timed in process on episodes of the scripted expert with noise: seconds inside the environment alone,
medians. To restore a state is to copy it where states are copied, else a reset and the calls to the middle of the
episode. The two commands are `build_prefs` with the scripted noisy policy on the same tasks, a quarter of them where
a step takes more than 5 ms: once with a tree of 16 simulations, once with 16 plain attempts. Calls repeated are
those that restored states, as a share of all. What is not installed has a row that says so.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from _common import RESULTS, write_result

from offline_agent import catalog
from offline_agent.envs.base import EnvSpec
from offline_agent.envs.checks.trial import episode_length
from offline_agent.envs.play import ScriptedPlayer
from offline_agent.errors import ConfigError, EnvironmentFault
from offline_agent.evaluation.statistics import wilson
from offline_agent.records import Task

NAMES = sorted(name for some in catalog.listing("env").values() for name in some if not name.endswith(":"))
NOISE = 0.3
VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "babyai": ({"level": "GoToLocal"}, {"level": "PickupLoc"}, {"level": "UnlockLocal"}),
    "browser": ({"suite": "miniwob"}, {"suite": "shop"}),
}
"""Arguments of environments that are measured more than once; any other is measured as it is."""
SIMULATIONS = 16
_SLOW = 0.005  # seconds of a step, above which a quarter of the tasks is searched


@dataclass
class Timed:
    """Seconds of an environment's calls."""

    steps: list[float] = field(default_factory=list)
    resets: list[float] = field(default_factory=list)
    snapshots: list[float] = field(default_factory=list)
    restores: list[float] = field(default_factory=list)
    verdicts: list[float] = field(default_factory=list)


def measured(spec: EnvSpec, tasks: list[Task], player: ScriptedPlayer) -> Timed:
    """Return the seconds of each call on the noisy expert's episodes of the tasks."""
    found = Timed()
    for task in tasks:
        actions = player.script(task)
        middle = len(actions) // 2
        with contextlib.closing(spec.open()) as episode:
            found.resets.append(_seconds(lambda episode=episode, task=task: episode.reset(task)))
            for number, action in enumerate(actions):
                if episode.terminated:
                    break
                if number == middle and not spec.replay_only:
                    found.snapshots.append(_seconds(lambda episode=episode: episode.copy().close()))
                found.steps.append(_seconds(lambda episode=episode, action=action: episode.step(action)))
            found.verdicts.append(_seconds(episode.verdict))
            if spec.replay_only:
                started = time.perf_counter()
                episode.reset(task)
                for action in actions[:middle]:
                    episode.step(action)
                found.restores.append(time.perf_counter() - started)
    found.restores = found.restores or found.snapshots
    return found


def _seconds(job: Callable[[], Any]) -> float:
    started = time.perf_counter()
    job()
    return time.perf_counter() - started


def searched(name: str, args: dict[str, Any], tasks: int, steps: int, algorithm: str) -> dict[str, Any]:
    """Return the summary of a search with the noisy policy.

    Raises:
        SystemExit: The command failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        keys = [f"env={name}", *(f"env.{key}={value}" for key, value in args.items()), f"tasks.n={tasks}"]
        keys += ["policy=noisy", f"policy.noise={NOISE}", f"search.simulations={SIMULATIONS}"]
        keys += [f"search.max_steps={steps}", f"search.algorithm={algorithm}", "pairs.kinds=[trajectory]"]
        keys += ["pairs.rejudge=0", "env.isolate=none", f"run_dir={folder}/run", "tracking.uri=null"]
        command = [sys.executable, "-m", "offline_agent.pipelines.build_prefs", *keys]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads((Path(folder) / "run" / "summary.json").read_text())
        return found


def _calls(summary: dict[str, Any]) -> int:
    """Return the calls of a search, those that restored states included."""
    session = summary["this_session"]
    return int(session["calls_executed"] + session["calls_replayed"])


def row(name: str, args: dict[str, Any], tasks: int) -> dict[str, Any]:
    """Return the row of an environment; one that cannot be opened here says why."""
    title = " ".join([name, *map(str, args.values())])
    try:
        spec = EnvSpec.load(name, args)
        chosen = list(itertools.islice(spec.tasks("train"), tasks))
        steps = episode_length(spec)
        timed = measured(spec, chosen, ScriptedPlayer(spec, steps))
    except (ConfigError, EnvironmentFault) as error:
        return {"environment": title, "left out": str(error).splitlines()[0]}
    if median(timed.steps) > _SLOW:
        tasks = max(1, tasks // 4)
    found: dict[str, Any] = {
        "environment": title,
        "steps/s": round(1 / median(timed.steps)),
        "reset, ms": round(1e3 * median(timed.resets), 3),
        "snapshot, µs": round(1e6 * median(timed.snapshots)) if timed.snapshots else None,
        "restore, µs": round(1e6 * median(timed.restores)),
        "verifier, ms": round(1e3 * median(timed.verdicts), 3),
    }
    if spec.demonstrate is None:
        return found | {"left out": "no search: it has no scripted expert"}
    tree = searched(name, args, tasks, steps, "mcts")
    plain = searched(name, args, tasks, steps, "best_of_n")
    success, repeated = tree["success"], tree["this_session"]["calls_replayed"]
    attempted, calls = _calls(plain), _calls(tree)
    low, high = wilson(success["best_of_search"], tasks)
    return found | {
        "tasks": tasks,
        "calls repeated": f"{repeated / calls:.0%}",
        "one attempt": f"{success['plain_sampled']:.0%}",
        f"{SIMULATIONS} attempts": f"{plain['success']['best_of_search']:.0%}",
        f"search ({SIMULATIONS})": f"{success['best_of_search']:.0%}",
        "search: 95 %": f"{low:.0%} to {high:.0%}",
        "calls, attempts": attempted,
        "calls, search": calls,
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NAMES, help="which; else all")
    parser.add_argument("--tasks", type=int, default=24, help="train tasks of each")
    parser.add_argument("--out", type=Path, default=None, help="another file for the figures")
    options = parser.parse_args()
    file = options.out or RESULTS / "environments.json"
    rows = []
    for name in options.only or NAMES:
        for args in VARIANTS.get(name, ({},)):
            rows.append(row(name, args, options.tasks))
            print(rows[-1], flush=True)
    if options.only and file.exists():  # the other rows stay
        measured_now = {one["environment"] for one in rows}
        rows += [one for one in json.loads(file.read_text())["rows"] if one["environment"] not in measured_now]
        rows.sort(key=lambda one: str(one["environment"]))
    facts = {"noise": NOISE, "command": "python benchmarks/environments.py"}
    write_result("environments", rows, facts, options.out)


if __name__ == "__main__":
    main()
