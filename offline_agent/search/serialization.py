"""Trees and commits as JSON, and trees as networkx graphs. One form for the event log and for the tree files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from offline_agent.errors import DataError
from offline_agent.records import SCHEMA_VERSION, Action, Context, Task, ToolCall, Verdict
from offline_agent.search.in_flight import Link, Row, Ticket
from offline_agent.search.restore import Outcome, World
from offline_agent.search.tree import Edge, Node, SearchTree, observation_hash
from offline_agent.seeding import child_seed

if TYPE_CHECKING:
    import networkx as nx

_EDGE_FIELDS = (
    "key", "count", "logp", "prior", "visits", "value_sum", "verified", "score_sum", "successes", "truncated",
    "critic", "fault", "closed", "quarantined",
)  # fmt: skip
_NODE_FIELDS = (
    "samples", "duplicates", "visits", "value_sum", "terminated", "cut", "fingerprint", "goal",
    "closed", "greedy",
)  # fmt: skip
_TREE_FIELDS = ("simulations", "tickets", "stopped", "quarantined", "first_rollouts", "counters")


def action_to_json(action: Action) -> dict[str, Any]:
    """Return an action as JSON; fields that are empty are left out."""
    out: dict[str, Any] = {"text": action.text}
    if action.thought:
        out["thought"] = action.thought
    if action.call is not None:
        out["call"] = {"name": action.call.name, "arguments": dict(action.call.arguments)}
    if action.fault is not None:
        out["fault"], out["detail"] = action.fault, action.detail
    if action.token_ids is not None:
        out["ids"] = list(action.token_ids)
    if action.logps is not None:
        out["logps"] = list(action.logps)
    return out


def action_from_json(data: Mapping[str, Any]) -> Action:
    """Rebuild an action from `action_to_json`."""
    call = data.get("call")
    return Action(
        text=data["text"],
        thought=data.get("thought", ""),
        call=None if call is None else ToolCall(call["name"], call["arguments"]),
        fault=data.get("fault"),
        detail=data.get("detail"),
        token_ids=None if data.get("ids") is None else tuple(data["ids"]),
        logps=None if data.get("logps") is None else tuple(data["logps"]),
    )


# -- commits ---------------------------------------------------------------------------------------------------


def ticket_to_record(tree_id: str, ticket: Ticket) -> dict[str, Any]:
    """Return what a commit needs, apart from the tree it falls on; what has its usual value is left out."""
    record: dict[str, Any] = {"tree": tree_id, "t": ticket.index}
    if ticket.drawn:
        record["drawn"] = [[index, action_to_json(action), key] for index, action, key in ticket.drawn]
    if ticket.critic:
        record["critic"] = ticket.critic
    links = ticket.rows or ticket.chain
    if links:
        record["chain"] = chain = [_link_to_json(link) for link in links]
        if ticket.draw or ticket.edge is not None:
            del chain[0]["k"], chain[0]["a"]  # drawn just now, or the tree has it
    if ticket.value is not None:
        record["value"] = ticket.value
    if ticket.cut is not None:
        record["cut"] = ticket.cut
    if ticket.mismatch is not None:
        record["mismatch"] = ticket.mismatch
    if ticket.error is not None:
        record["error"] = ticket.error
    return record


def _seed_before(ticket: Ticket) -> int:
    """Return the seed of the history at which a ticket's chain begins; that of a link follows from it and the key."""
    if ticket.draw or ticket.edge is not None or ticket.group is None:
        return ticket.node.seed
    return ticket.group.seed


def _first_action(ticket: Ticket, sample: int) -> dict[str, Any]:
    """Return key and action of the first link where the record need not say them; empty otherwise."""
    if ticket.edge is not None:
        return {"k": ticket.edge.key, "a": ticket.edge.actions[0]}
    return next(({"k": key, "a": action} for index, action, key in ticket.drawn if index == sample), {})


def _link_to_json(link: Row) -> dict[str, Any]:
    sample, key, action, outcome, context, seed, reason, others = link
    out: dict[str, Any] = {"k": key, "a": action_to_json(action)}
    if sample:
        out["s"] = sample
    if not seed:
        out["seed"] = 0  # all others follow from the one before and the key
    if others:
        out["others"] = [[action_to_json(other), name] for other, name in others]
    if outcome is None:
        out["reason"] = reason
        return out
    observation, role, terminated, fault, verdict, fingerprint, goal, _ = outcome
    shown: dict[str, Any] = {}
    if observation is not None:
        shown["observation"] = observation
    if role != "tool":
        shown["role"] = role
    if terminated:
        shown["terminated"] = True
    if fault:
        shown["fault"] = fault
    if fingerprint:
        shown["fingerprint"] = fingerprint
    if goal:
        shown["goal"] = goal
    if verdict is not None:
        shown["verdict"] = _verdict_to_json(verdict)
    out["o"] = shown
    assert context is not None and context.action is not None  # it was executed
    if context.action is not action:
        out["executed"] = action_to_json(context.action)  # another simulation's wording of the same call
    return out


_USUAL_VERDICT: dict[str, Any] = {"version": "1", "evidence": {}, "error": None}


def _verdict_to_json(verdict: Verdict) -> dict[str, Any]:
    out: dict[str, Any] = {"verifier": verdict.verifier, "score": verdict.score, "success": verdict.success}
    if verdict.version != "1":
        out["version"] = verdict.version
    if verdict.evidence:
        out["evidence"] = dict(verdict.evidence)
    if verdict.error is not None:
        out["error"] = verdict.error
    return out


def ticket_from_record(ticket: Ticket, record: Mapping[str, Any], tree: SearchTree, world: World) -> None:
    """Put a logged result on a ticket that was issued again; states are rebuilt as handles, nothing is executed.

    Raises:
        DataError: The record is not one that `ticket_to_record` wrote.
    """
    try:
        ticket.drawn = [(i, action_from_json(a), key) for i, a, key in record.get("drawn", ())]
        ticket.critic = dict(record.get("critic", {}))
        ticket.cut, ticket.value = record.get("cut"), record.get("value")
        ticket.mismatch, ticket.error = record.get("mismatch"), record.get("error")
        state, context, node = ticket.node.state, ticket.node.context, ticket.node
        here: Node | None = node
        seed = _seed_before(ticket)
        for position, data in enumerate(record.get("chain", ())):
            if position == 0:
                data = {**_first_action(ticket, data.get("s", 0)), **data}
            link, state, context, here = _link_from_json(data, state, context, here, tree, world, seed)
            ticket.chain.append(link)
            seed = link.seed
        outcome = ticket.chain[-1].outcome if ticket.chain else None
        ticket.verdict = None if outcome is None else outcome.verdict
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"event {record.get('t')} of tree {tree.tree_id!r} is malformed: {error!r}") from error


def _link_from_json(
    data: Mapping[str, Any], state: Any, context: Context, here: Node | None, tree: SearchTree, world: World,
    before: int,
) -> tuple[Link, Any, Context, Node | None]:  # fmt: skip
    action = data["a"] if isinstance(data["a"], Action) else action_from_json(data["a"])
    sample, seed = data.get("s", 0), data.get("seed")
    if seed is None:
        seed = child_seed(before, data["k"])
    edge = None if here is None else tree.find(here, data["k"])
    if sample < 0 and edge is not None:
        action = edge.actions[0]
    shown = data.get("o")
    others = tuple([(action_from_json(other), key) for other, key in data.get("others", ())])
    if shown is None:
        link = Link(sample, data["k"], action, None, None, seed, data["reason"], others)
        return link, state, context, None
    shown = {"observation": None, "role": "tool", **shown}
    executed = action_from_json(data["executed"]) if "executed" in data else action
    known = None if edge is None else edge.child
    following = context.child(executed, shown["observation"], shown["role"])
    if known is not None and _equal(known.context, following):
        following, state, here = known.context, known.state, known
    elif action.fault == "no_end":  # not executed, so there is no state
        state, here = None, None
    else:
        state = world.remember(state, executed, shown["observation"], shown.get("fingerprint"))
        here = None
    verdict = shown.get("verdict")
    if verdict is not None:
        verdict = Verdict.from_json({**_USUAL_VERDICT, **verdict})
    outcome = Outcome(
        shown["observation"], shown["role"], bool(shown.get("terminated")), shown.get("fault"),
        verdict, shown.get("fingerprint"), shown.get("goal"), state,
    )  # fmt: skip
    link = Link(sample, data["k"], action, outcome, following, seed, None, others)
    return link, state, following, here


def _equal(one: Context, other: Context) -> bool:
    a, b = one.action, other.action
    return (
        one.parent is other.parent
        and one.observation == other.observation
        and a is not None
        and b is not None
        and a.text == b.text
        and a.token_ids == b.token_ids
    )


# -- trees -----------------------------------------------------------------------------------------------------


def tree_to_json(tree: SearchTree) -> dict[str, Any]:
    """Return the whole tree as networkx node-link JSON; the same tree gives the same bytes."""
    context = tree.root.context
    graph = {
        "schema_version": SCHEMA_VERSION,
        "tree_id": tree.tree_id,
        "task": {"task_id": tree.task.task_id, "split": tree.task.split, "args": dict(tree.task.args)},
        "system": context.system,
        "tools": list(context.tools),
        "low": tree.low if tree.low <= tree.high else None,
        "high": tree.high if tree.low <= tree.high else None,
        **{name: getattr(tree, name) for name in _TREE_FIELDS},
    }
    nodes = [_node_to_json(node) for node in tree.nodes]
    return {
        "directed": True,
        "multigraph": False,
        "graph": graph,
        "nodes": nodes + [_open_end(edge) for edge in tree.edges if edge.child is None],
        "edges": [_edge_to_json(edge) for edge in tree.edges],
    }


def _node_to_json(node: Node) -> dict[str, Any]:
    out: dict[str, Any] = {"id": node.id, "observation": node.context.observation, "role": node.context.role}
    out["observation_hash"] = observation_hash(node.context.observation)
    out |= {name: getattr(node, name) for name in _NODE_FIELDS}
    out["verdict"] = None if node.verdict is None else node.verdict.to_json()
    return out


def _open_end(edge: Edge) -> dict[str, Any]:
    return {"id": f"open-{edge.id}", "unexecuted": True}  # node-link JSON needs a target for every edge


def _edge_to_json(edge: Edge) -> dict[str, Any]:
    target = f"open-{edge.id}" if edge.child is None else edge.child.id
    out: dict[str, Any] = {"source": edge.parent.id, "target": target, "id": edge.id}
    out |= {name: getattr(edge, name) for name in _EDGE_FIELDS}
    out["actions"] = [action_to_json(action) for action in edge.actions]
    return out


def tree_from_json(data: Mapping[str, Any]) -> SearchTree:
    """Rebuild a tree from `tree_to_json`.

    Raises:
        DataError: Not a tree, or of another schema version.
    """
    graph = data.get("graph", {})
    if graph.get("schema_version") != SCHEMA_VERSION:
        got = graph.get("schema_version")
        raise DataError(f"a tree of schema version {got}, this version reads {SCHEMA_VERSION}: build it again")
    try:
        return _rebuild(graph, data)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"tree {graph.get('tree_id')!r} is malformed: {error!r}") from error


def _rebuild(graph: Mapping[str, Any], data: Mapping[str, Any]) -> SearchTree:
    task = Task(graph["task"]["task_id"], graph["task"]["split"], graph["task"]["args"])
    nodes = [entry for entry in data["nodes"] if not entry.get("unexecuted")]
    incoming = {entry["target"]: entry for entry in data["edges"]}
    tree = SearchTree(Context(task, graph["system"], graph["tools"], nodes[0]["observation"]), graph["tree_id"])
    for name in _TREE_FIELDS:
        setattr(tree, name, graph[name])
    if graph["low"] is not None:
        tree.low, tree.high = graph["low"], graph["high"]
    for entry in data["edges"]:
        tree.edges.append(Edge(entry["id"], tree.root, entry["key"]))
    for entry in nodes:
        if entry["id"]:
            edge = tree.edges[incoming[entry["id"]]["id"]]
            parent = tree.nodes[incoming[entry["id"]]["source"]]
            actions = [action_from_json(a) for a in incoming[entry["id"]]["actions"]]
            edge.actions = actions
            node = tree.add_child(edge, parent.context.child(actions[0], entry["observation"], entry["role"]))
        else:
            node = tree.root
        if "truncated" in entry:  # written before the limits of the policy were told apart
            entry = {"cut": "max_steps" if entry["truncated"] else None, **entry}
        for name in _NODE_FIELDS:
            setattr(node, name, entry[name])
        node.verdict = None if entry["verdict"] is None else Verdict.from_json(entry["verdict"])
    for entry, edge in zip(data["edges"], tree.edges, strict=True):
        edge.parent = tree.nodes[entry["source"]]
        edge.parent.edges.append(edge)
        for name in _EDGE_FIELDS:
            setattr(edge, name, entry[name])
        if not edge.actions:
            edge.actions = [action_from_json(a) for a in entry["actions"]]
    return tree


def tree_to_networkx(tree: SearchTree) -> nx.DiGraph:
    """Return the tree as a graph; attributes as in `tree_to_json` (visits, values by source, prior, verdict, …)."""
    import networkx

    graph: nx.DiGraph = networkx.node_link_graph(tree_to_json(tree), edges="edges")
    return graph


def write_graphml(tree: SearchTree, path: str) -> None:
    """Write the tree as GraphML; attributes that GraphML has no type for are written as JSON text."""
    import json

    import networkx

    graph = tree_to_networkx(tree)
    for attributes in [graph.graph, *(d for _, d in graph.nodes(data=True)), *(d for *_, d in graph.edges(data=True))]:
        for name, value in list(attributes.items()):
            if value is None:
                del attributes[name]
            elif not isinstance(value, str | int | float | bool):
                attributes[name] = json.dumps(value, sort_keys=True)
    networkx.write_graphml(graph, path)
