"""Minimal pairs: a success against its own shorter verified version, found by leaving out steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from offline_agent.errors import EnvironmentFault
from offline_agent.preferences.pairs.trajectory import verified_pair
from offline_agent.preferences.records import PreferencePair, Refusal, Replay, extend, without_logps
from offline_agent.preferences.replayer import BudgetSpent, Replayer
from offline_agent.records import Step, Task, Trajectory

if TYPE_CHECKING:
    from offline_agent.search.tree import Node, SearchTree


def delete_steps(trajectory: Trajectory, replayer: Replayer) -> Replay | Refusal | None:
    """Leave out steps of a verified success: halves of it first, then ever smaller chunks, down to single steps.

    This is the complement part of delta debugging (Zeller and Hildebrandt 2002, ddmin). It ends where no single step
    can be left out of what is kept, or where the replayer's budget does. A version counts only if its end state is
    judged a success, all of its actions were taken, and no action that went through before is answered with an error
    now. The shortest is replayed once more without the help of fingerprints, and it is that replay which is returned.

    Args:
        trajectory: A success of a deterministic environment.
        replayer: Replays the versions.

    Returns:
        The replay of the shortest version; None where no step could be left out, or none within the budget; or why
        nothing can be said: the trajectory is no success, its own replay is none, or the fingerprints misled.
    """
    task, steps = trajectory.task, trajectory.steps
    if trajectory.verdict is None or trajectory.verdict.success is not True:
        return Refusal("minimal", task.task_id, "only a verified success has critical steps")
    whole = _version(replayer, task, steps)
    if isinstance(whole, BudgetSpent):
        return None
    if isinstance(whole, EnvironmentFault):
        return Refusal("minimal", task.task_id, f"the success is not verified when it is replayed: {whole}")
    kept = _shortened(replayer, task, steps)
    if len(kept) == len(steps):
        return None
    found = _version(replayer, task, kept)
    if isinstance(found, EnvironmentFault) and not isinstance(found, BudgetSpent):
        reason = "a version without some steps was a success by the environment's fingerprints, but is none"
        return Refusal("minimal", task.task_id, f"{reason} when it is replayed: {found}")
    return found if isinstance(found, Replay) else None


def _shortened(replayer: Replayer, task: Task, kept: Sequence[Step]) -> Sequence[Step]:
    """Return the steps that are left when no single step can be left out any more."""
    size = len(kept) // 2
    while size:
        before, end = len(kept), len(kept)
        while end > 0:  # last chunk first: the states up to it are kept, and few actions follow it
            start = max(0, end - size)
            shorter = [*kept[:start], *kept[end:]]
            if shorter and isinstance(_version(replayer, task, shorter, cheaply=True), Replay):
                kept = shorter
            end = start
        # A step needed while all others are there may be free once another is gone: single ones are tried again.
        if size > 1 or len(kept) == before:
            size //= 2
    return kept


def _version(replayer: Replayer, task: Task, steps: Sequence[Step], cheaply: bool = False) -> Replay | EnvironmentFault:
    """Replay steps of a success, `cheaply` with the help of fingerprints; return what broke where it is none."""
    actions = [step.action for step in steps]
    try:
        if cheaply:
            replay = replayer.attempt(task, actions, [step.fault is not None for step in steps])
        else:
            replay = replayer.run(task, actions)
    except EnvironmentFault as error:
        return error
    if replay is not None and replay.verdict.success is None:
        return EnvironmentFault(replay.verdict.error or "not judged")
    if replay is None or not replay.verified or len(replay.steps) < len(steps):
        return EnvironmentFault("failure")
    if any(new.fault is not None and was.fault is None for was, new in zip(steps, replay.steps, strict=True)):
        return EnvironmentFault("failure")
    return replay


def minimal_pair(tree: SearchTree, end: Node, trajectory: Trajectory, replay: Replay) -> PreferencePair | None:
    """Return the pair of the success that ends at `end` and its shorter version (docs/pairs.md).

    None where the shorter one is a beginning of the whole, or what both share was answered differently.

    The shorter version keeps the sampled ids of the actions that remain; their log-probabilities are dropped, since
    they were sampled after another history.
    """
    verdict = trajectory.verdict
    assert verdict is not None  # it is a success
    alike = [
        (old.key == new.key, old.observation == new.observation)
        for old, new in zip(trajectory.steps, replay.steps, strict=False)
    ]
    at = next((at for at, same in enumerate(alike) if not all(same)), None)
    if at is None or alike[at][0]:
        return None
    edge, chosen = tree.path(end)[at], without_logps(replay.steps[at:])
    shorter = tree.find(edge.parent, chosen[0].key)
    return verified_pair(
        "minimal", tree, edge.parent, (chosen, trajectory.steps[at:]), (replay.verdict, verdict),
        edges=(None if shorter is None else shorter.id, edge.id), sure=1.0,
    )  # fmt: skip


def pruned_trajectory(replay: Replay) -> Trajectory:
    """Return the shortest verified version as a trajectory of origin `pruned`."""
    steps = without_logps(replay.steps)
    first = replay.context.lineage()[0]
    return Trajectory(extend(first, steps), steps, replay.verdict, replay.terminated, False, "pruned")
