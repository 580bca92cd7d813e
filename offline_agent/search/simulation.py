"""One simulation: expansion, rollout and judgement, from the leaf of the tree to the end of the episode.

`simulate` never changes the tree. It reads the tree as it was when the simulation was issued, collects its results on a
`Simulation`, and `backup` applies them later, in the order of issue.

It is a coroutine, because the policy and the environment may answer late. Simulations in flight that reach the same new
history share it (`in_flight`): the one with the lowest rank draws and executes, the others wait for it. Ranks follow
the order of issue, never the order of answers, so the result does not depend on the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from offline_agent.errors import PolicyError
from offline_agent.policies.base import Proposals, ProposeRequest
from offline_agent.records import Action, Context
from offline_agent.search.environment import Outcome
from offline_agent.search.in_flight import (
    IN_TREE,
    Canonical,
    Choice,
    NewActions,
    PendingNode,
    RolloutRules,
    SharedLeaf,
    Simulation,
    Transition,
)
from offline_agent.search.nodes import mean_logp
from offline_agent.seeding import child_seed, draw_seed, mix

LATER: Any = object()  # in place of an answer that is not there yet


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


def simulate(
    simulation: Simulation, canonical: Canonical, rules: RolloutRules, calls: Calls
) -> Generator[None, Any, None]:
    """Run a simulation to its end: expand its node or execute its edge, then follow the policy.

    At each history it has a rank among the simulations that share it, and takes the sample of that number. Of those
    whose samples have the same key, the one of the lowest rank executes the action; the others wait, and go on together
    with new ranks in the same order.
    """
    node = simulation.node
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
    temperature = 0.0 if simulation.greedy else rules.settings.temperature
    while True:
        if action is not None:
            while ahead and reached.outcome is None:
                reached.waiters = [*reached.waiters, simulation]
                yield
            if reached.outcome is None:
                outcome = calls.execute(simulation, state, executed)
                if outcome is LATER:
                    outcome = yield
                if type(outcome) is Outcome:
                    reached.context = context.child(executed, outcome.observation, outcome.role, anew=outcome.anew)
                reached.outcome = outcome
                if reached.waiters:
                    calls.wake(reached)
            if simulation.add(Transition(sample, action, reached), rules):
                return
        here, sample, state, context = reached, ahead, reached.outcome.state, reached.context
        seeds = (draw_seed(here.seed, sample),)
        answer = calls.ask(simulation, ProposeRequest(context.shown, seeds, temperature, rules.settings.max_tokens))
        if answer is LATER:
            answer = yield
        here.samples[sample] = action = answer.actions[0] if type(answer) is Proposals else answer
        if here.waiters:
            calls.wake(here)
        if isinstance(action, PolicyError):
            simulation.end_by_policy(action)
            return
        key, executed, ahead = canonical(action), action, 0
        if sample:
            executed, ahead = yield from _those_ahead(simulation, here, sample, action, canonical)
        if action.fault == "no_end":
            simulation.end_by_token_limit(context, sample, key, action)
            return
        if key not in here.children:
            here.children[key] = PendingNode(key, child_seed(here.seed, key))
        reached = here.children[key]


def _expand(
    simulation: Simulation, canonical: Canonical, rules: RolloutRules, calls: Calls
) -> Generator[None, Any, Choice | None]:
    """Draw proposals in one request, show them to the critic, and choose the new one to execute."""
    node, draw = simulation.node, simulation.draw
    seeds = tuple([draw_seed(node.seed, index) for index in draw])
    request = ProposeRequest(node.context.shown, seeds, rules.settings.temperature, rules.settings.max_tokens)
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


def _those_ahead(
    simulation: Simulation, node: PendingNode, rank: int, action: Action, canonical: Canonical
) -> Generator[None, Any, tuple[Action, int]]:
    """Return what is executed for an action, and how many of lower rank have its key."""
    key, same = canonical(action), []
    for lower in range(rank):
        while lower not in node.samples:  # whether its key is the same decides who executes, so it has to be waited for
            node.waiters = [*node.waiters, simulation]
            yield
        value = node.samples[lower]
        if type(value) is Action and value.fault != "no_end" and canonical(value) == key:
            same.append(value)
    return same[0] if same else action, len(same)


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
