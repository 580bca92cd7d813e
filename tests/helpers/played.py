"""Play a scripted expert, or given calls, in an environment."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from offline_agent.envs.base import EnvSpec, Episode
from offline_agent.records import Action, Task, ToolCall, Verdict


def call(tool: str, **arguments: Any) -> Action:
    """Return an action that calls a tool."""
    return Action(f"{tool} {arguments}", call=ToolCall(tool, arguments))


def play(spec: EnvSpec, task: Task, actions: Iterable[Action]) -> Episode:
    """Return an episode after these actions, or after those that were possible."""
    episode = spec.open()
    episode.reset(task)
    for action in actions:
        if episode.terminated:
            break
        episode.step(action)
    return episode


def expert(spec: EnvSpec, task: Task, noise: float = 0.0, seed: int = 0, limit: int = 60) -> tuple[Verdict, list[Any]]:
    """Return the verdict on the scripted expert's episode, and its messages."""
    assert spec.demonstrate is not None
    episode = spec.open()
    messages: list[Any] = [{"role": "user", "content": episode.reset(task)}]
    rng = random.Random(f"{seed} {task.task_id}")
    for _ in range(limit):
        if episode.terminated:
            break
        message = spec.demonstrate(task.args, messages, rng, noise)
        messages.append(message)
        calls = message.get("tool_calls")
        action = Action(message["content"])
        if calls:
            function = calls[0]["function"]
            action = call(function["name"], **function["arguments"])
        result = episode.step(action)
        messages.append({"role": result.role, "content": result.observation})
    return episode.verdict(), messages


def share(spec: EnvSpec, tasks: Sequence[Task], noise: float = 0.0) -> float:
    """Return the share of tasks that the expert solves."""
    return sum(bool(expert(spec, task, noise)[0].success) for task in tasks) / len(tasks)
