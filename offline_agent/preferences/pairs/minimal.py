"""Minimal pairs: a success against its own shorter verified version, found by leaving out steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offline_agent.errors import EnvironmentFault
from offline_agent.preferences.pairs.trajectory import verified_pair
from offline_agent.preferences.records import PreferencePair, Refusal
from offline_agent.preferences.replay import Replay, extend, without_logps
from offline_agent.preferences.replayer import BudgetSpent, Replayer
from offline_agent.records import Action, Step, Task, Trajectory

if TYPE_CHECKING:
    from offline_agent.search.tree import Node, SearchTree


@dataclass(frozen=True, slots=True)
class Pruned:
    """The result of deleting steps of one success.

    Attributes:
        shortest: The shortest verified version as its replay went; None where no step could be left out.
        kept: int [k], positions of the original's steps that the shortest version keeps; all of them where it is None.
        replays: Number of replays this took.
        faults: Number of versions whose replay broke.
    """

    shortest: Replay | None
    kept: tuple[int, ...]
    replays: int
    faults: int


def delete_steps(trajectory: Trajectory, replayer: Replayer) -> Pruned | Refusal:
    """Leave out steps of a verified success: halves of it first, then ever smaller chunks, down to single steps.

    This is the complement part of delta debugging (Zeller and Hildebrandt 2002, ddmin). It ends where no single step
    can be left out of what is kept, or where the replayer's budget does. A version counts only if its end state is
    judged a success, all of its actions were taken, and no action that went through before is answered with an error
    now. The shortest is replayed once more without the help of fingerprints, and it is that replay which is returned.

    Args:
        trajectory: A success of a deterministic environment.
        replayer: Replays the versions.

    Returns:
        What was found, or why nothing can be said: the trajectory is no success, its own replay is none, or the
        fingerprints misled.
    """
    task, steps = trajectory.task, trajectory.steps
    if trajectory.verdict is None or trajectory.verdict.success is not True:
        return Refusal("minimal", task.task_id, "only a verified success has critical steps")
    before = replayer.count
    versions = _Versions(replayer, task, steps)
    everything = tuple(range(len(steps)))
    whole = versions.exactly(everything)
    if isinstance(whole, BudgetSpent):
        return Pruned(None, everything, 0, 0)
    if not isinstance(whole, Replay):
        reason = f"the success is not verified when it is replayed: {whole or 'failure'}"
        return Refusal("minimal", task.task_id, reason)
    kept = _shortened(versions, everything)
    shortest: Replay | None = None
    if kept != everything:
        found = versions.exactly(kept)
        if isinstance(found, Replay):
            shortest = found
        elif not isinstance(found, BudgetSpent):
            reason = "a version without some steps was a success by the environment's fingerprints, but is none"
            return Refusal("minimal", task.task_id, f"{reason} when it is replayed: {found or 'failure'}")
    return Pruned(shortest, everything if shortest is None else kept, replayer.count - before, versions.faults)


def _shortened(versions: _Versions, kept: tuple[int, ...]) -> tuple[int, ...]:
    """Return the steps that are left when no single step can be left out any more."""
    size = len(kept) // 2
    while size:
        before, end = len(kept), len(kept)
        while end > 0:  # last chunk first: the states up to it are kept, and few actions follow it
            start = max(0, end - size)
            shorter = kept[:start] + kept[end:]
            if shorter and isinstance(versions.cheaply(shorter), Replay):
                kept = shorter
            end = start
        # A step needed while all others are there may be free once another is gone: single ones are tried again.
        if size > 1 or len(kept) == before:
            size //= 2
    return kept


class _Versions:
    """Versions of one success: some of its steps, replayed."""

    def __init__(self, replayer: Replayer, task: Task, steps: Sequence[Step]) -> None:
        self._replayer = replayer
        self._task = task
        self._steps = steps
        self.faults = 0

    def exactly(self, keep: Sequence[int]) -> Replay | EnvironmentFault | None:
        """Replay these steps: the replay if it is as good as the whole, None if it is not, or what broke."""
        return self._good(keep, lambda actions: self._replayer.run(self._task, actions))

    def cheaply(self, keep: Sequence[int]) -> Replay | EnvironmentFault | None:
        """Do the same with the help of fingerprints."""
        faulty = [self._steps[i].fault is not None for i in keep]
        return self._good(keep, lambda actions: self._replayer.attempt(self._task, actions, faulty))

    def _good(
        self, keep: Sequence[int], replayed: Callable[[Sequence[Action]], Replay | None]
    ) -> Replay | EnvironmentFault | None:
        try:
            replay = replayed([self._steps[i].action for i in keep])
        except EnvironmentFault as error:
            self.faults += not isinstance(error, BudgetSpent)
            return error
        if replay is None:
            return None
        if replay.verdict.success is None:
            self.faults += 1
            return EnvironmentFault(replay.verdict.error or "not judged")
        if not replay.verified or len(replay.steps) < len(keep):
            return None
        old = [self._steps[i] for i in keep]
        if any(new.fault is not None and was.fault is None for was, new in zip(old, replay.steps, strict=True)):
            return None
        return replay


def minimal_pair(tree: SearchTree, end: Node, trajectory: Trajectory, pruned: Pruned) -> PreferencePair | None:
    """Return the pair of the success that ends at `end` and its shorter version (docs/pairs.md); None without one.

    The shorter version keeps the sampled ids of the actions that remain; their log-probabilities are dropped, since
    they were sampled after another history.
    """
    replay, verdict = pruned.shortest, trajectory.verdict
    if replay is None:
        return None
    assert verdict is not None  # it is a success
    alike = [
        (old.key == new.key, old.observation == new.observation)
        for old, new in zip(trajectory.steps, replay.steps, strict=False)
    ]
    at = next((at for at, same in enumerate(alike) if not all(same)), None)
    if at is None or alike[at][0]:
        return None  # it is a beginning of the whole, or what both share was answered differently
    edge, chosen = tree.path(end)[at], without_logps(replay.steps[at:])
    shorter = tree.find(edge.parent, chosen[0].key)
    return verified_pair(
        "minimal", tree, edge.parent, (chosen, trajectory.steps[at:]), (replay.verdict, verdict),
        edges=(None if shorter is None else shorter.id, edge.id), sure=1.0,
        reason=f"the same success with {len(trajectory.steps) - len(replay.steps)} step(s) fewer, verified by replay",
    )  # fmt: skip


def pruned_trajectory(pruned: Pruned) -> Trajectory | None:
    """Return the shortest verified version as a trajectory of origin `pruned`; None where there is none."""
    replay = pruned.shortest
    if replay is None:
        return None
    steps = without_logps(replay.steps)
    first = replay.context.lineage()[0]
    return Trajectory(extend(first, steps), steps, replay.verdict, replay.terminated, False, "pruned")
