"""One episode from its reset to its verdict: the shared core of everything that plays episodes.

`play` plays a whole episode. Its parts serve callers that step many episodes at once for one policy (`begin`,
`execute`, `to_step`), or single states of a search tree (`execute`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from offline_agent.envs.episode import Episode, StepResult
from offline_agent.envs.tools import ToolSet
from offline_agent.errors import EnvironmentFault
from offline_agent.records import Action, Context, Origin, Step, Task, Trajectory, Verdict

Choose = Callable[[Context], Action | None]
"""Returns the action to take after a history; None ends the episode there."""


class Executed(NamedTuple):
    """One executed action.

    Attributes:
        result: The answer to it.
        verdict: On the state reached, where it was judged (see `execute`); None otherwise.
        fingerprint: Of that state, where it was read; None otherwise, and where the environment offers none.
    """

    result: StepResult
    verdict: Verdict | None
    fingerprint: str | None


def begin(episode: Episode, task: Task, steps: Sequence[Step] = ()) -> Context:
    """Reset an episode, and execute recorded steps again; return the history.

    Raises:
        EnvironmentFault: The environment broke, or answered a recorded step differently.
    """
    first = episode.reset(task)
    context = Context(task, episode.system_prompt, episode.tools.schemas, first)  # both may depend on the task
    for number, step in enumerate(steps):
        result = episode.step(step.action)
        if result.observation != step.observation or result.terminated:
            raise EnvironmentFault(
                f"{episode.spec.name} answered action {number} of a repeated history differently; "
                "it is not deterministic"
            )
        context = extend(context, step)
    return context


def execute(episode: Episode, action: Action, *, last: bool = False, fingerprint: bool = False) -> Executed:
    """Execute an action; judge the state that it leads to where the episode ends there.

    Args:
        episode: The episode.
        action: The action.
        last: The caller cuts the episode after this action, so the state is judged too.
        fingerprint: Read the fingerprint of every state, not only of one that is judged.

    Raises:
        EnvironmentFault: The environment broke; its state is unknown then.
    """
    result = episode.step(action)
    judged = result.terminated or last
    # The fingerprint comes first: a verifier that changes the state must not change what the state is called.
    seen = episode.fingerprint() if judged or fingerprint else None
    return Executed(result, episode.verdict() if judged else None, seen)


def to_step(tools: ToolSet, action: Action, result: StepResult) -> Step:
    """Return the record of an executed action."""
    return Step(action, tools.canonical_key(action), result.observation, result.role, result.fault, result.reward)


def extend(context: Context, step: Step) -> Context:
    """Return the history after a step."""
    return context.child(step.action, step.observation, step.role)


def play(
    episode: Episode,
    task: Task,
    choose: Choose,
    max_steps: int,
    *,
    after: Context | None = None,
    judge: bool = True,
    origin: Origin = "rollout",
) -> Trajectory:
    """Play an episode until it is over, `choose` ends it, or it has `max_steps` actions.

    Args:
        episode: The episode; it stays open.
        task: The task.
        choose: Returns each action.
        max_steps: Most actions.
        after: The history of an episode that was begun before, to go on from there; None resets the episode.
        judge: Ask for the verdict on the last state, however it was reached.
        origin: Noted on the trajectory.

    Returns:
        The whole history, with the steps taken here.

    Raises:
        EnvironmentFault: The environment broke.
    """
    context = begin(episode, task) if after is None else after
    steps: list[Step] = []
    while not episode.terminated and len(steps) < max_steps:
        action = choose(context)
        if action is None:
            break
        steps.append(to_step(episode.tools, action, episode.step(action)))
        context = extend(context, steps[-1])
    over = episode.terminated
    cut = None if over else "max_steps"
    return Trajectory(context, tuple(steps), episode.verdict() if judge else None, over, not over, origin, cut)


def script(actions: Sequence[Action], start: int = 0) -> Choose:
    """Return a choice that takes the actions one after the other, the first after a history of `start` actions."""

    def choose(context: Context) -> Action | None:
        position = context.depth - start
        return actions[position] if position < len(actions) else None

    return choose
