"""Finding out before a search whether copies of an environment are snapshots, and what it does to this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from offline_agent.config.build_prefs import LimitsSection
from offline_agent.envs.base import EnvSpec
from offline_agent.envs.boundary import ProcessState
from offline_agent.envs.checks.trial import capacity, copying_fault, free_now, holding_of_one
from offline_agent.envs.play import play
from offline_agent.envs.pool import EnvPool
from offline_agent.errors import EnvironmentFault
from offline_agent.policies.base import Proposals, ProposeRequest
from offline_agent.policies.scripted import RandomPolicy
from offline_agent.records import Action, Context, Task
from offline_agent.runner.pipeline import Session

_WHY_ISOLATED = "environments run in processes of their own, which are forked for snapshots where they can be"
_WHY_REPLAYED = "states are restored by replay"


def trust_copies(session: Session[Any], spec: EnvSpec, tasks: Sequence[Task]) -> None:
    """Choose how states are restored (copies, forks of processes, replays), and say so where it is not by copies.

    Tried on the first task that opens, under the limits of any other step; where none of three does, the search will
    meet the fault itself and quarantine it.

    Args:
        session: The run; its configuration has `env`, `limits` and `search`.
        spec: The environment; its `replay_only` is set where copies cannot be trusted, its `isolated` where forks can,
            or where it changes the process it runs in.
        tasks: Those that will be searched.
    """
    choosing = session.config.env.isolate == "auto" and not spec.isolated
    if spec.replay_only:
        return
    surroundings = ProcessState()
    for task in tasks[:3]:
        reason = limited(session.config.limits, partial(_copying_fault, spec, task))
        if not isinstance(reason, EnvironmentFault):
            break
    else:
        surroundings.put_back()
        return
    changed = surroundings.put_back()
    isolated = choosing and (reason is not None or bool(changed)) and _isolate(session, spec, task, bool(changed))
    if changed:
        _note_changes(session, spec, changed, _WHY_ISOLATED if isolated else "that was undone")
    if reason is not None and not isolated:
        spec.replay_only = True
    if reason is not None:
        _note(session, spec, reason, _WHY_ISOLATED if isolated else _WHY_REPLAYED)


@contextlib.contextmanager
def undoing_changes(session: Session[Any], spec: EnvSpec) -> Iterator[Callable[[], None]]:
    """Undo, and say, what an environment changes in this process: when the function is called, and at the end."""
    surroundings = ProcessState()

    def look() -> None:
        if changed := surroundings.put_back():
            _note_changes(session, spec, changed, "that was undone")

    try:
        yield look
    finally:
        look()


def _note_changes(session: Session[Any], spec: EnvSpec, changed: Sequence[str], consequence: str) -> None:
    """Say that an environment changed the process it runs in, and what came of it."""
    reason = f"{spec.name} changes the process that it runs in: {', '.join(changed)}"
    _note(session, spec, reason, consequence, "" if spec.isolated else " (env.isolate=process keeps it out)")


def _note(session: Session[Any], spec: EnvSpec, reason: str, consequence: str, advice: str = "") -> None:
    session.run.quarantine("environment", spec.name, reason, consequence=consequence)
    slower = ", which is slower" if consequence == _WHY_REPLAYED else ""
    session.say(f"{session.run.manifest['command']}: {reason}. So {consequence}{slower}{advice}.")


def _isolate(session: Session[Any], spec: EnvSpec, task: Task, needed: bool) -> bool:
    """Isolate the environment where its forks are snapshots, or where it is `needed`."""
    spec.isolated = True
    fault = limited(session.config.limits, partial(_copying_fault, spec, task))
    if isinstance(fault, EnvironmentFault) or (fault is not None and not needed):
        spec.isolated = False  # the environment broke, which the search will meet, or forks are no snapshots either
        return False
    spec.replay_only = fault is not None
    return True


def limited(limits: LimitsSection, job: Callable[[], Any]) -> Any:
    """Return a job's result or the `EnvironmentFault` that it raised, under the limits of a step and a reset."""
    pool = EnvPool(1, limits.reset_seconds + limits.step_seconds)
    result = pool.lane(own_thread=False).result(job)
    pool.close()
    return result


def _copying_fault(spec: EnvSpec, task: Task) -> str | None:
    """Try a few actions that a random policy takes in the task."""
    policy = RandomPolicy()

    def choose(context: Context) -> Action | None:
        answer = policy.propose([ProposeRequest(context.shown, (context.depth,))])[0]
        return answer.actions[0] if isinstance(answer, Proposals) else None

    with contextlib.closing(spec.open()) as episode:
        actions = play(episode, task, choose, 4, judge=False).context.actions()
    return copying_fault(spec, task, actions)


def bound_environments(limits: LimitsSection, spec: EnvSpec, tasks: Sequence[Task]) -> None:
    """Set how many environments may be open at once, where the configuration leaves it open.

    One is opened to see what it holds; where it does not open, the run will meet the fault itself.

    Args:
        limits: The section of the configuration.
        spec: The environment; its `census` is set.
        tasks: The run's.
    """
    if limits.environments is not None:
        return
    one = limited(limits, partial(holding_of_one, spec, tasks[0]))
    if not isinstance(one, EnvironmentFault):
        spec.census.most = capacity(one, free_now())
    spec.census.peak = spec.census.open
