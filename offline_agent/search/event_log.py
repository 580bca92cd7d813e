"""Simulations as records of the event log, and their results read back when a killed run goes on.

A record holds what the commit of one simulation needs beyond the tree; values that follow from the tree or from the
keys are left out. Actions, transitions, outcomes and verdicts are lists by position, which are built faster than
dictionaries. In these lists 0 stands for "none": a null would make the log check the whole record for NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from offline_agent.envs.play import ReplayMismatch
from offline_agent.errors import ContextFull, DataError, EnvironmentFault, PolicyError
from offline_agent.records import Action, Context, ToolCall, Verdict
from offline_agent.search.environment import Outcome, TaskEnvironment
from offline_agent.search.in_flight import IN_TREE, Canonical, PendingNode, Simulation, Transition
from offline_agent.search.nodes import Node, same_history
from offline_agent.search.tree import SearchTree
from offline_agent.seeding import child_seed

# -- writing -----------------------------------------------------------------------------------------------------------


def simulation_to_record(tree_id: str, simulation: Simulation) -> dict[str, Any]:
    """Return the record of a simulation that has run to its end."""
    record: dict[str, Any] = {"tree": tree_id, "t": simulation.index}
    if simulation.drawn:
        record["drawn"] = [[index, key, _action(action)] for index, action, key in simulation.drawn]
    if simulation.critic:
        record["critic"] = simulation.critic
    if simulation.transitions:
        known = bool(simulation.draw) or simulation.edge is not None  # drawn just now, or the tree has it
        record["chain"] = [_transition(each, known and not i) for i, each in enumerate(simulation.transitions)]
    if simulation.value is not None:
        record["value"] = simulation.value
    if simulation.cut is not None:
        record["cut"] = simulation.cut
    if simulation.mismatch is not None:
        record["mismatch"] = simulation.mismatch
    if simulation.error is not None:
        record["error"] = simulation.error
    return record


def _action(action: Action) -> list[Any]:
    call = action.call
    return [
        action.text, action.thought or 0, 0 if call is None else [call.name, dict(call.arguments)], action.fault or 0,
        action.detail or 0, 0 if action.token_ids is None else action.token_ids,
        0 if action.logps is None else action.logps, 0 if action.recorded is None else dict(action.recorded),
    ]  # fmt: skip


def _transition(transition: Transition, known: bool) -> list[Any]:
    """Return sample, key, action, outcome or the reason of a fault, the action in the words executed, 1 for no seed."""
    sample, action, reached = transition
    outcome = reached.outcome
    key, told = (0, 0) if known else (reached.key, _action(action))
    if isinstance(outcome, EnvironmentFault):
        return [sample, key, told, str(outcome), 0, 0]
    observation, role, over, fault, verdict, fingerprint, goal, _, anew = outcome
    shown = [
        0 if observation is None else observation, role, over, fault or 0, 0 if verdict is None else _verdict(verdict),
        0 if fingerprint is None else fingerprint, 0 if goal is None else goal, *([] if anew is None else [anew]),
    ]  # fmt: skip
    words = reached.context.action  # another simulation's, where that one executed the same call
    # no seed: of a turn that was not executed; all other seeds follow from the one before and the key
    return [sample, key, told, shown, 0 if words is action else _action(words), 0 if reached.seed else 1]


def _verdict(verdict: Verdict) -> list[Any]:
    evidence = dict(verdict.evidence) if verdict.evidence else 0
    return [verdict.score, verdict.success, verdict.verifier, verdict.version, evidence, verdict.error or 0]


# -- reading -----------------------------------------------------------------------------------------------------------


def simulation_from_record(
    simulation: Simulation, record: Mapping[str, Any], tree: SearchTree, environment: TaskEnvironment
) -> None:
    """Give a simulation that was issued again its logged result. Nothing is executed: states become handles only.

    Raises:
        DataError: The record is not one that `simulation_to_record` wrote.
    """
    try:
        simulation.drawn = [(index, _read_action(row), key) for index, key, row in record.get("drawn", ())]
        simulation.critic = dict(record.get("critic", {}))
        simulation.cut, simulation.value = record.get("cut"), record.get("value")
        simulation.mismatch, simulation.error = record.get("mismatch"), record.get("error")
        state, context = simulation.node.state, simulation.node.context
        here: Node | None = simulation.node
        seed = _seed_before(simulation)
        for sample, key, row, *rest in record.get("chain", ()):
            key, action = (key, _read_action(row)) if row else _known_action(simulation, sample)
            made = _read_transition(sample, key, action, rest, state, context, here, tree, environment, seed)
            transition, state, context, here = made
            simulation.transitions.append(transition)
            seed, simulation.verdict = transition.reached.seed, getattr(transition.reached.outcome, "verdict", None)
        if simulation.mismatch is not None and simulation.transitions:
            reached = simulation.transitions[-1].reached
            reached.outcome = ReplayMismatch.logged(str(reached.outcome), simulation.mismatch)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"event {record.get('t')} of tree {tree.tree_id!r} is malformed: {error!r}") from error


def _seed_before(simulation: Simulation) -> int:
    """Return the seed of the history at which the transitions begin."""
    if simulation.draw or simulation.edge is not None or simulation.leaf is None:
        return simulation.node.seed
    return simulation.leaf.start.seed


def _known_action(simulation: Simulation, sample: int) -> tuple[str, Action]:
    """Return key and action of a first transition, which the record leaves out."""
    if simulation.edge is not None:
        return simulation.edge.key, simulation.edge.actions[0]
    ((key, action),) = [(key, action) for index, action, key in simulation.drawn if index == sample]
    return key, action


def _read_action(row: Sequence[Any]) -> Action:
    text, thought, call, fault, detail, ids, logps, recorded = row
    return Action(
        text, thought or "", ToolCall(*call) if call else None, fault or None, detail or None,
        None if ids == 0 else tuple(ids), None if logps == 0 else tuple(logps), None if recorded == 0 else recorded,
    )  # fmt: skip


def _read_transition(
    sample: int, key: str, action: Action, rest: Sequence[Any], state: Any, context: Context, here: Node | None,
    tree: SearchTree, environment: TaskEnvironment, before: int,
) -> tuple[Transition, Any, Context, Node | None]:  # fmt: skip
    """Return one transition, and the state, history and node (None: not in the tree) that it leads to."""
    shown, words, unseeded = rest
    seed = 0 if unseeded else child_seed(before, key)
    edge = None if here is None else tree.find(here, key)
    if sample == IN_TREE and edge is not None:
        action = edge.actions[0]
    if isinstance(shown, str):
        fault = PendingNode(key, seed, EnvironmentFault(shown))
        return Transition(sample, action, fault), state, context, None
    values: list[Any] = [None if value == 0 else value for value in shown]
    observation, role, over, error, verdict, fingerprint, goal, *more = values
    anew = more[0] if more else None
    executed = _read_action(words) if words else action
    known = None if edge is None else edge.child
    following = context.child(executed, observation, role, anew=anew)
    if known is not None and same_history(known.context, following):
        following, state, here = known.context, known.state, known
    elif action.fault == "no_end":  # not executed, so there is no state
        state, here = None, None
    else:
        state = environment.remember(state, executed, observation, fingerprint)
        here = None
    judged = None if verdict is None else _read_verdict(verdict)
    outcome = Outcome(observation, role, bool(over), error, judged, fingerprint, goal, state, anew)
    return Transition(sample, action, PendingNode(key, seed, outcome, following)), state, following, here


def _read_verdict(row: Sequence[Any]) -> Verdict:
    score, success, verifier, version, evidence, error = row
    return Verdict(score, success, verifier, version, evidence or {}, error or None)


def restore_shared(simulation: Simulation, canonical: Canonical) -> None:
    """Give the simulations that share a logged simulation's leaf what it drew and executed.

    At the kill, some of those that shared a leaf were committed and logged, others still in flight. The latter are run
    again, and must find the samples and states of the former, which are not run again.
    """
    if simulation.leaf is None or simulation.draw:
        return
    node, rank = simulation.leaf.start, simulation.rank
    for position, (_, action, reached) in enumerate(simulation.transitions):
        if position == 0 and simulation.edge is not None:  # the tree's own action: it leads to the leaf itself
            child, ahead = node, rank
        else:
            node.samples.setdefault(rank, action)
            # As in `simulation.simulate`: the rank at the next history counts those before with the same key.
            before = [node.samples.get(lower) for lower in range(rank)]
            ahead = sum([isinstance(other, Action) and canonical(other) == reached.key for other in before])
            child = node.children.setdefault(reached.key, PendingNode(reached.key, reached.seed))
        if child.outcome is None:
            child.context, child.outcome = reached.context, reached.outcome
        node, rank = child, ahead
    if simulation.cut in ("policy", "context"):  # its request failed, and so do those that wait for its samples
        error = (ContextFull if simulation.cut == "context" else PolicyError)(str(simulation.error))
        node.samples.setdefault(rank, error)
