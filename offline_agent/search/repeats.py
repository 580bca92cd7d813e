"""States that a tree has already: fingerprints of its nodes, and the depth at which each was first reached.

An action that leads to a known state, in no fewer steps than before, finds nothing that the search cannot find from
there. Where `search.repeated_states=close`, a simulation ends at such a state, and the edge that led to it is closed.
"""

from __future__ import annotations


class KnownStates:
    """Fingerprints of a tree's states, each with the depths and the times at which it was reached.

    A simulation may look at any time while it runs, but must see what was there at its issue: otherwise the tree would
    depend on how many others were finished by then. So every state is kept with the number of commits before it.
    """

    __slots__ = ("_reached",)

    def __init__(self) -> None:
        self._reached: dict[str, list[tuple[int, int]]] = {}  # (commits, depth), later and less deep

    def add(self, fingerprint: str | None, depth: int, commits: int) -> None:
        """Add a state that a commit found.

        Args:
            fingerprint: The environment's hash of it; None, where it offers none, adds nothing.
            depth: Number of actions that led to it.
            commits: Number of commits of the tree, this one included.
        """
        if fingerprint is None:
            return
        reached = self._reached.setdefault(fingerprint, [])
        if not reached or depth < reached[-1][1]:
            reached.append((commits, depth))

    def has(self, fingerprint: str | None, depth: int, commits: int) -> bool:
        """Return whether the first `commits` commits found this state with at most `depth` actions."""
        if fingerprint is None:
            return False
        return any([known <= commits and least <= depth for known, least in self._reached.get(fingerprint, ())])
