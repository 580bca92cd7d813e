"""Independent roll-outs: none shares another's turn or answer, and each is a branch of the tree."""

from __future__ import annotations

import dataclasses
import random

from offline_agent.envs.base import EnvSpec
from offline_agent.preferences.pairs.trajectory import TrajectoryPairs
from offline_agent.records import Action, Context
from offline_agent.search.settings import SearchSettings
from offline_agent.search.tree import SearchTree
from tests.helpers.search import Guess, Paths, search, tasks


class Chance(Paths):
    """Shows the throw of a die behind each door."""

    fingerprint = None  # type: ignore[assignment]  # it cannot be told apart
    noise = random.Random(3)

    def door(self, number: int) -> str:
        """Go through a door.

        Args:
            number: Which door.
        """
        super().door(number)
        return f"A die shows {self.noise.randrange(6)}."


class Terse(Guess):
    """Words every call alike."""

    def act(self, context: Context, seed: int, temperature: float | None) -> Action:
        """Return one action."""
        made = super().act(context, seed, temperature)
        return dataclasses.replace(made, text=f"door {made.call}", thought="", token_ids=None, logps=None)


def tree_of(kind: type[Paths], policy: Guess) -> SearchTree:
    spec = EnvSpec(kind)
    run = search(spec, policy, SearchSettings(simulations=24, algorithm="best_of_n"), tasks(spec, 1))
    (tree,) = [one.tree for one in run.searches.values()]
    assert tree is not None
    return tree


def test_a_roll_out_that_saw_something_else_keeps_its_end() -> None:
    tree = tree_of(Chance, Terse(skill=0.7, doors=2))
    ends = list(tree.terminals())
    assert sum(end.visits for end in ends) == 24 and all(end.verdict is not None for end in ends)
    assert len({tuple(step.observation for step in tree.steps(end)) for end in ends}) > 8


def test_keys_of_steps_are_those_of_the_calls_whatever_the_words() -> None:
    tree = tree_of(Paths, Guess(skill=0.3, doors=2))
    assert len(tree.root.edges) > 3  # doors, in other words
    for end in tree.terminals():
        for step in tree.steps(end):
            assert step.action.call is not None
            assert step.key == f'door{{"number":{step.action.call.arguments["number"]}}}'
    pairs, _ = TrajectoryPairs().mine(tree)
    assert pairs and all(pair.chosen[0].key != pair.rejected[0].key for pair in pairs)
