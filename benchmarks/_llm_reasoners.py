"""Search the tree of `search_overhead` with llm-reasoners. Runs in an environment of its own, which has the package.

Run by `search_overhead`: `python _llm_reasoners.py SETTINGS SIMULATIONS TREES`; prints simulations per processor
second. The tree is the same: branching 4, depth 8, rewards at the leaves, policy and environment cost nothing.
SETTINGS is `defaults`, or `fastest`, the best found: rollouts choose at random and means are taken without NumPy, and
the result is the last path instead of the best of the whole tree.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

from reasoners import SearchConfig, WorldModel  # type: ignore[import-not-found]
from reasoners.algorithm import MCTS  # type: ignore[import-not-found]

BRANCHING, DEPTH = 4, 8
INNER = (BRANCHING**DEPTH - 1) // (BRANCHING - 1)  # histories after which the episode goes on; 0 is its start
ACTIONS = list(range(BRANCHING))
REWARDS = [(leaf * 2654435761 % 4294967296 * 17 >> 32) / 16 for leaf in range(BRANCHING**DEPTH)]


class World(WorldModel):  # type: ignore[misc]
    """A state is the history's number, level by level."""

    def init_state(self) -> int:
        """Return the start."""
        return 0

    def step(self, state: int, action: int) -> tuple[int, dict[str, Any]]:
        """Go on."""
        return state * BRANCHING + 1 + action, {}

    def is_terminal(self, state: int) -> bool:
        """Whether the episode is over."""
        return state >= INNER


class Config(SearchConfig):  # type: ignore[misc]
    """Every action is possible and none is preferred; only leaves are worth something."""

    def get_actions(self, state: int) -> list[int]:
        """Return the actions."""
        return ACTIONS

    def reward(self, state: int, action: int, **_: Any) -> tuple[float, dict[str, Any]]:
        """Return what an action was worth."""
        after = state * BRANCHING + 1 + action - INNER
        return (REWARDS[after] if after >= 0 else 0.0), {}


FASTEST: dict[str, Any] = {
    "calc_q": lambda values: sum(values) / len(values),
    "simulate_strategy": lambda values: random.randrange(len(values)),
    "output_strategy": "last_iter",
}


def rate(settings: dict[str, Any], simulations: int, trees: int) -> float:
    """Return simulations per processor second over so many trees."""
    started = time.process_time()
    for _ in range(trees):
        MCTS(n_iters=simulations, depth_limit=DEPTH, **settings)(World(), Config())
    return trees * simulations / (time.process_time() - started)


if __name__ == "__main__":
    random.seed(0)
    print(json.dumps(rate(FASTEST if sys.argv[1] == "fastest" else {}, *map(int, sys.argv[2:]))))
