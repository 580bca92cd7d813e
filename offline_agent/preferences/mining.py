"""One tree in, its pairs, trajectories and refusals out; the pipeline's only way into this package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from offline_agent.preferences.criticality import (
    MinimalPairs,
    Pruned,
    Rollout,
    counterfactual,
    delete_steps,
    pruned_trajectory,
)
from offline_agent.preferences.filters import RejectionFilter
from offline_agent.preferences.goals import evaluation_tasks
from offline_agent.preferences.hindsight import Hindsight
from offline_agent.preferences.pairs import StepPairs, TrajectoryPairs, trajectories, trajectory
from offline_agent.preferences.refusals import Refusal
from offline_agent.preferences.replay import Replayer
from offline_agent.preferences.siblings import with_confidence
from offline_agent.records import PreferencePair, Trajectory

if TYPE_CHECKING:
    from offline_agent.envs.base import EnvSpec
    from offline_agent.search.tree import Node, SearchTree


@dataclass(slots=True)
class Mined:
    """What one tree gave.

    Attributes:
        pairs: In the order of kinds (step, trajectory, hindsight, minimal), then of the tree; not yet balanced.
        trajectories: Every finished branch, then relabelled and shortened ones.
        filtered: Those kept for rejection fine-tuning, shortest first.
        refusals: What was refused, and why.
        replays: Number of replays run.
        tool_calls: Number of actions executed by them.
    """

    pairs: list[PreferencePair] = field(default_factory=list)
    trajectories: list[Trajectory] = field(default_factory=list)
    filtered: list[Trajectory] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    replays: int = 0
    tool_calls: int = 0


class Miner:
    """Builds data from trees, one at a time; a pure function of the tree and of what the environment answers.

    Args:
        spec: The environment; replays run in it.
        steps: Rules of step pairs; None leaves them out, as with the three below.
        trajectory_pairs: Rules of trajectory pairs.
        hindsight: Rules of hindsight relabelling; "default" takes the goals of the evaluation splits from `spec`.
        minimal: Rules of minimal pairs; needs a deterministic verifier.
        filtered: Rules of filtered trajectories.
        rollout: Runs the policy from given states; measures criticality by counterfactual rollouts instead of by
            deletion. None = by deletion.
        rollouts: Counterfactual rollouts per state.
        step_seconds, reset_seconds: What replays may take; see `Replayer`.
        evaluation: Arguments of the evaluation tasks, where `spec` cannot list them; None = ask `spec`.
    """

    def __init__(
        self,
        spec: EnvSpec,
        *,
        steps: StepPairs | None = None,
        trajectory_pairs: TrajectoryPairs | None = None,
        hindsight: Hindsight | None = None,
        minimal: MinimalPairs | None = None,
        filtered: RejectionFilter | None = None,
        kinds: Sequence[str] = ("step", "trajectory", "hindsight", "minimal"),
        rollout: Rollout | None = None,
        rollouts: int = 8,
        step_seconds: float | None = 60.0,
        reset_seconds: float | None = None,
        evaluation: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        certain = spec.deterministic_verifier
        self.spec = spec
        self.kinds = frozenset(kinds)
        self.steps = steps or StepPairs(exact_terminals=certain)
        self.trajectory_pairs = trajectory_pairs or TrajectoryPairs(certain=certain)
        if hindsight is None and "hindsight" in self.kinds:
            hindsight = Hindsight(spec, evaluation_tasks(spec) if evaluation is None else evaluation)
        self.hindsight = hindsight
        self.minimal = minimal or MinimalPairs()
        self.filtered = filtered or RejectionFilter()
        self._rollout = rollout
        self._rollouts = rollouts
        self._replayer = Replayer(spec, step_seconds, reset_seconds)

    def mine(self, tree: SearchTree) -> Mined:
        """Return everything one tree gives. A tree in quarantine gives one refusal and nothing else."""
        mined = Mined()
        if tree.quarantined is not None:
            mined.refusals.append(Refusal("tree", tree.tree_id, f"the tree is in quarantine: {tree.quarantined}"))
            return mined
        replays, calls = self._replayer.count, self._replayer.tool_calls
        self._quarantined_branches(tree, mined)
        mined.trajectories = list(trajectories(tree))
        compared = self.steps.compare(tree)
        if "step" in self.kinds:
            _add(mined, *self.steps.mine(tree, compared))
        if "trajectory" in self.kinds:
            _add(mined, *self.trajectory_pairs.mine(tree))
        if "hindsight" in self.kinds and self.hindsight is not None:
            relabelled, pairs, refusals = self.hindsight.mine(tree, self._replayer)
            mined.trajectories += [found.trajectory for found in relabelled]
            _add(mined, pairs, refusals)
        self._shorten(tree, mined)
        mined.pairs = [with_confidence(pair, tree, compared) for pair in mined.pairs]
        mined.filtered, refusals = self.filtered.select(mined.trajectories, tree.tree_id)
        mined.refusals += refusals
        mined.replays = self._replayer.count - replays
        mined.tool_calls = self._replayer.tool_calls - calls
        return mined

    def close(self) -> None:
        """Close the episode kept for replays."""
        self._replayer.close()

    def _shorten(self, tree: SearchTree, mined: Mined) -> None:
        """Measure the criticality of the shortest successes and add their shorter versions and minimal pairs."""
        for end in self._successes(tree):
            success = trajectory(tree, end)
            pruned = delete_steps(success, self._replayer, self.minimal.max_replays)
            if isinstance(pruned, Refusal):
                mined.refusals.append(replace(pruned, name=f"{tree.tree_id}/node {end.id}"))
                continue
            criticality = pruned.criticality
            if self._rollout is not None:
                criticality = counterfactual(success, self._rollout, self._rollouts)
            self._annotate(mined, success, criticality)
            self._add_shorter(tree, end, success, pruned, mined)

    def _successes(self, tree: SearchTree) -> list[Node]:
        if not self.spec.deterministic_verifier or self.minimal.per_tree == 0:
            return []
        ends = [
            end
            for end in tree.terminals()
            if end.terminated and end.quarantined is None and end.verdict is not None and end.verdict.success is True
        ]
        return sorted(ends, key=lambda end: (end.depth, end.id))[: self.minimal.per_tree]

    def _add_shorter(self, tree: SearchTree, end: Node, success: Trajectory, pruned: Pruned, mined: Mined) -> None:
        if "minimal" not in self.kinds:
            return
        shorter = pruned_trajectory(pruned)
        if shorter is None:
            return
        mined.trajectories.append(shorter)
        pair = self.minimal.mine(tree, end, success, pruned)
        if pair is not None:
            mined.pairs.append(pair)

    @staticmethod
    def _annotate(mined: Mined, success: Trajectory, criticality: tuple[float | None, ...]) -> None:
        for i, known in enumerate(mined.trajectories):
            if known.context is success.context:
                mined.trajectories[i] = replace(known, criticality=criticality)
                return

    @staticmethod
    def _quarantined_branches(tree: SearchTree, mined: Mined) -> None:
        for edge in tree.edges:
            if edge.quarantined is not None:
                name = f"{tree.tree_id}/edge {edge.id}"
                mined.refusals.append(Refusal("branch", name, edge.quarantined, {"action": edge.key}))


def _add(mined: Mined, pairs: list[PreferencePair], refusals: list[Refusal]) -> None:
    mined.pairs += pairs
    mined.refusals += refusals
