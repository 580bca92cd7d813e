"""One simulation: expansion, rollout and judgement, from the leaf of the tree to the end of the episode.

`simulate` never changes the tree. It reads the tree as it was when the simulation was issued, collects its results on a
`Simulation`, and `backup` applies them later, in the order of issue.

It is a coroutine, because the policy and the environment may answer late. Simulations in flight that reach the same new
history share it (`in_flight`): the one with the lowest rank draws and executes, the others wait for it. Ranks follow
the order of issue, never the order of answers, so the result does not depend on the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from offline_agent.envs.play import ReplayMismatch
from offline_agent.errors import ContextFull, EnvironmentFault, PolicyError
from offline_agent.policies.base import Proposals, ProposeRequest
from offline_agent.records import Action, Context, Step, Trajectory, Verdict
from offline_agent.search.in_flight import NO_OTHERS, Others, PendingNode, SharedLeaf, Transition
from offline_agent.search.nodes import mean_logp
from offline_agent.search.restore import Outcome
from offline_agent.search.tree import Edge, KnownStates, Node
from offline_agent.seeding import child_seed, draw_seeds, mix

IN_TREE = -1  # sample of an action that the tree has already
LATER: Any = object()  # in place of an answer that is not there yet

Canonical = Callable[[Action], str]
Reward = Callable[[Trajectory], float | None]
Choice = tuple[int, Action, str]  # sample, action and canonical key of the action to execute first
NewActions = dict[str, tuple[int, float, int, Action]]
"""Actions that a node does not have yet, by key: times drawn, best log-probability, minus its first index, action."""


class Calls(NamedTuple):
    """Calls that simulations make; the first argument is the simulation.

    Each returns the answer where it is there at once. Where it is not they return `LATER`, and the simulation, which
    yields then, is sent the answer.

    Attributes:
        ask: Takes a `ProposeRequest`; answers with `Proposals` or a `PolicyError`.
        criticise: Takes history, actions and seed; answers with one score in [0, 1] or None per action, or with None
            where the policy failed the critic.
        execute: Takes a state and an action; answers with an `Outcome` or an `EnvironmentFault`.
        wake: Takes a history alone, and lets the simulations that wait there go on.
    """

    ask: Callable[[Any, ProposeRequest], Any]
    criticise: Callable[[Any, tuple[Context, Sequence[Action], int]], Any]
    execute: Callable[[Any, Any, Action], Any]
    wake: Callable[[PendingNode], None]


@dataclass(frozen=True, slots=True)
class RolloutRules:
    """The settings of the search that a simulation uses.

    Attributes:
        max_steps, temperature, max_tokens, rollout_proposals: See `SearchSettings`.
        plain_rollouts: Number of simulations that begin beside the greedy rollout; 0 without one.
        success_only: The value is 1.0 or 0.0, as the verdict's success says; otherwise the score.
        critic: Proposals are shown to a critic.
        reward: See `TreeSearch`.
        known: States at which a simulation ends, other than a plain rollout; None where it ends at none.
        plain: Number of plain rollouts, which are the policy's own and end at no known state.
    """

    max_steps: int
    temperature: float | None
    max_tokens: int | None
    rollout_proposals: int
    plain_rollouts: int
    success_only: bool
    critic: bool
    reward: Reward | None
    known: KnownStates | None = None
    plain: int = 0


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
    critic: Mapping[str, float] = field(default_factory=dict)
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
            if isinstance(outcome, ReplayMismatch):
                self.mismatch = outcome.depth
            return True
        assert outcome is not None and context is not None  # it was executed
        if outcome.terminated:
            self._judge(outcome.verdict, context, rules)
        elif context.depth >= rules.max_steps:
            self.cut, self.value = "max_steps", 0.0
        elif rules.known is not None and self._repeats(outcome.fingerprint, context.depth, rules):
            self.cut = "repeated"
        else:
            return False
        return True

    def _repeats(self, fingerprint: str | None, depth: int, rules: RolloutRules) -> bool:
        """Return whether the state of its last transition, at that depth, was known before; plain rollouts go on."""
        if rules.known is None or fingerprint is None or self.index < rules.plain:
            return False
        own = [getattr(each.reached.outcome, "fingerprint", None) for each in self.transitions[:-1]]
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
            self.value = float(verdict.success or False) if rules.success_only else verdict.score

    def end_by_token_limit(
        self, context: Context, sample: int, key: str, action: Action, others: Others = NO_OTHERS
    ) -> None:
        """Record a turn after `context` that never ended: it is not executed, and the value is 0."""
        end = PendingNode(key, 0)
        end.context = context.child(action, None, "user")
        end.outcome = Outcome(None, "user", False, action.fault)
        self.transitions.append(Transition(sample, action, end, others))
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
        known += [(each.reached.key, getattr(each.reached.outcome, "fault", None)) for each in self.transitions]
        steps = tuple(
            Step(c.action, key, c.observation, c.role, fault)
            for c, (key, fault) in zip(context.lineage()[1:], known, strict=True)
            if c.action is not None
        )
        return Trajectory(context, steps, verdict, True, False, "search")


def simulate(
    simulation: Simulation, canonical: Canonical, rules: RolloutRules, calls: Calls
) -> Generator[None, Any, None]:
    """Run a simulation to its end: expand its node or execute its edge, then follow the policy.

    At each history it has a rank among the simulations that share it, and takes the sample of that number. Of those
    whose samples have the same key, the one of the lowest rank executes the action; the others wait, and go on together
    with new ranks in the same order.
    """
    node, others = simulation.node, NO_OTHERS
    sample: int
    action: Any = None  # None: it rolls out from the root, which is executed already
    if simulation.draw:
        chosen = yield from _expand(simulation, canonical, rules, calls)
        if chosen is None:
            return
        sample, action, key = chosen
        simulation.leaf = SharedLeaf(PendingNode(key, child_seed(node.seed, key)), 1)  # new, so not shared yet
    elif simulation.edge is not None:
        sample, action = IN_TREE, simulation.edge.actions[0]
    assert simulation.leaf is not None  # given at issue, or just now
    reached, ahead = simulation.leaf.start, simulation.rank
    state, context, executed = node.state, node.context, action
    # Beside the greedy rollout one action is drawn at a time: at temperature 0 all samples are the same.
    width = 1 if simulation.index < rules.plain_rollouts else rules.rollout_proposals
    while True:
        if action is not None:
            while ahead and reached.outcome is None:
                reached.waiters.append(simulation)
                yield
            if reached.outcome is None:
                outcome = calls.execute(simulation, state, executed)
                if outcome is LATER:
                    outcome = yield
                if type(outcome) is Outcome:
                    reached.context = context.child(executed, outcome.observation, outcome.role)
                reached.outcome = outcome
                if reached.waiters:
                    calls.wake(reached)
            if simulation.add(Transition(sample, action, reached, others), rules):
                return
        here, rank, state, context = reached, ahead, reached.outcome.state, reached.context
        sample, action, others = yield from _draw(simulation, here, rank, width, canonical, rules, calls)
        if isinstance(action, PolicyError):  # told to all whose sample it is
            simulation.end_by_policy(action)
            return
        key, executed, ahead = canonical(action), action, 0
        if rank:
            executed, ahead, beside_first = yield from _those_ahead(simulation, here, rank, action, canonical)
            if not beside_first:
                width = rules.rollout_proposals
        if action.fault == "no_end":
            simulation.end_by_token_limit(context, sample, key, action, others)
            return
        if key not in here.children:
            here.children[key] = PendingNode(key, child_seed(here.seed, key))
        reached = here.children[key]


def _expand(
    simulation: Simulation, canonical: Canonical, rules: RolloutRules, calls: Calls
) -> Generator[None, Any, Choice | None]:
    """Draw proposals in one request, show them to the critic, and choose the new one to execute."""
    node, draw = simulation.node, simulation.draw
    seeds = draw_seeds(node.seed, draw.start, len(draw))
    request = ProposeRequest(node.context, seeds, rules.temperature, rules.max_tokens)
    answer = calls.ask(simulation, request)
    if answer is LATER:
        answer = yield
    if isinstance(answer, PolicyError):
        simulation.end_by_policy(answer)
        return None
    new = sort_proposals(simulation, answer.actions, canonical)
    if rules.critic and (new or node.edges):
        actions = {edge.key: edge.actions[0] for edge in node.edges} | {key: entry[3] for key, entry in new.items()}
        question = (node.context, list(actions.values()), mix(node.seed, -2 - len(actions)))
        scores = calls.criticise(simulation, question)
        if scores is LATER:
            scores = yield
        if scores is not None:
            simulation.critic = {key: s for key, s in zip(actions, scores, strict=True) if s is not None}
    return choose(simulation, new)


def _draw(
    simulation: Simulation, node: PendingNode, rank: int, width: int, canonical: Canonical, rules: RolloutRules,
    calls: Calls,
) -> Generator[None, Any, tuple[int, Any, Others]]:  # fmt: skip
    """Return the number under which the sample of a rank is committed, the sample, and the others of its request."""
    while 0 < rank < width and rank not in node.samples:
        node.waiters.append(simulation)
        yield
    if rank in node.samples:
        # Rank 0 draws the first `width` in its own request, and commits them.
        return IN_TREE if 0 < rank < width else rank, node.samples[rank], NO_OTHERS
    seeds = draw_seeds(node.seed, rank, 1 if rank else width)
    temperature = 0.0 if simulation.greedy else rules.temperature
    answer = calls.ask(simulation, ProposeRequest(node.context, seeds, temperature, rules.max_tokens))
    if answer is LATER:
        answer = yield
    drawn = answer.actions if type(answer) is Proposals else (answer,) * len(seeds)
    node.samples.update(enumerate(drawn, rank))
    if node.waiters:
        calls.wake(node)
    if len(drawn) == 1 or type(answer) is not Proposals:
        return rank, drawn[0], NO_OTHERS
    return rank, drawn[0], tuple([(other, canonical(other)) for other in drawn[1:]])


def _those_ahead(
    simulation: Simulation, node: PendingNode, rank: int, action: Action, canonical: Canonical
) -> Generator[None, Any, tuple[Action, int, bool]]:
    """Return what is executed for an action, how many of lower rank have its key, and whether that of rank 0 has."""
    key, same = canonical(action), []
    for lower in range(rank):
        while lower not in node.samples:  # whether its key is the same decides who executes, so it has to be waited for
            node.waiters.append(simulation)
            yield
        value = node.samples[lower]
        if type(value) is Action and canonical(value) == key:
            same.append(value)
    first = node.samples[0]
    before = [value for value in same if value.fault != "no_end"]
    return before[0] if before else action, len(before), bool(same) and same[0] is first


def sort_proposals(simulation: Simulation, actions: Sequence[Action], canonical: Canonical) -> NewActions:
    """Record what was drawn at the node; return the actions that the node does not have and that can be executed."""
    known = [edge.key for edge in simulation.node.edges]
    drawn: list[Choice] = []
    new: NewActions = {}
    for index, action in zip(simulation.draw, actions, strict=True):
        key = canonical(action)
        drawn.append((index, action, key))
        if key in known or action.fault == "no_end":
            continue
        logp = mean_logp(action)
        belief = float("-inf") if logp is None else logp
        if key in new:
            count, best, order, first = new[key]
            new[key] = (count + 1, max(best, belief), order, first)
        else:
            new[key] = (1, belief, -index, action)
    simulation.drawn = drawn
    return new


def choose(simulation: Simulation, new: NewActions) -> Choice | None:
    """Return the new action to execute: the critic's favourite, else the likeliest; None where there is none.

    Where the only new proposals are turns that never ended, the simulation ends with the first of them.
    """
    if not new:
        known = [edge.key for edge in simulation.node.edges]
        for index, action, key in simulation.drawn:
            if key not in known:
                simulation.end_by_token_limit(simulation.node.context, index, key, action)
                return None
        simulation.cut = "duplicate"
        return None
    critic = simulation.critic
    if not critic:
        key = max(new, key=new.__getitem__)  # the index differs, so no two actions are compared
    else:
        mean = sum(critic.values()) / len(critic)  # of an action without an opinion: neither for nor against it
        key = max(new, key=lambda k: (critic.get(k, mean), new[k][:3]))
    return -new[key][2], new[key][3], key
