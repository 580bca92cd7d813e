"""One simulation as a coroutine: what it asks for, in which order, and what it hands to the tree at the end.

A simulation never touches the tree; it reads what the tree was when it was issued, and the results of its own
requests. Simulations in flight that pass through the same new history share its execution through `Shadow`s, and
wait for one another in the order in which they were issued, so nothing depends on who was faster.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from offline_agent.errors import ContextFull, EnvironmentFault, PolicyError
from offline_agent.policies.base import Proposals, ProposeRequest
from offline_agent.records import Action, Context, Step, Trajectory, Verdict
from offline_agent.search.in_flight import EMPTY, Group, Link, Others, Request, Rules, Shadow, Ticket
from offline_agent.search.restore import Opening, Outcome, ReplayMismatch
from offline_agent.search.tree import mean_logp
from offline_agent.seeding import child_seed, draw_seeds, mix

RETRIES = 3  # an outage of the policy must be told from a request it can never answer
FINAL = (Proposals, ContextFull)  # answers that asking again does not change

# What a simulation yields, as plain tuples (a named tuple costs as much to make as the rest of the exchange):
ASK = 0  # (ASK, ProposeRequest)                  answered with `Proposals` or a `PolicyError`
EXECUTE = 1  # (EXECUTE, state, action)           answered with an `Outcome` or an `EnvironmentFault`
WAIT = 2  # (WAIT, slot)                          answered with the slot's value, once another simulation filled it
WAKE = 3  # (WAKE, slot)                          answered at once; those who wait for the slot go on
CRITICISE = 4  # (CRITICISE, context, actions, seed)  answered with one score in [0, 1] or None per action,
#                                                or with None where the policy failed the critic


def simulate(ticket: Ticket, opening: Opening, rules: Rules) -> Generator[Request, Any, None]:
    """Run one simulation to its end; the results are left on the ticket."""
    canonical = opening.canonical
    node = ticket.node
    if not ticket.draw and ticket.edge is None:
        assert ticket.group is not None  # given at issue
        yield from _rollout(ticket, ticket.group.share(), canonical, rules)
        return
    if ticket.draw:
        picked = yield from _expand(ticket, canonical, rules)
        if picked is None:
            return
        sample, action, key = picked
        ticket.group = Group(child_seed(node.seed, key), 1)
    else:
        assert ticket.edge is not None  # looked at above
        sample, action, key = -1, ticket.edge.actions[0], ticket.edge.key
    assert ticket.group is not None  # given at issue, or just now
    shadow = ticket.group.share()
    outcome = shadow.value
    if outcome is EMPTY:
        if ticket.rank:
            outcome = yield (WAIT, shadow)
        else:
            outcome = yield (EXECUTE, node.state, action)
            if type(outcome) is Outcome:
                shadow.context = node.context.child(action, outcome.observation, outcome.role)
            shadow.value = outcome
            if shadow.waiters:
                yield (WAKE, shadow)
    if not _link(ticket, sample, key, action, outcome, shadow, rules):
        yield from _rollout(ticket, shadow, canonical, rules)


def _expand(
    ticket: Ticket, canonical: Callable[[Action], str], rules: Rules
) -> Generator[Request, Any, tuple[int, Action, str] | None]:
    """Draw proposals in one request and pick the new one to execute."""
    node = ticket.node
    request = proposals_of(ticket, rules)
    answer = yield (ASK, request)
    for _ in range(RETRIES):
        if isinstance(answer, FINAL):
            break
        answer = yield (ASK, request)
    if isinstance(answer, PolicyError):
        note_no_answer(ticket, answer)
        return None
    fresh = sort_drawn(ticket, answer.actions, canonical)
    if rules.critic and (fresh or node.edges):
        actions = {edge.key: edge.actions[0] for edge in node.edges} | {key: e[3] for key, e in fresh.items()}
        question = (CRITICISE, node.context, list(actions.values()), mix(node.seed, -2 - len(actions)))
        scores = yield question
        for _ in range(RETRIES):
            if scores is not None:
                break
            scores = yield question
        if scores is not None:
            ticket.critic = {key: s for key, s in zip(actions, scores, strict=True) if s is not None}
    return pick(ticket, fresh)


def proposals_of(ticket: Ticket, rules: Rules) -> ProposeRequest:
    """Return the request for the proposals that the ticket draws."""
    node, draw = ticket.node, ticket.draw
    seeds = draw_seeds(node.seed, draw.start, len(draw))
    return ProposeRequest(node.context, seeds, rules.temperature, rules.max_tokens)


Fresh = dict[str, tuple[int, float, int, Action]]
"""New actions by key: times drawn, best log-probability, minus the index of the first, the first."""


def sort_drawn(ticket: Ticket, actions: Sequence[Action], canonical: Callable[[Action], str]) -> Fresh:
    """Note on the ticket what was drawn; return what is new at its node and can be executed."""
    known = [edge.key for edge in ticket.node.edges]
    drawn: list[tuple[int, Action, str]] = []
    fresh: Fresh = {}
    for index, action in zip(ticket.draw, actions, strict=True):
        key = canonical(action)
        drawn.append((index, action, key))
        if key in known or action.fault == "no_end":
            continue
        logp = mean_logp(action)
        belief = float("-inf") if logp is None else logp
        if key in fresh:
            count, best, order, first = fresh[key]
            fresh[key] = (count + 1, max(best, belief), order, first)
        else:
            fresh[key] = (1, belief, -index, action)
    ticket.drawn = drawn
    return fresh


def pick(ticket: Ticket, fresh: Fresh) -> tuple[int, Action, str] | None:
    """Return the sample, action and key to execute: the critic's favourite, else the likeliest; None without any.

    Where all that is new is a turn that never ended, the simulation ends with it.
    """
    if not fresh:
        known = [edge.key for edge in ticket.node.edges]
        for index, action, key in ticket.drawn:
            if key not in known:
                note_no_end(ticket, ticket.node.context, index, key, action)
                return None
        ticket.cut = "duplicate"
        return None
    critic = ticket.critic
    if not critic:
        key = max(fresh, key=fresh.__getitem__)  # minus the index differs, so no two actions are compared
    else:
        usual = sum(critic.values()) / len(critic)  # no opinion speaks neither for nor against an action
        key = max(fresh, key=lambda k: (critic.get(k, usual), fresh[k][:3]))
    return -fresh[key][2], fresh[key][3], key


def _link(
    ticket: Ticket,
    sample: int,
    key: str,
    action: Action,
    outcome: Outcome | EnvironmentFault,
    shadow: Shadow,
    rules: Rules,
    others: Others = (),
) -> bool:
    """Note one executed action; return whether the simulation is over."""
    if isinstance(outcome, EnvironmentFault):
        ticket.chain.append(Link(sample, key, action, None, None, shadow.seed, str(outcome), others))
        note_fault(ticket, outcome)
        return True
    context = shadow.context
    assert context is not None  # set with the outcome
    ticket.chain.append(Link(sample, key, action, outcome, context, shadow.seed, None, others))
    if outcome.terminated:
        judge(ticket, outcome.verdict, context, rules)
        return True
    if context.depth >= rules.max_steps:
        ticket.cut, ticket.value = "max_steps", 0.0
        return True
    return False


def note_fault(ticket: Ticket, fault: EnvironmentFault) -> None:
    """Record that the environment could not execute the last action of the chain."""
    ticket.cut, ticket.error = "fault", str(fault)
    if isinstance(fault, ReplayMismatch):
        ticket.mismatch = fault.depth


def note_no_end(
    ticket: Ticket, context: Context, sample: int, key: str, action: Action, others: Others = ()
) -> None:
    """Record a turn after `context` that the token limit cut: it is not executed, and ends the simulation with 0."""
    outcome = Outcome(None, "user", False, action.fault)
    ticket.chain.append(Link(sample, key, action, outcome, context.child(action, None, "user"), 0, None, others))
    ticket.cut, ticket.value = "tokens", 0.0


def note_no_answer(ticket: Ticket, error: PolicyError) -> None:
    """Record that the policy gave no action: a full context is its failure, worth 0; anything else has no value."""
    ticket.error = str(error)
    if isinstance(error, ContextFull):
        ticket.cut, ticket.value = "context", 0.0
    else:
        ticket.cut = "policy"


def judge(ticket: Ticket, verdict: Verdict | None, context: Context, rules: Rules) -> None:
    """Turn the end state's verdict into the value that the ticket backs up, or into the reason why there is none."""
    ticket.verdict = verdict
    if verdict is None or verdict.score is None:
        ticket.cut = "unscored"
        ticket.error = "the environment gave no verdict" if verdict is None else verdict.error
    elif rules.reward is not None:
        ticket.value = rules.reward(_trajectory(ticket, context, verdict))
        if ticket.value is None:
            ticket.cut, ticket.error = "unscored", "the composite reward could not be computed"
    else:
        ticket.value = float(verdict.success or False) if rules.use_success else verdict.score


def _trajectory(ticket: Ticket, context: Context, verdict: Verdict) -> Trajectory:
    links = [(link.key, link.outcome.fault if link.outcome else None) for link in ticket.chain]
    known = [(edge.key, edge.fault) for edge in ticket.path] + links
    steps = tuple(
        Step(c.action, key, c.observation, c.role, fault)
        for c, (key, fault) in zip(context.lineage()[1:], known, strict=True)
        if c.action is not None
    )
    return Trajectory(context, steps, verdict, True, False, "search")


def _rollout(
    ticket: Ticket, shadow: Shadow, canonical: Callable[[Action], str], rules: Rules
) -> Generator[Request, Any, None]:
    """Follow the policy from `shadow` to the end; where others passed, share what they executed."""
    rank = ticket.rank
    temperature = 0.0 if ticket.greedy else rules.temperature
    beside_greedy = ticket.index < rules.beside_greedy  # where the greedy rollout passed it drew one action alone
    while True:
        together = 1 if beside_greedy else rules.together
        context = shadow.context
        assert context is not None  # a rollout starts at an executed history
        samples = shadow.samples
        slot = samples[rank] if rank < len(samples) else shadow.slot(rank)
        action, sample = slot.value, rank
        others: Others = ()
        if 0 < rank < together:
            sample = -1  # the first in this group draws it along with its own, and commits it
            if action is EMPTY:
                action = yield (WAIT, slot)
        elif action is EMPTY:
            count = together if rank == 0 else 1
            seeds = draw_seeds(shadow.seed, rank, count)
            request = ProposeRequest(context, seeds, temperature, rules.max_tokens)
            answer = yield (ASK, request)
            for _ in range(RETRIES):
                if isinstance(answer, FINAL):
                    break
                answer = yield (ASK, request)
            drawn = answer.actions if type(answer) is Proposals else (answer,) * count
            action = slot.value = drawn[0]
            if slot.waiters:
                yield (WAKE, slot)
            if count > 1:
                for i in range(1, count):
                    slot = shadow.slot(rank + i)
                    slot.value = drawn[i]
                    if slot.waiters:
                        yield (WAKE, slot)
                if type(answer) is Proposals:
                    others = tuple([(other, canonical(other)) for other in drawn[1:]])
        if isinstance(action, PolicyError):
            note_no_answer(ticket, action)
            return
        key = canonical(action)
        executed, ahead = action, 0
        if rank:
            for other in shadow.samples[:rank]:
                value = other.value
                if value is EMPTY:
                    value = yield (WAIT, other)
                if type(value) is Action and value.fault != "no_end" and canonical(value) == key:
                    executed = value if ahead == 0 else executed
                    ahead += 1
            first = samples[0].value
            beside_greedy = beside_greedy and type(first) is Action and canonical(first) == key
        if action.fault == "no_end":
            note_no_end(ticket, context, sample, key, action, others)
            return
        child = shadow.children.get(key)
        if child is None:
            child = shadow.children[key] = Shadow(child_seed(shadow.seed, key))
        outcome = child.value
        if outcome is EMPTY:
            if ahead:
                outcome = yield (WAIT, child)
            else:
                state = shadow.value.state
                outcome = yield (EXECUTE, state, action)
                if type(outcome) is Outcome:
                    child.context = context.child(executed, outcome.observation, outcome.role)
                child.value = outcome
                if child.waiters:
                    yield (WAKE, child)
        if _link(ticket, sample, key, action, outcome, child, rules, others):
            return
        shadow, rank = child, ahead
