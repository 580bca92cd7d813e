"""Cost of environments in processes of their own: steps, snapshots, restoring and opening, against one process.

Run `python benchmarks/isolation.py`. Three environments: the embedded shop; `Tiny`, whose steps cost nothing, so that
what is left is the way through the process; and `Generator`, which `copy.deepcopy` cannot copy. Medians over calls.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _common import write_result

from offline_agent.envs.base import EnvSpec, Episode
from offline_agent.errors import EnvironmentFault
from offline_agent.policies.base import ProposeRequest
from offline_agent.policies.scripted import NoisyPolicy
from offline_agent.records import Action, Context, Task, ToolCall

CALLS = 200
DEPTH = 10  # actions of a replay


class Tiny:
    """Counts."""

    terminated = False

    @classmethod
    def tasks(cls, split: str) -> list[dict[str, Any]]:
        """Return one task."""
        return [{"task_id": split}]

    def reset(self) -> str:
        """Begin an episode."""
        self.calls = 0
        return "go"

    def count(self) -> str:
        """Count."""
        self.calls += 1
        return str(self.calls)

    def get_reward(self) -> float:
        """Return 0."""
        return 0.0


class Generator(Tiny):
    """Counts with a generator."""

    def reset(self) -> str:
        """Begin an episode."""
        self.numbers = (str(number) for number in itertools.count(1))
        return "go"

    def count(self) -> str:
        """Count."""
        return next(self.numbers)


def median_us(call: Callable[[], object], calls: int = CALLS) -> float:
    """Return the median microseconds of a call."""
    seconds = []
    for _ in range(calls):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds) * 1e6


def script(spec: EnvSpec, task: Task) -> list[Action]:
    """Return some actions that do not end the episode: a careless expert's, or counting."""
    if spec.demonstrate is None:
        return [Action("count", call=ToolCall("count", {}))] * DEPTH
    policy, episode = NoisyPolicy(spec.demonstrate, 1.0), spec.open()
    context = Context(task, episode.system_prompt, episode.tools.schemas, episode.reset(task))
    actions: list[Action] = []
    for seed in range(1000):
        answer: Any = policy.propose([ProposeRequest(context, (seed,), 1.0)])[0]
        trial = episode.copy()
        result = trial.step(answer.actions[0])
        if not result.terminated:
            actions.append(answer.actions[0])
            episode, context = trial, context.child(actions[-1], result.observation, result.role)
        if len(actions) == DEPTH:
            break
    return actions


def replayed(episode: Episode, task: Task, actions: list[Action]) -> None:
    """Bring an episode to the end of the actions by replay."""
    episode.reset(task)
    for action in actions:
        episode.step(action)


def row(name: str, cls: Any, isolated: bool) -> dict[str, Any]:
    """Return the costs of one environment in one of the two ways."""
    spec = EnvSpec.load(cls) if isinstance(cls, str) else EnvSpec(cls)
    task = next(iter(spec.tasks("train")))
    actions = script(spec, task)
    spec.isolated = isolated
    spec.path = f"{Path(__file__).resolve()}:{cls.__name__}" if not isinstance(cls, str) else cls
    started = time.perf_counter()
    episode = spec.open()
    episode.reset(task)
    first = time.perf_counter() - started
    replayed(episode, task, actions)
    episode.reset(task)
    steps = [median_us(lambda action=action: episode.step(action), 1) for action in actions * (CALLS // DEPTH)]
    try:
        copy: float | None = median_us(lambda: episode.copy().close())
        spare = [episode.copy() for _ in range(20)]
        restoring = [median_us(lambda one=one: one.copy().step(actions[0]), 1) for one in spare]
        restored: float | None = statistics.median(restoring)
    except EnvironmentFault:
        copy = restored = None
    return {
        "environment": name,
        "way": "isolated" if isolated else "in process",
        "step_us": statistics.median(steps),
        "snapshot_us": copy,
        "snapshot_and_step_us": restored,
        "replay_of_10_us": median_us(lambda: replayed(episode, task, actions), 50),
        "open_and_reset_us": median_us(lambda: spec.open().reset(task), 50),
        "first_open_and_reset_s": round(first, 3),
    }


def main() -> None:
    """Measure and write."""
    rows = [
        row(name, cls, isolated)
        for name, cls in (("Tiny", Tiny), ("Generator", Generator), ("shop", "shop"))
        for isolated in (False, True)
    ]
    write_result("isolation", rows, {"calls": CALLS, "replay": f"a reset and {DEPTH} actions"})


if __name__ == "__main__":
    main()
