"""One tree in, its pairs, trajectories and refusals out; the pipeline's only way into this package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from offline_agent.preferences.dataset.candidates import FactMaker, FactTable, pack
from offline_agent.preferences.dataset.export import Row, trajectory_rows
from offline_agent.preferences.dataset.filters import RejectionFilter
from offline_agent.preferences.pairs.comparison import begins_with_worse_refusal, with_confidence
from offline_agent.preferences.pairs.hindsight import Hindsight, evaluation_tasks
from offline_agent.preferences.pairs.minimal import delete_steps, minimal_pair, pruned_trajectory
from offline_agent.preferences.pairs.step import StepPairs
from offline_agent.preferences.pairs.trajectory import TrajectoryPairs, trajectories, trajectory
from offline_agent.preferences.records import PreferencePair, Refusal
from offline_agent.preferences.replayer import Replayer
from offline_agent.preferences.revaluation import Rejudged, rejudge
from offline_agent.preferences.settings import FILTERED, PAIRS, FilteredSection, PairRules
from offline_agent.records import Trajectory

if TYPE_CHECKING:
    from offline_agent.envs.base import EnvSpec
    from offline_agent.rendering.renderer import Renderer
    from offline_agent.search.tree import Node, SearchTree


_SHORTENED = 4  # successes of a tree, shortest first
_SAMPLE = 0.25  # of the successes are judged again where each costs a replay from the start


@dataclass(slots=True)
class MinedTree:
    """The pairs, trajectories and refusals of one tree.

    Attributes:
        pairs: In the order of kinds (step, trajectory, hindsight, minimal), then of the tree; not yet balanced.
        trajectories: Every finished branch, then relabelled and shortened ones.
        filtered: Those kept for rejection fine-tuning, shortest first.
        refusals: The refused pairs and trajectories, with reasons.
        replays: Number of replays run.
        tool_calls: Number of actions executed by them.
        left_out: Number of replays that the budget did not pay for.
        rejudged: The result of judging verdicts again; None where none was.
    """

    pairs: list[PreferencePair] = field(default_factory=list)
    trajectories: list[Trajectory] = field(default_factory=list)
    filtered: list[Trajectory] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    replays: int = 0
    tool_calls: int = 0
    left_out: int = 0
    rejudged: Rejudged | None = None

    def cost(self) -> dict[str, int]:
        """Return the counts of what mining cost and left out."""
        again = self.rejudged
        return {
            "replays": self.replays,
            "replayed_calls": self.tool_calls,
            "replays_left_out": self.left_out,
            "verdicts": 0 if again is None else again.verdicts,
            "rejudged": 0 if again is None else again.judged,
            "rejudged_broken": 0 if again is None else again.broken,
            "disagreed": 0 if again is None else len(again.disagreements),
        }


class Miner:
    """Builds data from trees, one at a time; a pure function of the tree and of what the environment answers.

    Args:
        spec: The environment; replays run in it. None = there is none, as with logs: then nothing is replayed, so
            verdicts are not judged again and there are no hindsight and minimal pairs.
        pairs: Rules of pairs; minimal ones need a deterministic verifier.
        filtered: Rules of filtered trajectories.
        value: See `StepPairs`.
        certain: Whether one verdict settles an end; None = as the environment says.
        rejudge: Share of the successes whose verdict is judged again; see `revaluation.rejudge`. None = all where the
            environment can be copied, else a quarter.
        replay_budget: Most calls that replays of a tree may make, as a share of the calls of its search. Judging again
            comes first; hindsight leaves half of what it finds to minimal pairs. None = no limit.
        step_seconds, reset_seconds, live_states: Limits of replays; see `Replayer`.
    """

    def __init__(
        self,
        spec: EnvSpec | None,
        pairs: PairRules = PAIRS,
        filtered: FilteredSection = FILTERED,
        *,
        value: Literal["reward", "success"] = "reward",
        certain: bool | None = None,
        rejudge: float | None = None,
        replay_budget: float | None = None,
        step_seconds: float | None = 60.0,
        reset_seconds: float | None = None,
        live_states: int = 64,
    ) -> None:
        if certain is None:
            certain = spec is None or spec.deterministic_verifier
        self.spec = spec
        self.kinds = frozenset(pairs.kinds)
        self.steps = StepPairs(pairs, value=value, exact_terminals=certain)
        self.trajectory_pairs = TrajectoryPairs(pairs, certain=certain)
        if spec is None:
            self.kinds -= {"hindsight", "minimal"}
        relabels = "hindsight" in self.kinds
        self.hindsight = Hindsight(spec, evaluation_tasks(spec)) if spec is not None and relabels else None
        self.filtered = RejectionFilter(filtered, () if spec is None else spec.restarts)
        if rejudge is None:
            rejudge = _SAMPLE if spec is not None and spec.replay_only else 1.0
        self._rejudge = rejudge if certain else 0.0
        self._replay_budget = replay_budget
        self._replayer = None if spec is None else Replayer(spec, step_seconds, reset_seconds, live_states)

    def mine(self, tree: SearchTree) -> MinedTree:
        """Return everything one tree gives. A tree in quarantine gives one refusal and nothing else.

        A tree whose verdicts do not repeat is put in quarantine: its attribute `quarantined` is set.

        Args:
            tree: The tree.
        """
        mined = MinedTree()
        replayer = self._replayer
        if replayer is None:
            self._mine(tree, mined, None)
            return mined
        replays, calls, left_out = replayer.count, replayer.tool_calls, replayer.left_out
        share = self._replay_budget
        replayer.begin(None if share is None else int(share * tree.counters["tool_calls"]))
        try:
            self._mine(tree, mined, replayer)
        finally:
            replayer.begin(None)
        mined.replays, mined.tool_calls = replayer.count - replays, replayer.tool_calls - calls
        mined.left_out = replayer.left_out - left_out
        return mined

    def _mine(self, tree: SearchTree, mined: MinedTree, replayer: Replayer | None) -> None:
        if tree.quarantined is None and self._rejudge and replayer is not None:
            mined.rejudged = rejudge(tree, replayer, self._rejudge)
            tree.quarantined = _unrepeated(mined.rejudged)
        if tree.quarantined is not None:
            mined.refusals.append(Refusal("tree", tree.tree_id, f"the tree is in quarantine: {tree.quarantined}"))
            return
        self._quarantined_branches(tree, mined)
        mined.trajectories = list(trajectories(tree))
        compared = self.steps.compare(tree)
        if "step" in self.kinds:
            _add(mined, *self.steps.mine(tree, compared))
        if "trajectory" in self.kinds:
            _add(mined, *self.trajectory_pairs.mine(tree))
        if self.hindsight is not None and replayer is not None:
            with replayer.sparing(0.5 if self._successes(tree) else 0.0):
                relabelled, pairs, refusals = self.hindsight.mine(tree, replayer)
            mined.trajectories += [found.trajectory for found in relabelled]
            _add(mined, pairs, refusals)
        if replayer is not None:
            self._shorten(tree, mined, replayer)
        pairs = [with_confidence(pair, tree, compared) for pair in mined.pairs]
        mined.pairs = [pair for pair in pairs if not begins_with_worse_refusal(pair, tree)]
        mined.refusals += [_worse_refusal(pair) for pair in pairs if begins_with_worse_refusal(pair, tree)]
        mined.filtered, refusals = self.filtered.select(mined.trajectories, tree.tree_id)
        mined.refusals += refusals

    def close(self) -> None:
        """Close what is kept for replays."""
        if self._replayer is not None:
            self._replayer.close()

    def _shorten(self, tree: SearchTree, mined: MinedTree, replayer: Replayer) -> None:
        """Add shorter versions of the shortest successes, and minimal pairs."""
        for end in self._successes(tree):
            success = trajectory(tree, end)
            shortest = delete_steps(success, replayer)
            if isinstance(shortest, Refusal):
                mined.refusals.append(replace(shortest, name=f"{tree.tree_id}/node {end.id}"))
            elif shortest is not None:
                mined.trajectories.append(pruned_trajectory(shortest))
                if (pair := minimal_pair(tree, end, success, shortest)) is not None:
                    mined.pairs.append(pair)

    def _successes(self, tree: SearchTree) -> list[Node]:
        """Return the shortest successes, whose shorter versions make minimal pairs."""
        if self.spec is None or not self.spec.deterministic_verifier or "minimal" not in self.kinds:
            return []
        ends = [
            end
            for end in tree.terminals()
            if end.terminated and end.quarantined is None and end.verdict is not None and end.verdict.success is True
        ]
        return sorted(ends, key=lambda end: (end.depth, end.id))[:_SHORTENED]

    @staticmethod
    def _quarantined_branches(tree: SearchTree, mined: MinedTree) -> None:
        for edge in tree.edges:
            if edge.quarantined is not None:
                name = f"{tree.tree_id}/edge {edge.id}"
                mined.refusals.append(Refusal("branch", name, edge.quarantined, {"action": edge.key}))


def _add(mined: MinedTree, pairs: list[PreferencePair], refusals: list[Refusal]) -> None:
    mined.pairs += pairs
    mined.refusals += refusals


def _worse_refusal(pair: PreferencePair) -> Refusal:
    name = f"{pair.tree_id}/node {pair.node_id}/edges {pair.chosen_edge}>{pair.rejected_edge}"
    return Refusal(
        pair.kind, name, "the chosen side begins with a call that the tool refused, and the tree values it lower"
    )


def _unrepeated(rejudged: Rejudged) -> str | None:
    """Say why a tree is in quarantine: the first verdict that did not repeat; None where all did."""
    found = rejudged.disagreements
    if not found:
        return None
    return (
        f"{len(found)} of {rejudged.judged} verdicts did not repeat after a fresh replay ({found[0]}); what rests on "
        "them is no evidence. deterministic_verifier = False in the environment's class says that its verdicts differ"
    )


@dataclass(frozen=True, slots=True)
class TreeRows:
    """The rows, candidate pairs and refusals of one tree; can be pickled.

    Attributes:
        cost: Counts of the mining: its costs, and the rows left out; they are added up.
        facts: Facts of its pairs, for balancing.
        pairs: The pairs, packed by `candidates.pack`.
        trajectories: Rows.
        filtered: Rows of the trajectories kept for fine-tuning.
        refusals: Refused pairs and trajectories, those without a row included, in that order.
    """

    cost: Mapping[str, int]
    facts: FactTable
    pairs: bytes
    trajectories: Sequence[Row]
    filtered: Sequence[Row]
    refusals: Sequence[Refusal]


def rows_of(mined: MinedTree, renderer: Renderer | None, model: str | None) -> TreeRows:
    """Return what was mined from a tree as rows; pairs wait until those of all trees are balanced.

    Args:
        mined: What was mined from it.
        renderer: Gives the token columns; None leaves them null.
        model: Hash of the policy's model, where it has one.
    """
    refusals = list(mined.refusals)
    # Most of the filtered ones are among the trajectories, and are rendered once; refusals of requests are not.
    every = {id(one): one for one in (*mined.trajectories, *mined.filtered)}
    rows = {key: list(trajectory_rows([one], renderer, refusals, model)) for key, one in every.items()}
    return TreeRows(
        mined.cost(),
        FactTable.of(map(FactMaker().facts_of, mined.pairs)),
        pack(mined.pairs),
        [row for one in mined.trajectories for row in rows[id(one)]],
        [row for one in mined.filtered for row in rows[id(one)]],
        refusals,
    )
