"""Simulations as records of the event log, and their results read back when a killed run goes on.

A record holds what the commit of one simulation needs beyond the tree; values that follow from the tree, from the keys
or from the defaults are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offline_agent.errors import ContextFull, DataError, EnvironmentFault, PolicyError
from offline_agent.records import Action, Context, Verdict
from offline_agent.search.environment import Outcome, TaskEnvironment
from offline_agent.search.in_flight import IN_TREE, Canonical, PendingNode, Simulation, Transition
from offline_agent.search.nodes import Node, same_history
from offline_agent.search.serialization import action_from_json, action_to_json
from offline_agent.search.tree import SearchTree
from offline_agent.seeding import child_seed

# -- writing -----------------------------------------------------------------------------------------------------------


def simulation_to_record(tree_id: str, simulation: Simulation) -> dict[str, Any]:
    """Return the record of a simulation that has run to its end."""
    record: dict[str, Any] = {"tree": tree_id, "t": simulation.index}
    if simulation.drawn:
        record["drawn"] = [[index, action_to_json(action), key] for index, action, key in simulation.drawn]
    if simulation.critic:
        record["critic"] = simulation.critic
    if simulation.transitions:
        known = bool(simulation.draw) or simulation.edge is not None  # drawn just now, or the tree has it
        record["chain"] = [_transition_to_json(each, known and not i) for i, each in enumerate(simulation.transitions)]
    if simulation.value is not None:
        record["value"] = simulation.value
    if simulation.cut is not None:
        record["cut"] = simulation.cut
    if simulation.mismatch is not None:
        record["mismatch"] = simulation.mismatch
    if simulation.error is not None:
        record["error"] = simulation.error
    return record


def _transition_to_json(transition: Transition, known: bool) -> dict[str, Any]:
    sample, action, reached = transition
    outcome = reached.outcome
    out: dict[str, Any] = {} if known else {"k": reached.key, "a": action_to_json(action)}
    if sample:
        out["s"] = sample
    if not reached.seed:
        out["seed"] = 0  # of a turn that was not executed; all other seeds follow from the one before and the key
    if isinstance(outcome, EnvironmentFault):
        out["reason"] = str(outcome)
        return out
    shown: dict[str, Any] = {}
    if outcome.observation is not None:
        shown["observation"] = outcome.observation
    if outcome.role != "tool":
        shown["role"] = outcome.role
    if outcome.terminated:
        shown["terminated"] = True
    if outcome.fault:
        shown["fault"] = outcome.fault
    if outcome.fingerprint:
        shown["fingerprint"] = outcome.fingerprint
    if outcome.goal:
        shown["goal"] = outcome.goal
    if outcome.verdict is not None:
        shown["verdict"] = _verdict_to_json(outcome.verdict)
    out["o"] = shown
    if reached.context.action is not action:
        out["executed"] = action_to_json(reached.context.action)  # another simulation's wording of the same call
    return out


def _verdict_to_json(verdict: Verdict) -> dict[str, Any]:
    out: dict[str, Any] = {"verifier": verdict.verifier, "score": verdict.score, "success": verdict.success}
    if verdict.version != "1":
        out["version"] = verdict.version
    if verdict.evidence:
        out["evidence"] = dict(verdict.evidence)
    if verdict.error is not None:
        out["error"] = verdict.error
    return out


# -- reading -----------------------------------------------------------------------------------------------------------


def simulation_from_record(
    simulation: Simulation, record: Mapping[str, Any], tree: SearchTree, environment: TaskEnvironment
) -> None:
    """Give a simulation that was issued again its logged result. Nothing is executed: states become handles only.

    Raises:
        DataError: The record is not one that `simulation_to_record` wrote.
    """
    try:
        simulation.drawn = [(i, action_from_json(a), key) for i, a, key in record.get("drawn", ())]
        simulation.critic = dict(record.get("critic", {}))
        simulation.cut, simulation.value = record.get("cut"), record.get("value")
        simulation.mismatch, simulation.error = record.get("mismatch"), record.get("error")
        state, context = simulation.node.state, simulation.node.context
        here: Node | None = simulation.node
        seed = _seed_before(simulation)
        for position, data in enumerate(record.get("chain", ())):
            if position == 0:
                data = {**_first_action(simulation, data.get("s", 0)), **data}
            made = _transition_from_json(data, state, context, here, tree, environment, seed)
            transition, state, context, here = made
            simulation.transitions.append(transition)
            seed, simulation.verdict = transition.reached.seed, getattr(transition.reached.outcome, "verdict", None)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"event {record.get('t')} of tree {tree.tree_id!r} is malformed: {error!r}") from error


def _seed_before(simulation: Simulation) -> int:
    """Return the seed of the history at which the transitions begin."""
    if simulation.draw or simulation.edge is not None or simulation.leaf is None:
        return simulation.node.seed
    return simulation.leaf.start.seed


def _first_action(simulation: Simulation, sample: int) -> dict[str, Any]:
    """Return key and action of the first transition where the record leaves them out; empty otherwise."""
    if simulation.edge is not None:
        return {"k": simulation.edge.key, "a": simulation.edge.actions[0]}
    return next(({"k": key, "a": action} for index, action, key in simulation.drawn if index == sample), {})


def _transition_from_json(
    data: Mapping[str, Any], state: Any, context: Context, here: Node | None, tree: SearchTree,
    environment: TaskEnvironment, before: int,
) -> tuple[Transition, Any, Context, Node | None]:  # fmt: skip
    """Return one transition, and the state, history and node (None: not in the tree) that it leads to."""
    key, action = data["k"], data["a"] if isinstance(data["a"], Action) else action_from_json(data["a"])
    sample, seed = data.get("s", 0), data.get("seed")
    if seed is None:
        seed = child_seed(before, key)
    edge = None if here is None else tree.find(here, key)
    if sample == IN_TREE and edge is not None:
        action = edge.actions[0]
    shown = data.get("o")
    if shown is None:
        fault = PendingNode(key, seed, EnvironmentFault(data["reason"]))
        return Transition(sample, action, fault), state, context, None
    shown = {"observation": None, "role": "tool", **shown}
    executed = action_from_json(data["executed"]) if "executed" in data else action
    known = None if edge is None else edge.child
    following = context.child(executed, shown["observation"], shown["role"])
    if known is not None and same_history(known.context, following):
        following, state, here = known.context, known.state, known
    elif action.fault == "no_end":  # not executed, so there is no state
        state, here = None, None
    else:
        state = environment.remember(state, executed, shown["observation"], shown.get("fingerprint"))
        here = None
    verdict = shown.get("verdict")
    if verdict is not None:
        verdict = Verdict(**verdict)
    outcome = Outcome(
        shown["observation"], shown["role"], bool(shown.get("terminated")), shown.get("fault"),
        verdict, shown.get("fingerprint"), shown.get("goal"), state,
    )  # fmt: skip
    return Transition(sample, action, PendingNode(key, seed, outcome, following)), state, following, here


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
        if child.outcome is None and not isinstance(reached.outcome, EnvironmentFault):
            child.context, child.outcome = reached.context, reached.outcome
        node, rank = child, ahead
    if simulation.cut in ("policy", "context"):  # its request failed, and so do those that wait for its samples
        error = (ContextFull if simulation.cut == "context" else PolicyError)(str(simulation.error))
        node.samples.setdefault(rank, error)
