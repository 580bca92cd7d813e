"""Demonstrations: trajectories of an environment's scripted expert."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.play import play
from offline_agent.envs.settings import DEFAULT_STEPS, DemonstrationsSection
from offline_agent.errors import EnvironmentFault, PolicyError
from offline_agent.policies.base import Proposals, ProposeRequest
from offline_agent.policies.scripted import NoisyPolicy
from offline_agent.records import Action, Context, Task, Trajectory, Verdict
from offline_agent.rendering.renderer import Renderer
from offline_agent.seeding import derive_seed


@dataclass
class Demonstrated:
    """The result of `demonstrate`.

    Attributes:
        trajectories: Those that are kept, in task order; origin `demonstration`.
        attempts: Number of attempts played.
        successes: Number of attempts that the verifier judged a success.
        left_out: (task and number, reason) of those that are not kept.
    """

    trajectories: list[Trajectory] = field(default_factory=list)
    attempts: int = 0
    successes: int = 0
    left_out: list[tuple[str, str]] = field(default_factory=list)


ONE = DemonstrationsSection()


def demonstrate(
    spec: EnvSpec,
    tasks: Sequence[Task],
    renderer: Renderer | None,
    keys: DemonstrationsSection = ONE,
    *,
    seed: int = 0,
    tick: Callable[[int], None] | None = None,
) -> Demonstrated:
    """Play the scripted expert on the tasks.

    Attempt `i` of a task depends on (seed, task, i) alone.

    Args:
        spec: The environment; it has an expert.
        tasks: The tasks.
        renderer: Writes the turns in its template's format; None = the plain format.
        keys: The keys; an attempt that uses up its steps is truncated.
        seed: Seed of all random choices.
        tick: Called after each task with the number of tasks done.
    """
    assert spec.demonstrate is not None
    experts = [NoisyPolicy(spec.demonstrate, value, renderer) for value in keys.noise]
    out = Demonstrated()
    for done, task in enumerate(tasks, 1):
        for number in range(keys.per_task):
            chance = random.Random(derive_seed(seed, "demonstration", task.task_id, number))
            expert = experts[chance.randrange(len(experts))]
            name = f"{task.task_id}/{number}"
            out.attempts += 1
            try:
                trajectory = attempt(spec, task, expert, keys.max_steps or DEFAULT_STEPS, chance)
            except (EnvironmentFault, PolicyError) as error:
                out.left_out.append((name, str(error)))
                continue
            success = _done(trajectory)
            out.successes += success
            if not trajectory.steps:
                out.left_out.append((name, "it has no action"))
            elif keys.only_successes and not success:
                out.left_out.append((name, _why(trajectory)))
            else:
                out.trajectories.append(trajectory)
        if tick is not None:
            tick(done)
    return out


def attempt(spec: EnvSpec, task: Task, expert: NoisyPolicy, max_steps: int, chance: random.Random) -> Trajectory:
    """Return one attempt of the expert.

    Raises:
        EnvironmentFault: The environment broke.
        PolicyError: The expert failed.
    """

    def choose(context: Context) -> Action:
        answer = expert.propose([ProposeRequest(context.shown, (chance.getrandbits(62),), temperature=1.0)])[0]
        if not isinstance(answer, Proposals):
            raise answer
        return answer.actions[0]

    with contextlib.closing(spec.open()) as episode:
        return play(episode, task, choose, max_steps, origin="demonstration")


def _done(trajectory: Trajectory) -> bool:
    """Return whether the goal was reached and the episode is over; one that was cut does not show how to end."""
    verdict = trajectory.verdict
    return verdict is not None and verdict.success is True and not trajectory.truncated


def _why(trajectory: Trajectory) -> str:
    verdict: Verdict | None = trajectory.verdict
    if verdict is None or verdict.score is None:
        return f"it could not be scored ({verdict.error if verdict else 'no verifier'})"
    if trajectory.truncated:
        return f"it was not done after {len(trajectory.steps)} actions (score {verdict.score:g})"
    return f"it failed (score {verdict.score:g})"


def signature(schema: Mapping[str, Any]) -> str:
    """Return a tool's schema as the template of new models writes it: its name and its parameters' names."""
    function = schema.get("function", schema)
    return f" {function['name']}({', '.join(function.get('parameters', {}).get('properties', {}))})"


def texts(trajectories: Sequence[Trajectory]) -> Iterator[str]:
    """Yield the texts to train a tokenizer on: prompts, tools, observations and turns."""
    for trajectory in trajectories:
        start = trajectory.context.lineage()[0]
        yield start.system
        yield from map(signature, start.tools)
        yield start.observation or ""
        for step in trajectory.steps:
            yield step.observation or ""
            yield step.action.text
