"""Cost of the search itself: simulations per second with a policy and an environment that cost nothing.

Run `python benchmarks/search_overhead.py`. Branching 4, depth 8, reward at the leaves. The search runs exactly as in
`build_prefs` (scheduler, tickets, ordered commit, rollouts into the tree), with and without the event log.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

from offline_agent.policies.base import InlineEngine, Proposals, ProposeRequest
from offline_agent.records import Action, Task, ToolCall, Verdict
from offline_agent.search.mcts import SearchSettings, TreeSearch
from offline_agent.search.restore import Opening, Outcome
from offline_agent.search.scheduler import EnvPool, Scheduler

BRANCHING, DEPTH = 4, 8
ACTIONS = [Action(text=str(i), call=ToolCall("go", {"way": i}), logps=(-1.0 - 0.1 * i,)) for i in range(BRANCHING)]
ANSWERS = [
    [Proposals(tuple([ACTIONS[(first + i) % BRANCHING] for i in range(n)])) for first in range(BRANCHING)]
    for n in range(BRANCHING + 1)
]
SCORES = [Verdict(i / 16, False, "leaf") for i in range(16)] + [Verdict(1.0, True, "leaf")]
ENDS = [Outcome(None, "tool", True, verdict=verdict) for verdict in SCORES]
WAYS = {action.text: way for way, action in enumerate(ACTIONS, start=1)}
INNER = (BRANCHING**DEPTH - 1) // (BRANCHING - 1)  # histories after which the episode goes on; 0 is its start
OUTCOMES = [Outcome("on", "tool", False, state=history) for history in range(INNER)] + [
    ENDS[leaf * 2654435761 % 4294967296 * 17 >> 32] for leaf in range(BRANCHING**DEPTH)
]


class FreeEngine(InlineEngine):
    """Proposes the four actions of a history one after the other, the first one drawn from the seed; costs nothing."""

    def __init__(self) -> None:
        self.busy_seconds = 0.0

    def answer(self, request: ProposeRequest) -> Proposals:
        """See `InlineEngine.answer`."""
        context, seeds, _, _ = request
        n = len(seeds)
        drawn = seeds[0] & 3 if context.cache is None else context.cache
        context.cache = drawn + n & 3
        return ANSWERS[n][drawn]


class FreeWorld:
    """A complete tree of branching 4 and depth 8; the state is the history's number, level by level."""

    def open(self) -> Opening:
        """See `World.open`."""
        return Opening("start", "", (), _key, 0)

    def execute(self, state: int, action: Action, replay: bool = True) -> Outcome:
        """See `World.execute`."""
        return OUTCOMES[state * BRANCHING + WAYS[action.text]]

    def remember(self, state: Any, action: Action, observation: str | None, fingerprint: str | None) -> Any:
        """See `World.remember`."""
        return state * BRANCHING + WAYS[action.text]

    def close(self) -> None:
        """Nothing is held."""


def _key(action: Action) -> str:
    return action.text


def search(simulations: int, log: Any = None, leaves: int = 4, trees: int = 1) -> TreeSearch:
    """Search trees to their end, one after the other; return the last."""
    settings = SearchSettings(
        simulations=simulations, max_steps=DEPTH + 1, max_children=BRANCHING, leaves_in_flight=leaves
    )
    searches = (TreeSearch(Task(f"t{i}", "train", {}), FreeWorld(), settings, 1, log=log) for i in range(trees))
    scheduler = Scheduler(FreeEngine(), EnvPool(0, None), trees_in_flight=1)
    for one in scheduler.run((one, ()) for one in searches):
        last = one
    return last


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    from _common import write_result

    from offline_agent.store import EventLog

    rows = []
    theirs = {200: 9100, 2000: 7300, 20000: 2500}
    for simulations in (200, 2000, 20000):
        plain, logged = [], []
        for _ in range(arguments.repeats):
            rounds = max(1, 4000 // simulations)
            started = time.perf_counter()
            search(simulations, trees=rounds)
            plain.append(rounds * simulations / (time.perf_counter() - started))
            with tempfile.TemporaryDirectory() as folder:
                log = EventLog(Path(folder) / "0000.jsonl")
                started = time.perf_counter()
                search(simulations, log.append)
                logged.append(simulations / (time.perf_counter() - started))
                log.close()
        tracemalloc.start()
        one = search(simulations)
        tree = one.tree
        assert tree is not None
        memory = tracemalloc.get_traced_memory()[0] / len(tree.nodes)
        tracemalloc.stop()
        rows.append(
            {
                "simulations": simulations,
                "simulations/s": round(max(plain)),
                "with event log": round(max(logged)),
                "llm-reasoners*": theirs[simulations],
                "nodes": len(tree.nodes),
                "bytes/node": round(memory),
                "us/simulation": round(1e6 / max(plain), 1),
            }
        )
    growth = rows[-1]["us/simulation"] / rows[0]["us/simulation"]
    write_result(
        "search_overhead",
        rows,
        {
            "growth of cost per simulation, 200 -> 20,000": round(growth, 2),
            "*": "llm-reasoners: measured on this class of machine with the same shape of tree, not in this run",
        },
    )


if __name__ == "__main__":
    main()
