"""Simulations in flight, and the histories that they share before any of them is committed.

The tree changes at commits only. Until then, two simulations that reach the same new history meet in a `PendingNode`:
one of them asks the policy and executes the action, the others wait for its result. So every edge is executed once,
although several simulations of a tree are in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from offline_agent.envs.play import ReplayMismatch
from offline_agent.errors import ContextFull, EnvironmentFault, PolicyError
from offline_agent.records import Action, Context, Step, Trajectory, Verdict
from offline_agent.search.environment import Outcome
from offline_agent.search.settings import SearchSettings
from offline_agent.search.tree import Edge, KnownStates, Node

IN_TREE = -1  # sample of an action that the tree has already

Canonical = Callable[[Action], str]
Reward = Callable[[Trajectory], float | None]
Choice = tuple[int, Action, str]  # sample, action and canonical key of the action to execute first
NewActions = dict[str, tuple[int, float, int, Action]]
"""Actions that a node does not have yet, by key: times drawn, best log-probability, minus its first index, action."""


@dataclass(slots=True, eq=False, repr=False)
class PendingNode:
    """A new history that simulations in flight share; the node that it becomes is made at the commit.

    Attributes:
        key: Canonical key of the action that leads here; "" for the root.
        seed: As `Node.seed`; 0 after a turn that was not executed.
        outcome: The `Outcome` of that action, or an `EnvironmentFault`; None before it was executed.
        context: The history; set before the outcome. None where the action could not be executed.
        samples: Proposals drawn here, by rank.
        children: The histories one action later, by canonical key.
        waiters: Simulations that wait for the outcome or for a sample.
    """

    key: str
    seed: int
    outcome: Any = None
    context: Any = None
    samples: dict[int, Action | PolicyError] = field(default_factory=dict)
    children: dict[str, PendingNode] = field(default_factory=dict)
    waiters: Sequence[Any] = ()


class Transition(NamedTuple):
    """One action beyond the tree.

    Attributes:
        sample: Index of the proposal where this simulation drew it, `IN_TREE` where the tree has it already.
        action: The action, in this simulation's words; `reached.context` has those of the one that executed it.
        reached: Its key, and what executing it gave.
    """

    sample: int
    action: Action
    reached: PendingNode


@dataclass(slots=True, eq=False, repr=False)
class SharedLeaf:
    """The new history at which several simulations leave the tree.

    Attributes:
        start: The history.
        size: Number of simulations that ever joined; the rank of the next one.
        active: Number of those that are not committed.
        commits: As `Simulation.commits`, of those that join.
    """

    start: PendingNode
    size: int = 0
    commits: int = 0
    active: int = field(init=False)

    def __post_init__(self) -> None:
        self.active = self.size

    def leave(self) -> None:
        """Count a simulation as committed; after the last one, what they shared is freed."""
        self.active -= 1
        if not self.active:  # the tree has all of it by now
            self.start.samples, self.start.children = {}, {}


@dataclass(frozen=True, slots=True)
class RolloutRules:
    """The rules that a simulation follows: the settings, and what the run decides.

    Attributes:
        settings: Of the search.
        critic: Proposals are shown to a critic.
        reward: See `TreeSearch`.
        known: States at which a simulation ends, other than a plain rollout; None where it ends at none.
    """

    settings: SearchSettings
    critic: bool
    reward: Reward | None
    known: KnownStates | None


@dataclass(slots=True, eq=False, repr=False)
class Simulation:
    """One simulation in flight, and its results.

    Attributes:
        index: Position in the order of issue, which is the order of commit.
        path: Edges from the root to `node`, in the tree at issue.
        node: The node at which it leaves the tree.
        edge: The edge of `node` to execute first; None where it draws proposals, or rolls out from the root.
        draw: Indices of the proposals to draw at `node` in one request; empty where it draws none.
        leaf, rank: The new history that it may share with others, and its place among them; None before it is known.
        greedy: Follow the policy's greedy actions.
        drawn: (index, action, key) of the proposals drawn at `node`.
        critic: Scores of the critic by canonical key.
        transitions: Actions beyond the tree, first to last.
        cut: None, or what ended it without a verdict: one of `records.POLICY_CUTS`, whose value is 0, or `fault`,
            `policy`, `unscored`, `duplicate` (every proposal drawn was known), `repeated` (its last action led to a
            state that the tree or its own way had before), which have no value.
        commits: Number of commits of the tree when its new history was first looked for: the states of these are known
            to it, and to all that share that history.
        verdict: Of the end state; None where none was asked for.
        value: To back up, in [0, 1]; None backs up nothing.
        mismatch: Depth at which a replay differed from what the tree recorded; None otherwise.
        error: A sentence about what went wrong; None otherwise.
        coroutine: `simulate` while it runs.
        search: The `TreeSearch` that issued it.
        done: It ran to its end and waits for its turn to be committed.
    """

    index: int
    path: list[Edge]
    node: Node
    edge: Edge | None = None
    draw: range = range(0)
    leaf: SharedLeaf | None = None
    rank: int = 0
    greedy: bool = False
    drawn: Sequence[Choice] = ()
    critic: Mapping[str, float] | None = None
    transitions: list[Transition] = field(default_factory=list)
    cut: str | None = None
    verdict: Verdict | None = None
    value: float | None = None
    mismatch: int | None = None
    error: str | None = None
    coroutine: Generator[None, Any, None] | None = None
    search: Any = None
    done: bool = False
    commits: int = 0

    def add(self, transition: Transition, rules: RolloutRules) -> bool:
        """Record one action; return whether the simulation is over."""
        self.transitions.append(transition)
        outcome, context = transition.reached.outcome, transition.reached.context
        if isinstance(outcome, EnvironmentFault):
            self.cut, self.error = "fault", str(outcome)
            if isinstance(outcome, ReplayMismatch):  # the fault is above this action: at the depth that differed
                self.mismatch = outcome.depth
            return True
        assert outcome is not None and context is not None  # it was executed
        if outcome.terminated:
            self._judge(outcome.verdict, context, rules)
        elif context.depth >= rules.settings.max_steps:
            self.cut, self.value = "max_steps", 0.0
        elif rules.known is not None and self._repeats(outcome.fingerprint, context.depth, rules):
            self.cut = "repeated"
        else:
            return False
        return True

    def _repeats(self, fingerprint: str | None, depth: int, rules: RolloutRules) -> bool:
        """Return whether the state of its last transition, at that depth, was known before; plain rollouts go on."""
        if rules.known is None or fingerprint is None or self.index < rules.settings.proposals:
            return False
        # in its own way, too: the tree knows these states at the commit only
        own = [getattr(reached.outcome, "fingerprint", None) for _, _, reached in self.transitions[:-1]]
        return fingerprint in own or rules.known.has(fingerprint, depth, self.commits)

    def _judge(self, verdict: Verdict | None, context: Context, rules: RolloutRules) -> None:
        """Turn the end state's verdict into the value to back up, or into the reason why there is none."""
        self.verdict = verdict
        if verdict is None or verdict.score is None:
            self.cut = "unscored"
            self.error = "the environment gave no verdict" if verdict is None else verdict.error
        elif rules.reward is not None:
            self.value = rules.reward(self._trajectory(context, verdict))
            if self.value is None:
                self.cut, self.error = "unscored", "the composite reward could not be computed"
        else:
            self.value = float(verdict.success or False) if rules.settings.value == "success" else verdict.score

    def end_by_token_limit(self, context: Context, sample: int, key: str, action: Action) -> None:
        """Record a turn after `context` that never ended: it is not executed, and the value is 0."""
        end = PendingNode(key, 0)  # shared with nobody: each draws such a turn by itself
        end.context = context.child(action, None, "user")
        end.outcome = Outcome(None, "user", False, action.fault)
        self.transitions.append(Transition(sample, action, end))
        self.cut, self.value = "tokens", 0.0

    def end_by_policy(self, error: PolicyError) -> None:
        """Record that the policy gave no action: a full context is its own failure, worth 0; others have no value."""
        self.error = str(error)
        if isinstance(error, ContextFull):
            self.cut, self.value = "context", 0.0
        else:
            self.cut = "policy"

    def _trajectory(self, context: Context, verdict: Verdict) -> Trajectory:
        known = [(edge.key, edge.fault) for edge in self.path]
        known += [(reached.key, getattr(reached.outcome, "fault", None)) for _, _, reached in self.transitions]
        steps = tuple(
            Step(c.action, key, c.observation, c.role, fault, anew=c.anew)
            for c, (key, fault) in zip(context.lineage()[1:], known, strict=True)
            if c.action is not None
        )
        return Trajectory(context, steps, verdict, True, False, "search")
