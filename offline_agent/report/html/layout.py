"""Places of a tree's nodes in a drawing: depth from left to right, leaves one below the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def places(children: Mapping[int, Sequence[int]], root: int = 0) -> dict[int, tuple[int, float]]:
    """Return (depth, row) of every node: each leaf has a row of its own, a parent is midway between its outer children.

    Edges do not cross, and the drawing of a subtree does not depend on the rest of the tree.

    Args:
        children: The children of each node in order; nodes without any may be absent.
        root: The root.
    """
    out: dict[int, tuple[int, float]] = {}
    depths, leaves = {root: 0}, 0
    stack = [(root, False)]
    while stack:
        node, after = stack.pop()
        below = children.get(node, ())
        if after:
            out[node] = depths[node], (out[below[0]][1] + out[below[-1]][1]) / 2
        elif below:
            stack.append((node, True))
            for child in reversed(below):
                depths[child] = depths[node] + 1
                stack.append((child, False))
        else:
            out[node] = depths[node], float(leaves)
            leaves += 1
    return out
