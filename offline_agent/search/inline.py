"""The fast path of a simulation that shares nothing, where policy and environment answer at once.

It makes the same requests as `simulation.simulate`, with the same seeds, and leaves the same results; tests compare the
trees of the two. It saves the shared histories and the way through the scheduler, and is kept for that alone: without
it `benchmarks/search_overhead.py` at 2,000 simulations takes 1.3 times as long with the event log, and
1.4 times as long without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from offline_agent.envs.pool import as_fault
from offline_agent.policies.base import Proposals, ProposeRequest
from offline_agent.records import Action, Context
from offline_agent.search.restore import Opening, Outcome
from offline_agent.search.simulation import (
    FINAL,
    IN_TREE,
    RETRIES,
    Choice,
    Others,
    RolloutRules,
    Simulation,
    Transition,
    choose,
    proposals_request,
    sort_proposals,
)
from offline_agent.seeding import child_seed, draw_seeds

_new = tuple.__new__  # makes a named tuple without its Python-level constructor


class InlineCalls(NamedTuple):
    """Calls that answer at once: `ask` returns `Proposals` or a `PolicyError`, `execute` is the environment's."""

    ask: Callable[[ProposeRequest], Any]
    execute: Callable[[Any, Action], Outcome]


def simulate_inline(simulation: Simulation, opening: Opening, rules: RolloutRules, calls: InlineCalls) -> bool:
    """Run a simulation to its end, where no other one in flight begins at the same new history.

    Returns:
        Whether it ran; False leaves it untouched, for `simulation.simulate`.
    """
    leaf = simulation.leaf
    # No other one joins later: where all answers come at once, simulations end in the order of issue.
    if rules.critic or (leaf is not None and leaf.size > 1):
        return False
    chosen: Choice | None = None
    seed = leaf.seed if leaf is not None else 0
    if simulation.draw:
        request = proposals_request(simulation, rules)
        answer = calls.ask(request)
        if type(answer) is not Proposals:
            answer = _ask_again(calls, request, answer)
        if type(answer) is not Proposals:
            simulation.end_by_policy(answer)
            return True
        chosen = choose(simulation, sort_proposals(simulation, answer.actions, opening.canonical))
        if chosen is None:
            return True
        seed = child_seed(simulation.node.seed, chosen[2])
    elif simulation.edge is not None:
        chosen = IN_TREE, simulation.edge.actions[0], simulation.edge.key
    _rollout(simulation, seed, chosen, opening, rules, calls)
    return True


def _rollout(
    simulation: Simulation, seed: int, chosen: Choice | None, opening: Opening, rules: RolloutRules, calls: InlineCalls
) -> None:
    """Execute `chosen`, or an action of the policy where it is None, and follow the policy to the end.

    `seed` is that of the history after `chosen`; without it, of the history at which the rollout starts.
    """
    ask, execute = calls
    context, state = simulation.node.context, simulation.node.state
    canonical, max_steps, max_tokens = opening.canonical, rules.max_steps, rules.max_tokens
    task, system, tools, transitions = context.task, context.system, context.tools, simulation.transitions
    temperature = 0.0 if simulation.greedy else rules.temperature
    width = 1 if simulation.index < rules.plain_rollouts else rules.rollout_proposals
    others: Others = ()
    watched = rules.known is not None
    while True:
        if chosen is not None:
            sample, action, key = chosen
            chosen = None
        else:
            seeds = (seed,) if width == 1 else draw_seeds(seed, 0, width)
            request = _new(ProposeRequest, (context, seeds, temperature, max_tokens))
            answer = ask(request)
            if type(answer) is not Proposals:
                answer = _ask_again(calls, request, answer)
                if type(answer) is not Proposals:
                    simulation.end_by_policy(answer)
                    return
            drawn = answer[0]
            sample, action = 0, drawn[0]
            key = canonical(action)
            if width > 1:
                others = tuple([(other, canonical(other)) for other in drawn[1:]])
            if action.fault == "no_end":
                simulation.end_by_token_limit(context, sample, key, action, others)
                return
            seed = child_seed(seed, key)
        try:
            outcome = execute(state, action)
        except BaseException as error:
            fault = as_fault(error)
            transitions.append(Transition(sample, key, action, None, None, seed, str(fault), others))
            simulation.end_by_fault(fault)
            return
        observation, role, terminated, _, verdict, fingerprint, _, state = outcome
        context = Context(task, system, tools, observation, context, action, role)
        transitions.append(_new(Transition, (sample, key, action, outcome, context, seed, None, others)))
        if terminated:
            simulation.judge(verdict, context, rules)
            return
        if context.depth >= max_steps:
            simulation.cut, simulation.value = "max_steps", 0.0
            return
        if watched and simulation.repeats(fingerprint, context.depth, rules):
            simulation.cut = "repeated"
            return


def _ask_again(calls: InlineCalls, request: ProposeRequest, answer: Any) -> Any:
    """Return the answer to a request that may have failed, sent again as often as `simulation.simulate` does."""
    for _ in range(RETRIES):
        if isinstance(answer, FINAL):
            break
        answer = calls.ask(request)
    return answer
