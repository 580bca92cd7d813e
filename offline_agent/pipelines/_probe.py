"""Finding out before a search whether copies of an environment are snapshots."""

from __future__ import annotations

import time
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

from offline_agent.envs.base import EnvSpec
from offline_agent.errors import EnvironmentFault
from offline_agent.pipelines._pipeline import Session
from offline_agent.policies.base import Proposals, ProposeRequest
from offline_agent.policies.scripted import RandomPolicy
from offline_agent.records import Action, Context, Task
from offline_agent.search.pool import EnvPool
from offline_agent.search.probe import copying_fault


def trust_copies(session: Session[Any], spec: EnvSpec, tasks: Sequence[Task]) -> None:
    """Fall back to replay where copies are no snapshots, and say so.

    Tried on the first task that opens, under the limits of any other step; where none of three does, the search will
    meet the fault itself and quarantine it.

    Args:
        session: The run; its configuration has `limits`.
        spec: The environment; its `replay_only` is set where copies cannot be trusted.
        tasks: Those that will be searched.
    """
    limits = session.config.limits
    if spec.replay_only:
        return
    for task in tasks[:3]:
        pool, answers = EnvPool(1, limits.reset_seconds + limits.step_seconds), SimpleQueue[Any]()

        def probe(task: Task = task) -> str | None:
            return copying_fault(spec, task, _random_actions(spec, task))

        pool.submit(probe, answers.put)
        while answers.empty():
            pool.reap()
            time.sleep(0.002)
        pool.close()
        reason = answers.get()
        if not isinstance(reason, EnvironmentFault):
            break
    else:
        return
    if reason is not None:
        spec.replay_only = True
        session.run.quarantine("environment", spec.name, reason, consequence="states are restored by replay")
        name = session.run.manifest["command"]
        session.say(f"{name}: {reason}. States are restored by replay instead, which is slower.")


def _random_actions(spec: EnvSpec, task: Task, n: int = 4) -> list[Action]:
    """Return a few actions that a random policy takes in the task."""
    policy, episode = RandomPolicy(), spec.open()
    first = episode.reset(task)
    context = Context(task, episode.system_prompt, episode.tools.schemas, first)
    actions: list[Action] = []
    while len(actions) < n and not episode.terminated:
        answer = policy.propose([ProposeRequest(context, (len(actions),))])[0]
        if not isinstance(answer, Proposals):
            break
        actions.append(answer.actions[0])
        result = episode.step(actions[-1])
        context = context.child(actions[-1], result.observation, result.role)
    episode.close()
    return actions
