"""Known states: simulations end at them, trees stay reproducible, and no state is searched from twice."""

from __future__ import annotations

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.search.settings import SearchSettings
from offline_agent.search.tree import KnownStates
from tests.helpers.search import Guess, Paths, search, tasks


class Ring(Paths):
    """A walk on a ring of twelve rooms; the episode ends, and is won, in the room of the code."""

    MOVES = (1, -1, 3, 0)

    def reset(self, code: str) -> str:
        self.code, self.room, self.terminated = code, 0, False
        self.goal = 5 + int(code) % 3
        return f"The code is {code}."

    def door(self, number: int) -> str:
        """Move.

        Args:
            number: Which door, 0 to 9.
        """
        self.room = (self.room + self.MOVES[number % 4]) % 12
        self.terminated = self.room == self.goal
        return f"You are in room {self.room}."

    def get_reward(self) -> float:
        return float(self.room == self.goal)

    @property
    def fingerprint(self) -> str:
        return str(self.room)


SPEC = EnvSpec(Ring)
CLOSE = SearchSettings(simulations=24, max_steps=8, repeated_states="close", saturation=2)
VARIANTS = [
    CLOSE,
    CLOSE.model_copy(update={"leaves_in_flight": 1}),
    CLOSE.model_copy(update={"leaves_in_flight": 8}),
    CLOSE.model_copy(update={"proposals": 2}),
]


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_the_same_trees_for_any_number_of_workers_and_after_any_stop(settings: SearchSettings) -> None:
    some = tasks(SPEC, 3)
    alone = search(SPEC, Guess(skill=0.0), settings, some)
    crowd = search(SPEC, Guess(skill=0.0, jitter=0.002), settings, some, workers=4)
    assert crowd.trees == alone.trees
    assert any(record.get("cut") == "repeated" for log in alone.logs.values() for record in log)
    name, log = next(iter(alone.logs.items()))
    for cut in range(0, len(log) + 1, 3):
        workers = 3 if cut % 2 else 0
        again = search(SPEC, Guess(skill=0.0), settings, some[:1], records={name: log[:cut]}, workers=workers)
        assert again.trees[name] == alone.trees[name], f"cut after {cut} commits"


def test_a_simulation_ends_at_a_state_that_was_reached_in_as_few_steps() -> None:
    run = search(SPEC, Guess(skill=0.0), CLOSE.model_copy(update={"leaves_in_flight": 1}), tasks(SPEC, 8))
    ended = 0
    for one in run.searches.values():
        assert one.tree is not None
        reached: dict[str, int] = {"0": 0}
        for node in one.tree.nodes[1:]:
            assert node.edge is not None and node.fingerprint is not None
            known = reached.get(node.fingerprint)
            if known is not None and known <= node.depth and not node.visits and not node.edges:
                assert node.edge.closed and node.closed
                ended += 1
            reached[node.fingerprint] = min(node.depth, reached.get(node.fingerprint, 99))
    assert ended > 10


def test_what_was_known_at_issue_is_known_and_nothing_later() -> None:
    states = KnownStates()
    states.add("a", 3, commits=2)
    states.add("a", 1, commits=5)
    states.add(None, 0, commits=1)
    assert states.has("a", 3, commits=2) and states.has("a", 1, commits=5)
    assert not states.has("a", 3, commits=1)  # found later
    assert not states.has("a", 2, commits=4)  # reached with fewer steps than before: it goes on
    assert not states.has(None, 9, commits=9)


def test_closing_known_states_wins_with_fewer_calls() -> None:
    some = tasks(SPEC, 12)
    calls = {}
    for kind in ("keep", "close"):
        settings = SearchSettings(simulations=64, max_steps=8, repeated_states=kind, until="success")
        run = search(SPEC, Guess(skill=0.0), settings, some)
        trees = [one.tree for one in run.searches.values() if one.tree]
        assert all(any(edge.successes for edge in tree.root.edges) for tree in trees)
        calls[kind] = sum(tree.counters["tool_calls"] for tree in trees)
    assert calls["close"] < calls["keep"]
