"""One simulation: expansion, rollout and judgement, from the leaf of the tree to the end of the episode.

`simulate` never changes the tree. It reads the tree as it was when the simulation was issued, collects its results on a
`Simulation`, and `backup` applies them later, in the order of issue.

It is a coroutine, because the policy and the environment answer late: it yields a request, and the scheduler sends the
answer. Simulations in flight that reach the same new history share it (`in_flight`): the one with the lowest rank draws
and executes, the others wait for it. Ranks follow the order of issue, never the order of answers, so the result does
not depend on the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from offline_agent.errors import ContextFull, EnvironmentFault, PolicyError
from offline_agent.policies.base import Proposals, ProposeRequest
from offline_agent.records import Action, Context, Step, Trajectory, Verdict
from offline_agent.search.in_flight import EMPTY, PendingNode, SharedLeaf
from offline_agent.search.repeats import KnownStates
from offline_agent.search.restore import Opening, Outcome, ReplayMismatch
from offline_agent.search.tree import Edge, Node, mean_logp
from offline_agent.seeding import child_seed, draw_seeds, mix

RETRIES = 3  # of a failed request: an outage of the policy must be told from a request that it can never answer
FINAL = (Proposals, ContextFull)  # answers that asking again does not change

# Requests that a simulation yields. Plain tuples: making a named tuple costs as much as the rest of the exchange.
ASK = 0  # (ASK, ProposeRequest): answered with `Proposals` or a `PolicyError`
EXECUTE = 1  # (EXECUTE, state, action): answered with an `Outcome` or an `EnvironmentFault`
WAIT = 2  # (WAIT, future): answered with the future's value, once another simulation has set it
WAKE = 3  # (WAKE, future): its value was set; answered at once, and those who wait for it go on
CRITICISE = 4  # (CRITICISE, context, actions, seed): answered with one score in [0, 1] or None per action, or with None
#                where the policy failed the critic

Request = tuple[Any, ...]
Canonical = Callable[[Action], str]
Reward = Callable[[Trajectory], float | None]
Others = tuple[tuple[Action, str], ...]
Choice = tuple[int, Action, str]  # sample, action and canonical key of the action to execute first
NewActions = dict[str, tuple[int, float, int, Action]]
"""Actions that a node does not have yet, by key: times drawn, best log-probability, minus its first index, action."""


class Transition(NamedTuple):
    """One action beyond the tree.

    Attributes:
        sample: Index of the proposal where this simulation drew it, `IN_TREE` where the tree has it already.
        key, action: The action and its canonical key.
        outcome, context: What executing it gave, and the history reached; None where it could not be executed.
        seed: Seed of the history reached.
        reason: Why it could not be executed; None otherwise.
        others: Proposals of the same request that were not followed, each with its key.
    """

    sample: int
    key: str
    action: Action
    outcome: Outcome | None
    context: Context | None
    seed: int
    reason: str | None
    others: Others


IN_TREE = -1

_NO_DRAW = range(0)
_NO_OTHERS: Others = ()
_NO_SCORES: Mapping[str, float] = MappingProxyType({})


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

    __slots__ = (
        "index", "path", "node", "edge", "draw", "leaf", "rank", "greedy", "drawn", "critic", "transitions", "cut",
        "verdict", "value", "mismatch", "error", "coroutine", "search", "done", "commits",
    )  # fmt: skip

    def __init__(self, index: int, path: list[Edge], node: Node) -> None:
        self.index = index
        self.path = path
        self.node = node
        self.edge: Edge | None = None
        self.draw = _NO_DRAW
        self.leaf: SharedLeaf | None = None
        self.rank = 0
        self.greedy = False
        self.drawn: Sequence[Choice] = ()
        self.critic: Mapping[str, float] = _NO_SCORES
        self.transitions: list[Transition] = []
        self.cut: str | None = None
        self.verdict: Verdict | None = None
        self.value: float | None = None
        self.mismatch: int | None = None
        self.error: str | None = None
        self.coroutine: Generator[Request, Any, None] | None = None
        self.search: Any = None
        self.done = False
        self.commits = 0

    def repeats(self, fingerprint: str | None, depth: int, rules: RolloutRules) -> bool:
        """Return whether the state of its last transition, at that depth, was known before; plain rollouts go on."""
        if rules.known is None or fingerprint is None or self.index < rules.plain:
            return False
        own = [each.outcome.fingerprint for each in self.transitions[:-1] if each.outcome is not None]
        return fingerprint in own or rules.known.has(fingerprint, depth, self.commits)

    def judge(self, verdict: Verdict | None, context: Context, rules: RolloutRules) -> None:
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

    def end_by_fault(self, fault: EnvironmentFault) -> None:
        """Record that the environment could not execute the last action: no value."""
        self.cut, self.error = "fault", str(fault)
        if isinstance(fault, ReplayMismatch):
            self.mismatch = fault.depth

    def end_by_token_limit(
        self, context: Context, sample: int, key: str, action: Action, others: Others = ()
    ) -> None:
        """Record a turn after `context` that never ended: it is not executed, and the value is 0."""
        outcome = Outcome(None, "user", False, action.fault)
        end = context.child(action, None, "user")
        self.transitions.append(Transition(sample, key, action, outcome, end, 0, None, others))
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
        known += [(each.key, each.outcome.fault if each.outcome else None) for each in self.transitions]
        steps = tuple(
            Step(c.action, key, c.observation, c.role, fault)
            for c, (key, fault) in zip(context.lineage()[1:], known, strict=True)
            if c.action is not None
        )
        return Trajectory(context, steps, verdict, True, False, "search")


def simulate(simulation: Simulation, opening: Opening, rules: RolloutRules) -> Generator[Request, Any, None]:
    """Run a simulation to its end: expand its node or execute its edge, then roll out and judge."""
    node, canonical = simulation.node, opening.canonical
    if simulation.draw:
        chosen = yield from _expand(simulation, canonical, rules)
        if chosen is None:
            return
        simulation.leaf = SharedLeaf(child_seed(node.seed, chosen[2]), 1)  # new, so not shared yet
    elif simulation.edge is not None:
        chosen = IN_TREE, simulation.edge.actions[0], simulation.edge.key
    else:
        chosen = None
    assert simulation.leaf is not None  # given at issue, or just now
    start = simulation.leaf.start()
    if chosen is not None:
        sample, action, key = chosen
        outcome = start.value
        if outcome is EMPTY and simulation.rank:
            outcome = yield (WAIT, start)
        elif outcome is EMPTY:
            outcome = yield from _execute(start, node.state, node.context, action)
        if _add_transition(simulation, sample, key, action, outcome, start, rules):
            return
    yield from _rollout(simulation, start, canonical, rules)


def _expand(
    simulation: Simulation, canonical: Canonical, rules: RolloutRules
) -> Generator[Request, Any, Choice | None]:
    """Draw proposals in one request, show them to the critic, and choose the new one to execute."""
    node = simulation.node
    answer = yield from _ask(proposals_request(simulation, rules))
    if isinstance(answer, PolicyError):
        simulation.end_by_policy(answer)
        return None
    new = sort_proposals(simulation, answer.actions, canonical)
    if rules.critic and (new or node.edges):
        actions = {edge.key: edge.actions[0] for edge in node.edges} | {key: entry[3] for key, entry in new.items()}
        question = (CRITICISE, node.context, list(actions.values()), mix(node.seed, -2 - len(actions)))
        for _ in range(1 + RETRIES):
            scores = yield question
            if scores is not None:
                simulation.critic = {key: s for key, s in zip(actions, scores, strict=True) if s is not None}
                break
    return choose(simulation, new)


def _rollout(
    simulation: Simulation, node: PendingNode, canonical: Canonical, rules: RolloutRules
) -> Generator[Request, Any, None]:
    """Follow the policy from an executed history to the end; what others executed on the way is shared.

    `rank` is the simulation's place among those that are at `node`: it takes sample number `rank`. Of those whose
    samples have the same key, the one of the lowest rank executes the action; the others wait, and go on together with
    new ranks in the same order.
    """
    rank = simulation.rank
    temperature = 0.0 if simulation.greedy else rules.temperature
    # Beside the greedy rollout one action is drawn at a time: at temperature 0 all samples are the same.
    beside_greedy = simulation.index < rules.plain_rollouts
    while True:
        width = 1 if beside_greedy else rules.rollout_proposals
        context = node.context
        assert context is not None  # a rollout starts at an executed history
        sample, others = rank, _NO_OTHERS
        future = node.sample(rank)
        action = future.value
        if 0 < rank < width:
            sample = IN_TREE  # rank 0 draws it in its own request, and commits it
            if action is EMPTY:
                action = yield (WAIT, future)
        elif action is EMPTY:
            seeds = draw_seeds(node.seed, rank, width if rank == 0 else 1)
            answer = yield from _ask(ProposeRequest(context, seeds, temperature, rules.max_tokens))
            drawn = answer.actions if type(answer) is Proposals else (answer,) * len(seeds)
            action = drawn[0]
            for number, each in enumerate(drawn, rank):
                future = node.sample(number)
                future.value = each
                if future.waiters:
                    yield (WAKE, future)
            if type(answer) is Proposals:
                others = tuple([(other, canonical(other)) for other in drawn[1:]])
        if isinstance(action, PolicyError):
            simulation.end_by_policy(action)
            return
        key = canonical(action)
        executed, ahead = action, 0
        for before in node.samples[:rank]:
            value = before.value
            if value is EMPTY:  # whether its key is the same decides who executes, so it has to be waited for
                value = yield (WAIT, before)
            if type(value) is Action and value.fault != "no_end" and canonical(value) == key:
                executed = value if ahead == 0 else executed
                ahead += 1
        if rank:
            first = node.samples[0].value
            beside_greedy = beside_greedy and type(first) is Action and canonical(first) == key
        if action.fault == "no_end":
            simulation.end_by_token_limit(context, sample, key, action, others)
            return
        child = node.children.get(key)
        if child is None:
            child = node.children[key] = PendingNode(child_seed(node.seed, key))
        outcome = child.value
        if outcome is EMPTY and ahead:
            outcome = yield (WAIT, child)
        elif outcome is EMPTY:
            outcome = yield from _execute(child, node.value.state, context, executed)
        if _add_transition(simulation, sample, key, action, outcome, child, rules, others):
            return
        node, rank = child, ahead


def _ask(request: ProposeRequest) -> Generator[Request, Any, Any]:
    """Return the policy's answer: `Proposals`, or the last `PolicyError`."""
    for _ in range(1 + RETRIES):
        answer = yield (ASK, request)
        if isinstance(answer, FINAL):
            break
    return answer


def _execute(reached: PendingNode, state: Any, context: Context, action: Action) -> Generator[Request, Any, Any]:
    """Execute an action after a history, and let those who wait for the history that it leads to go on."""
    outcome = yield (EXECUTE, state, action)
    if type(outcome) is Outcome:
        reached.context = context.child(action, outcome.observation, outcome.role)
    reached.value = outcome  # after the context: who sees the value uses both
    if reached.waiters:
        yield (WAKE, reached)
    return outcome


def _add_transition(
    simulation: Simulation,
    sample: int,
    key: str,
    action: Action,
    outcome: Outcome | EnvironmentFault,
    reached: PendingNode,
    rules: RolloutRules,
    others: Others = (),
) -> bool:
    """Record one action; return whether the simulation is over."""
    if isinstance(outcome, EnvironmentFault):
        simulation.transitions.append(Transition(sample, key, action, None, None, reached.seed, str(outcome), others))
        simulation.end_by_fault(outcome)
        return True
    context = reached.context
    assert context is not None  # set with the outcome
    simulation.transitions.append(Transition(sample, key, action, outcome, context, reached.seed, None, others))
    if outcome.terminated:
        simulation.judge(outcome.verdict, context, rules)
    elif context.depth >= rules.max_steps:
        simulation.cut, simulation.value = "max_steps", 0.0
    elif simulation.repeats(outcome.fingerprint, context.depth, rules):
        simulation.cut = "repeated"
    else:
        return False
    return True


def proposals_request(simulation: Simulation, rules: RolloutRules) -> ProposeRequest:
    """Return the request for the proposals that a simulation draws at its node."""
    node, draw = simulation.node, simulation.draw
    seeds = draw_seeds(node.seed, draw.start, len(draw))
    return ProposeRequest(node.context, seeds, rules.temperature, rules.max_tokens)


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
