"""Trees as JSON and as networkx graphs; actions as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from offline_agent.errors import DataError
from offline_agent.records import SCHEMA_VERSION, Action, Context, Recorded, Task, ToolCall, Verdict
from offline_agent.search.nodes import observation_hash
from offline_agent.search.tree import Edge, Node, SearchTree

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
_TREE_FIELDS = {  # key in the file -> attribute
    "simulations": "simulations", "tickets": "commits", "stopped": "stopped", "quarantined": "quarantined",
    "first_rollouts": "first_rollouts", "counters": "counters",
}  # fmt: skip


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
    if action.recorded is not None:
        out["recorded"] = dict(action.recorded)
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
        recorded=data.get("recorded"),
    )


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
        **{key: getattr(tree, name) for key, name in _TREE_FIELDS.items()},
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
    if node.context.recorded is not None:
        out["recorded"] = list(node.context.recorded)
        if node.context.recorded.ids is not None:
            out["recorded_ids"] = list(node.context.recorded.ids)
        if node.context.recorded.whole:
            out["recorded_whole"] = True
    if node.context.anew is not None:
        out["anew"] = node.context.anew
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
    root = Context(task, graph["system"], graph["tools"], nodes[0]["observation"], recorded=_recorded(nodes[0]))
    tree = SearchTree(root, graph["tree_id"])
    for key, name in _TREE_FIELDS.items():
        setattr(tree, name, graph[key])
    if graph["low"] is not None:
        tree.low, tree.high = graph["low"], graph["high"]
    for entry in data["edges"]:  # before the nodes, which name them; their parents follow below
        tree.edges.append(Edge(entry["id"], tree.root, entry["key"]))
    for entry in nodes:
        if entry["id"]:
            edge = tree.edges[incoming[entry["id"]]["id"]]
            parent = tree.nodes[incoming[entry["id"]]["source"]]
            actions = [action_from_json(a) for a in incoming[entry["id"]]["actions"]]
            edge.actions = actions
            shown = (entry["observation"], entry["role"], _recorded(entry), entry.get("anew"))
            context = parent.context.child(actions[0], *shown)
            node = tree.add_child(edge, context)
        else:
            node = tree.root
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


def _recorded(entry: Mapping[str, Any]) -> Recorded | None:
    messages = entry.get("recorded")
    return None if messages is None else Recorded.of(messages, entry.get("recorded_ids"), "recorded_whole" in entry)


def tree_to_networkx(tree: SearchTree) -> nx.DiGraph:
    """Return the tree as a graph; attributes as in `tree_to_json` (visits, values by source, prior, verdict, …)."""
    import networkx

    graph: nx.DiGraph = networkx.node_link_graph(tree_to_json(tree), edges="edges")
    return graph
