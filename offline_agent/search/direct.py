"""A simulation that shares nothing and waits for nobody: played in one go.

Where policy and environment answer at once, nearly all simulations are such. `play` makes the requests that
`simulation.simulate` would make, with the same seeds, and leaves the same results on the ticket; tests hold the two to
the same trees. What it saves is what sharing costs: shadows, slots and the way through the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from offline_agent.envs.pool import as_fault
from offline_agent.policies.base import Proposals, ProposeRequest
from offline_agent.records import Action, Context
from offline_agent.search.in_flight import Others, Rules, Ticket
from offline_agent.search.restore import Opening, Outcome
from offline_agent.search.simulation import (
    FINAL,
    RETRIES,
    judge,
    note_fault,
    note_no_answer,
    note_no_end,
    pick,
    proposals_of,
    sort_drawn,
)
from offline_agent.seeding import child_seed, draw_seeds

_new = tuple.__new__  # makes a named tuple without the detour through its Python-level constructor


class Direct(NamedTuple):
    """Calls that answer at once: `ask` returns `Proposals` or a `PolicyError`, `execute` is the world's."""

    ask: Callable[[ProposeRequest], Any]
    execute: Callable[[Any, Action], Outcome]


def is_alone(ticket: Ticket) -> bool:
    """Whether no other simulation in flight begins at the same new history."""
    group = ticket.group
    return group is None or group.size == 1


def play(ticket: Ticket, opening: Opening, rules: Rules, direct: Direct) -> None:
    """Run one simulation that is alone to its end; the results are left on the ticket."""
    node, edge = ticket.node, ticket.edge
    if edge is not None:
        assert ticket.group is not None  # given at issue
        first = -1, edge.actions[0], edge.key
        _follow(ticket, node.context, node.state, ticket.group.seed, first, opening, rules, direct)
    elif ticket.draw:
        request = proposals_of(ticket, rules)
        answer = direct.ask(request)
        if not isinstance(answer, FINAL):
            answer = _ask_again(direct, request)
        if type(answer) is not Proposals:
            note_no_answer(ticket, answer)
            return
        picked = pick(ticket, sort_drawn(ticket, answer.actions, opening.canonical))
        if picked is not None:
            seed = child_seed(node.seed, picked[2])
            _follow(ticket, node.context, node.state, seed, picked, opening, rules, direct)
    else:
        assert ticket.group is not None  # given at issue
        _follow(ticket, node.context, node.state, ticket.group.seed, None, opening, rules, direct)


def _ask_again(direct: Direct, request: ProposeRequest) -> Any:
    answer = None
    for _ in range(RETRIES):
        answer = direct.ask(request)
        if isinstance(answer, FINAL):
            break
    return answer


def _follow(
    ticket: Ticket,
    context: Context,
    state: Any,
    seed: int,
    first: tuple[int, Action, str] | None,
    opening: Opening,
    rules: Rules,
    direct: Direct,
) -> None:
    """Execute `first`, and then what the policy says, to the end.

    Args:
        ticket: Gets the results.
        context, state: Where it starts.
        seed: Of what follows `first`; without it, of the start.
        first: Sample, action and key to begin with; None asks the policy from the start.
        opening, rules, direct: See `play`.
    """
    ask, execute = direct
    canonical, max_steps, max_tokens = opening.canonical, rules.max_steps, rules.max_tokens
    task, system, tools, rows = context.task, context.system, context.tools, ticket.rows
    temperature = 0.0 if ticket.greedy else rules.temperature
    together = 1 if ticket.index < rules.beside_greedy else rules.together
    others: Others = ()
    while True:
        if first is not None:
            sample, action, key = first
            first = None
        else:
            seeds = (seed,) if together == 1 else draw_seeds(seed, 0, together)
            request = _new(ProposeRequest, (context, seeds, temperature, max_tokens))
            answer = ask(request)
            if type(answer) is not Proposals:
                if not isinstance(answer, FINAL):
                    answer = _ask_again(direct, request)
                if type(answer) is not Proposals:
                    note_no_answer(ticket, answer)
                    return
            drawn = answer[0]
            sample, action = 0, drawn[0]
            key = canonical(action)
            if together > 1:
                others = tuple([(other, canonical(other)) for other in drawn[1:]])
            if action.fault == "no_end":
                note_no_end(ticket, context, sample, key, action, others)
                return
            seed = child_seed(seed, key)
        try:
            outcome = execute(state, action)
        except BaseException as error:
            fault = as_fault(error)
            rows.append((sample, key, action, None, None, seed, str(fault), others))
            note_fault(ticket, fault)
            return
        observation, role, terminated, _, verdict, _, _, state = outcome
        context = Context(task, system, tools, observation, context, action, role)
        rows.append((sample, key, action, outcome, context, seed, None, others))
        if terminated:
            judge(ticket, verdict, context, rules)
            return
        if context.depth >= max_steps:
            ticket.cut, ticket.value = "max_steps", 0.0
            return
