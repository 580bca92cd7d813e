"""Views of one search tree, for the page and the terminal: its drawing, and what is known of each node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from offline_agent.report.html.text import brief, call_text, number, percent, pretty, turn

COLUMN, ROW, MARGIN = 150, 22, 28
"""Pixels between two depths and between two leaves of a drawing, and at its edges."""
DRAWN, LISTED = 21, 80
"""Characters of an action beside a node of a drawing, and in a list."""


def view(
    data: Mapping[str, Any],
    number_: int,
    of_node: Mapping[tuple[str, int], Sequence[Mapping[str, Any]]],
    shown: Mapping[tuple[str, int], Sequence[int]],
) -> dict[str, Any]:
    """Return what the template of a tree needs.

    Args:
        data: The tree as in its file.
        number_: Its number on the page.
        of_node: Light columns of the pairs by (tree, node).
        shown: Numbers of the pairs that the page shows, by (tree, node).
    """
    graph = data["graph"]
    nodes = {node["id"]: node for node in data["nodes"] if not node.get("unexecuted")}
    incoming = {edge["target"]: edge for edge in data["edges"]}
    outgoing: dict[int, list[Mapping[str, Any]]] = {}
    for edge in data["edges"]:
        outgoing.setdefault(edge["source"], []).append(edge)
    children = {name: [edge["target"] for edge in edges if edge["target"] in nodes] for name, edges in outgoing.items()}
    where = places({name: below for name, below in children.items() if below})
    most = max((node["visits"] for node in nodes.values()), default=1) or 1
    tree_id, pairs_at = graph["tree_id"], {}
    for name in nodes:
        if found := of_node.get((tree_id, name)):
            pairs_at[name] = [_pair_line(row) for row in found]
    drawn = [
        _drawn(node, incoming.get(name), where[name], most, name in pairs_at)
        for name, node in nodes.items()
        if name in where
    ]
    at = {one["id"]: one for one in drawn}
    lines = [
        {"x1": at[edge["source"]]["x"], "y1": at[edge["source"]]["y"], "x2": at[name]["x"], "y2": at[name]["y"],
         "width": 0.6 + 3.4 * (edge["visits"] / most) ** 0.5}
        for name, edge in incoming.items() if name in at
    ]  # fmt: skip
    panels = {
        name: _panel(node, incoming.get(name), outgoing.get(name, ()), nodes, graph if name == 0 else None)
        | {"pairs": pairs_at.get(name, []), "shown_pairs": shown.get((tree_id, name), [])}
        for name, node in nodes.items()
    }
    ends = [node for node in nodes.values() if node["terminated"] or node["cut"]]
    won = sum(bool((node["verdict"] or {}).get("success")) for node in ends)
    return {
        "number": number_,
        "id": tree_id,
        "words": f"{len(nodes):,} nodes, {graph['simulations']:,} simulations; {won:,} of {len(ends):,} ends solved",
        "stopped": graph["stopped"],
        "quarantined": graph["quarantined"],
        "tools": pretty(graph["tools"]),
        "drawn": drawn,
        "lines": lines,
        "width": 2 * MARGIN + COLUMN * (max((one["depth"] for one in drawn), default=0) + 1),
        "height": 2 * MARGIN + ROW * max((one["row"] for one in drawn), default=0),
        "panels": panels,
        "outline": list(_outline(children)),
    }


def _drawn(
    node: Mapping[str, Any], edge: Mapping[str, Any] | None, place: tuple[int, float], most: int, pairs: bool
) -> dict[str, Any]:
    depth, row = place
    source = node if edge is None else edge
    value = _ratio(source["value_sum"], source["visits"])
    label = "start" if edge is None else action_label(edge)
    state = end_of(node)
    shown = "" if value is None else f", Q {number(value)}"
    quarantined = edge is not None and edge["quarantined"] is not None
    return {
        "id": node["id"],
        "depth": depth,
        "row": row,
        "x": MARGIN + COLUMN * depth,
        "y": MARGIN + ROW * row,
        "r": round(3.5 + 6.5 * (node["visits"] / most) ** 0.5, 1),
        "short": brief(label, DRAWN),
        "state": "quarantined" if quarantined else state,
        "pairs": pairs,
        "value": None if value is None else round(value, 3),
        "says": f"node {node['id']}, {label}, {_times(node['visits'], 'visit')}{shown}"
        + (f", {STATES[state]}" if state != "open" else "")
        + (", in quarantine" if quarantined else "")
        + (", gave pairs" if pairs else ""),
    }


STATES = {
    "open": "goes on", "solved": "solved", "failed": "not solved", "cut": "cut by a limit", "unjudged": "unjudged",
}  # fmt: skip
"""How a node ends, in words."""


def end_of(node: Mapping[str, Any]) -> str:
    """Return how the episode stands at a node, one of `STATES`."""
    if node["cut"]:
        return "cut"
    if not node["terminated"]:
        return "open"
    success = (node["verdict"] or {}).get("success")
    return "unjudged" if success is None else "solved" if success else "failed"


def _verified(edge: Mapping[str, Any]) -> float | None:
    """Return the mean of the verifier's scores below an edge."""
    return _ratio(edge["score_sum"], edge["verified"])


def action_label(edge: Mapping[str, Any]) -> str:
    """Return an action as code, or the text of a turn without a call."""
    if not edge["actions"]:
        return str(edge["key"])
    action = edge["actions"][0]
    call = action.get("call")
    return call_text(call["name"], call["arguments"]) if call is not None else str(action["text"] or "(empty turn)")


def message_of(action: Mapping[str, Any]) -> dict[str, Any]:
    """Return an action as a message."""
    if action.get("recorded") is not None:
        return dict(action["recorded"])
    if action.get("call") is None:
        return {"role": "assistant", "content": action["text"]}
    return {"role": "assistant", "content": action.get("thought", ""), "tool_calls": [{"function": action["call"]}]}


def _panel(
    node: Mapping[str, Any],
    edge: Mapping[str, Any] | None,
    out: Sequence[Mapping[str, Any]],
    nodes: Mapping[int, Any],
    graph: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the panel of a node: the turn that leads here and its answer, figures, proposals, verdict."""
    turns = []
    if graph is not None and graph["system"] and node.get("recorded") is None:
        turns.append(turn({"role": "system", "content": graph["system"]}))
    if edge is not None and edge["actions"]:
        turns.append(turn(message_of(edge["actions"][0])))
    if node.get("recorded") is not None:
        turns += [turn(message) for message in node["recorded"]]
    elif node["observation"] is not None:
        turns.append(turn({"role": node["role"], "content": node["observation"], "anew": node.get("anew")}))
    label = "start" if edge is None else action_label(edge)
    return {
        "id": node["id"],
        "parent": None if edge is None else edge["source"],
        "label": label,
        "short": brief(label, LISTED),
        "turns": turns,
        "state": end_of(node),
        "ends": STATES[end_of(node)] + (f": {node['cut']}" if node["cut"] else ""),
        "figures": list(_figures(node, edge)),
        "proposals": [_proposal(one, nodes) for one in sorted(out, key=lambda one: (-one["visits"], one["id"]))],
        "verdict": None if node["verdict"] is None else _verdict(node["verdict"]),
    }


def _verdict(verdict: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "by": f"{verdict['verifier']} (version {verdict['version']})",
        "score": number(verdict["score"]),
        "success": verdict["success"],
        "error": verdict["error"],
        "evidence": pretty(verdict["evidence"]) if verdict["evidence"] else "",
    }


def _figures(node: Mapping[str, Any], edge: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    yield "visits", number(node["visits"])
    if edge is None:
        yield "value", number(_ratio(node["value_sum"], node["visits"]))
    else:
        yield "Q, all", number(_ratio(edge["value_sum"], edge["visits"]))
        yield "Q, verifier", f"{number(_verified(edge))} of {edge['verified']}"
        yield "solved", f"{edge['successes']} of {edge['verified'] + edge['truncated']}"
        if edge["critic"] is not None:
            yield "critic", number(edge["critic"])
        yield "prior", number(edge["prior"])
        if edge["logp"] is not None:
            yield "log-prob. a token", number(edge["logp"])
        yield "proposed", _times(edge["count"], "time")
        if edge["fault"]:
            yield "answered with", str(edge["fault"])
        if edge["quarantined"] is not None:
            yield "in quarantine", str(edge["quarantined"])
    if node["closed"]:
        yield "closed", "nothing below is left to learn"


def _proposal(edge: Mapping[str, Any], nodes: Mapping[int, Any]) -> dict[str, Any]:
    """Return a line of the table of proposals; the whole text is there where no node has it."""
    child = edge["target"] if edge["target"] in nodes else None
    return {
        "child": child,
        "label": brief(action_label(edge), LISTED),
        "text": edge["actions"][0]["text"] if child is None and edge["actions"] else None,
        "prior": percent(edge["prior"]),
        "visits": number(edge["visits"]),
        "value": number(_ratio(edge["value_sum"], edge["visits"])),
        "verifier": number(_verified(edge)),
        "count": edge["count"],
        "fault": edge["fault"],
    }


def _pair_line(row: Mapping[str, Any]) -> str:
    sure = "" if row["confidence"] is None else f", P(better) {number(row['confidence'], 3)}"
    return (
        f"{row['kind']}: edge {row['chosen_edge']} before edge {row['rejected_edge']}, "
        f"{number(row['q_chosen'])} against {number(row['q_rejected'])}{sure}"
    )


def _outline(children: Mapping[int, Sequence[int]]) -> Iterator[tuple[str, int]]:
    """Yield ("open", node) and ("close", node) in depth-first order."""
    stack: list[tuple[str, int]] = [("open", 0)]
    while stack:
        word, node = stack.pop()
        yield word, node
        if word == "open":
            stack.append(("close", node))
            stack += [("open", child) for child in reversed(children.get(node, ()))]


def _ratio(total: float, count: int) -> float | None:
    return total / count if count else None


def _times(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def places(children: Mapping[int, Sequence[int]]) -> dict[int, tuple[int, float]]:
    """Return (depth, row) of every node: each leaf has a row of its own, a parent is midway between its outer children.

    Edges do not cross, and the drawing of a subtree does not depend on the rest of the tree.

    Args:
        children: The children of each node in order; nodes without any may be absent. The root is 0.
    """
    out: dict[int, tuple[int, float]] = {}
    depth = leaves = 0
    for word, node in _outline(children):
        if word == "open":
            depth += 1
            continue
        depth -= 1
        if below := children.get(node):
            out[node] = depth, (out[below[0]][1] + out[below[-1]][1]) / 2
        else:
            out[node] = depth, float(leaves)
            leaves += 1
    return out
