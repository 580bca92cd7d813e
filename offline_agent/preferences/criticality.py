"""Which steps of a success mattered: by deletion, which also shortens it, and by counterfactual rollouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offline_agent.errors import ConfigError, EnvironmentFault
from offline_agent.preferences.refusals import Refusal
from offline_agent.preferences.replay import Replay, Replayer, extend, without_logps
from offline_agent.records import PreferencePair, Step, Task, Trajectory, Verdict

if TYPE_CHECKING:
    from offline_agent.search.tree import Edge, Node, SearchTree

Rollout = Callable[[Task, Sequence[Step], int], Sequence[Verdict]]
"""`(task, steps so far, n)` -> the verdicts of n fresh rollouts of the policy from there."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What deletion found out about one success.

    Attributes:
        criticality: float [steps] of the original: 1.0 = without this step alone the task is no longer verified,
            0.0 = it still is, None = the replay broke or could not be judged.
        shortest: The shortest verified version as its replay went; None where no step could be left out.
        kept: int [k], positions of the original's steps that the shortest version keeps; all of them where it is None.
        replays: Number of replays this took.
        faults: Number of replays that broke.
    """

    criticality: tuple[float | None, ...]
    shortest: Replay | None
    kept: tuple[int, ...]
    replays: int
    faults: int


def delete_steps(trajectory: Trajectory, replayer: Replayer, max_replays: int = 256) -> Pruned | Refusal:
    """Leave out each step of a verified success in turn, then as many together as can be (greedily, first to last).

    A version counts only if a fresh episode judges it a success, all of its actions were taken, and no action that
    went through before is answered with an error now.

    Args:
        trajectory: A success of a deterministic environment.
        replayer: Replays the versions.
        max_replays: Most replays to spend; steps not tried by then have criticality None and are kept.

    Returns:
        What was found, or why nothing can be said: the trajectory is no success, or its own replay is none.
    """
    task, steps = trajectory.task, trajectory.steps
    if trajectory.verdict is None or trajectory.verdict.success is not True:
        return Refusal("minimal", task.task_id, "only a verified success has critical steps")
    before = replayer.count
    tried: dict[tuple[int, ...], Replay | str | None] = {}

    def attempt(keep: tuple[int, ...]) -> Replay | str | None:
        if keep not in tried:
            if replayer.count - before >= max_replays:
                return "max_replays used up"
            tried[keep] = _version(replayer, task, steps, keep)
        return tried[keep]

    kept = tuple(range(len(steps)))
    whole = attempt(kept)
    if not isinstance(whole, Replay):
        reason = f"the success is not verified when it is replayed: {whole or 'failure'}"
        return Refusal("minimal", task.task_id, reason)
    criticality: list[float | None] = []
    for i in kept:
        outcome = attempt(kept[:i] + kept[i + 1 :])
        criticality.append(None if isinstance(outcome, str) else float(outcome is None))
    shortest: Replay | None = None
    again = True
    while again:
        again = False
        for i in kept:
            # A step needed while all others are there may be free once another is gone: every one is tried again.
            shorter = tuple(j for j in kept if j != i)
            outcome = attempt(shorter) if shorter else None
            if isinstance(outcome, Replay):
                kept, shortest, again = shorter, outcome, True
    faults = sum(isinstance(outcome, str) for outcome in tried.values())
    return Pruned(tuple(criticality), shortest, kept, replayer.count - before, faults)


def counterfactual(trajectory: Trajectory, rollout: Rollout, n: int = 8) -> tuple[float | None, ...]:
    """Return C_i = V(with a_i) − E_{a'~π(·|h_i)}[V(with a')] for each step, by n fresh rollouts from each history.

    The second term is the policy's value at h_i, so one set of rollouts per history serves two steps.

    Args:
        trajectory: The branch; its steps are replayed by `rollout`.
        rollout: Runs the policy from the state after given steps.
        n: Rollouts per history.

    Returns:
        float [steps], each in [-1, 1]; None where a rollout could not be judged at all.
    """
    if n < 1:
        raise ConfigError(f"counterfactual: n must be at least 1, got {n!r}")
    steps = trajectory.steps
    values = [_mean(rollout(trajectory.task, steps[:k], n)) for k in range(len(steps))]
    end = trajectory.verdict.score if trajectory.verdict is not None else None
    values.append(end)
    return tuple(
        None if before is None or after is None else after - before
        for before, after in zip(values[:-1], values[1:], strict=True)
    )


class MinimalPairs:
    """A success against its own shorter verified version (algorithms.md section 4, rule 4).

    The shorter version keeps the sampled ids of the actions that remain; their log-probabilities are dropped, since
    they were sampled after another history.

    Args:
        per_tree: Most successes of a tree that are shortened, shortest first.
        max_replays: Most replays spent on one success.
        min_saved: Least number of steps the shorter version must save.
    """

    def __init__(self, per_tree: int = 4, max_replays: int = 256, min_saved: int = 1) -> None:
        if per_tree < 0 or max_replays < 1 or min_saved < 1:
            raise ConfigError(
                "minimal pairs: per_tree must be at least 0, max_replays and min_saved at least 1, "
                f"got {per_tree!r}, {max_replays!r}, {min_saved!r}"
            )
        self.per_tree = per_tree
        self.max_replays = max_replays
        self.min_saved = min_saved

    def mine(self, tree: SearchTree, end: Node, trajectory: Trajectory, pruned: Pruned) -> PreferencePair | None:
        """Return the pair for the success that ends at `end`, or None where nothing worth a pair can be left out."""
        replay = pruned.shortest
        if replay is None or len(trajectory.steps) - len(replay.steps) < self.min_saved:
            return None
        for at, (old, new) in enumerate(zip(trajectory.steps, replay.steps, strict=False)):
            if old.key != new.key:
                return self._pair(tree, tree.path(end)[at], trajectory, replay, at)
            if old.observation != new.observation:
                return None
        return None

    def _pair(
        self, tree: SearchTree, edge: Edge, trajectory: Trajectory, replay: Replay, at: int
    ) -> PreferencePair | None:
        verdict = trajectory.verdict
        assert verdict is not None and verdict.score is not None and replay.verdict.score is not None
        saved = len(trajectory.steps) - len(replay.steps)
        chosen = without_logps(replay.steps[at:])
        shorter = tree.find(edge.parent, chosen[0].key)
        return PreferencePair(
            "minimal",
            edge.parent.context,
            chosen,
            trajectory.steps[at:],
            replay.verdict.score,
            verdict.score,
            1,
            1,
            None,
            replay.verdict,
            verdict,
            tree.tree_id,
            edge.parent.id,
            None if shorter is None else shorter.id,
            edge.id,
            rest_confidence=1.0,
            reason=f"the same success with {saved} step(s) fewer, verified by replay",
        )


def pruned_trajectory(pruned: Pruned) -> Trajectory | None:
    """Return the shortest verified version as a trajectory of origin `pruned`; None where there is none."""
    replay = pruned.shortest
    if replay is None:
        return None
    steps = without_logps(replay.steps)
    first = replay.context.lineage()[0]
    return Trajectory(extend(first, steps), steps, replay.verdict, replay.terminated, False, "pruned")


def _version(replayer: Replayer, task: Task, steps: Sequence[Step], keep: Sequence[int]) -> Replay | str | None:
    """Replay the kept steps: the replay if it is as good as the whole, None if it is not, text if it broke."""
    try:
        replay = replayer.run(task, [steps[i].action for i in keep])
    except EnvironmentFault as error:
        return str(error)
    if replay.verdict.success is None:
        return replay.verdict.error or "not judged"
    if not replay.verified or len(replay.steps) < len(keep):
        return None
    if any(new.fault is not None and steps[i].fault is None for i, new in zip(keep, replay.steps, strict=True)):
        return None
    return replay


def _mean(verdicts: Sequence[Verdict]) -> float | None:
    scores = [verdict.score for verdict in verdicts if verdict.score is not None]
    return sum(scores) / len(scores) if scores else None
