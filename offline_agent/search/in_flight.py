"""What a simulation in flight carries: the ticket itself, what it shares with others, and what it did.

Nothing here asks, executes or waits; see `simulation` for that, and `commit` for what becomes of a finished ticket.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from offline_agent.records import Action, Context, Trajectory, Verdict
from offline_agent.search.restore import Outcome
from offline_agent.search.tree import Edge, Node

EMPTY: Any = object()
NO_DRAW = range(0)
NO_SCORES: Mapping[str, float] = MappingProxyType({})


class Slot:
    """A value that is not there yet, and the simulations waiting for it."""

    __slots__ = ("value", "waiters")

    def __init__(self) -> None:
        self.value: Any = EMPTY
        self.waiters: list[Ticket] | None = None


class Shadow(Slot):
    """A new history that simulations in flight share before any of them was committed.

    It is itself the slot for the `Outcome` of the action that leads here (or an `EnvironmentFault`).

    Attributes:
        context: The history; set together with the outcome.
        seed: As `Node.seed`.
        samples: Slots for the proposals drawn here; rank r draws sample r.
        children: Shadows by canonical key.
    """

    __slots__ = ("context", "seed", "samples", "children")

    def __init__(self, seed: int) -> None:
        self.value: Any = EMPTY
        self.waiters: list[Ticket] | None = None
        self.context: Context | None = None
        self.seed = seed
        self.samples: list[Slot] = []
        self.children: dict[str, Shadow] = {}

    def slot(self, rank: int) -> Slot:
        """Return the slot of sample `rank`, making it and those below where they are missing."""
        samples = self.samples
        while len(samples) <= rank:
            samples.append(Slot())
        return samples[rank]


class Group:
    """The simulations that share one leaf.

    Attributes:
        seed: As `Node.seed`, of the history they begin with.
        size: How many ever joined.
        active: How many of them are not yet committed.
    """

    __slots__ = ("seed", "size", "active", "_shadow")

    def __init__(self, seed: int, size: int = 0) -> None:
        self.seed = seed
        self.size = size
        self.active = size
        self._shadow: Shadow | None = None

    def share(self) -> Shadow:
        """Return the history they begin with, made when it is first asked for: many simulations are alone."""
        shadow = self._shadow
        if shadow is None:
            shadow = self._shadow = Shadow(self.seed)
        return shadow


Others = tuple[tuple[Action, str], ...]
Request = tuple[Any, ...]


class Link(NamedTuple):
    """One action of a simulation beyond the tree it was issued on.

    `sample` is the index of the proposal where this simulation drew it, -1 where the tree has it already.
    `outcome` is None where the action was not executed, and `reason` says why. `others` are proposals drawn in the
    same request and not followed, each with its key.
    """

    sample: int
    key: str
    action: Action
    outcome: Outcome | None
    context: Context | None
    seed: int
    reason: str | None = None
    others: Others = ()


Row = tuple[
    int, str, Action, Outcome | None, Context | None, int, str | None, Others
]  # making and reading a named tuple costs several times as much as a plain one


class Ticket:
    """One simulation in flight.

    Attributes:
        index: Position in the order of issue, which is the order of commit.
        path: Edges from the root to `node`, in the tree at issue.
        node: Where the simulation leaves the tree.
        edge: The edge to execute first; None when it draws proposals first.
        draw: Indices of the proposals to draw at `node` in one request; empty for a rollout.
        group, rank: The shared leaf and this simulation's place in its order; group None while drawing proposals.
        greedy: Follow the policy's greedy actions.
        drawn: (index, action, key) of proposals drawn at `node`.
        critic: Scores of the critic by canonical key.
        rows: What it did beyond the tree, first to last, where it was played alone: plain tuples of a `Link`'s fields.
        cut: None, or what ended it without a verdict: one of `records.POLICY_CUTS`, whose value is 0, or `fault`,
            `policy`, `unscored`, `duplicate` (every proposal drawn was known), which have none.
        verdict, value: The end state's verdict and what is backed up; value None backs up nothing.
        mismatch: Depth at which a replay differed; None otherwise.
        error: A sentence about what went wrong; None otherwise.
    """

    __slots__ = (
        "index", "path", "node", "edge", "draw", "group", "rank", "greedy", "drawn", "critic", "rows", "_chain", "cut",
        "verdict", "value", "mismatch", "error", "run", "search", "done",
    )  # fmt: skip

    def __init__(self, index: int, path: list[Edge], node: Node) -> None:
        self.index = index
        self.path = path
        self.node = node
        self.edge: Edge | None = None
        self.draw = NO_DRAW
        self.group: Group | None = None
        self.rank = 0
        self.greedy = False
        self.drawn: Sequence[tuple[int, Action, str]] = ()
        self.critic: Mapping[str, float] = NO_SCORES
        self.rows: list[Row] = []
        self._chain: list[Link] = []
        self.cut: str | None = None
        self.verdict: Verdict | None = None
        self.value: float | None = None
        self.mismatch: int | None = None
        self.error: str | None = None
        self.run: Generator[Request, Any, None] | None = None
        self.search: Any = None
        self.done = False

    @property
    def chain(self) -> list[Link]:
        """What it did beyond the tree, first to last; rows become links when somebody looks here."""
        if self.rows:
            self._chain, self.rows = [Link(*row) for row in self.rows], []
        return self._chain


@dataclass(frozen=True, slots=True)
class Rules:
    """What a simulation needs to know of the search; see `mcts.SearchSettings` for the meaning.

    `together` is `rollout_proposals`; the first `beside_greedy` tickets set out together with the greedy rollout.
    """

    max_steps: int
    temperature: float | None
    max_tokens: int | None
    use_success: bool
    critic: bool
    together: int
    beside_greedy: int
    reward: Callable[[Trajectory], float | None] | None
