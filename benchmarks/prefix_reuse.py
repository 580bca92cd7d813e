"""What a search with the `hf` policy computes and executes twice: prompt ids against their trie, calls against edges.

Run `python benchmarks/prefix_reuse.py`. Trees of the shop are searched at once; every prompt that was asked for is
noted, and the trie of all of them counted: the fewest ids anybody could compute. The fewest calls are the edges.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from _common import write_result

from offline_agent.catalog import resolve
from offline_agent.envs.base import EnvSpec
from offline_agent.policies.base import Done, Engine, ProposeRequest
from offline_agent.policies.hf import HFPolicy
from offline_agent.records import Context
from offline_agent.search.mcts import SearchSettings, TreeSearch
from offline_agent.search.restore import RestoreCounts, Restorer
from offline_agent.search.scheduler import EnvPool, Scheduler

PREFILLED_GOAL, CALLS_GOAL = 1.1, 1.05


class Noting:
    """An engine that notes which histories were asked for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.contexts: dict[int, Context] = {}
        self.requests = 0

    @property
    def busy_seconds(self) -> float:
        return self._engine.busy_seconds

    def submit(self, request: ProposeRequest, done: Done) -> None:
        self.requests += 1
        self.contexts[id(request.context)] = request.context
        self._engine.submit(request, done)

    def close(self) -> None:
        self._engine.close()


def trie_size(prompts: Iterable[Sequence[int]]) -> int:
    """Return the number of distinct prefixes: sorted, each prompt adds what it does not share with the one before."""
    count, before = 0, ()
    for prompt in sorted(map(tuple, prompts)):
        shared = 0
        for left, right in zip(before, prompt, strict=False):
            if left != right:
                break
            shared += 1
        count += len(prompt) - shared
        before = prompt
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=None, help="default: the embedded one")
    parser.add_argument("--env", default="shop")
    parser.add_argument("--tasks", type=int, default=24)
    parser.add_argument("--simulations", type=int, default=32)
    parser.add_argument("--proposals", type=int, default=4)
    parser.add_argument("--trees", type=int, default=16, help="searched at once")
    parser.add_argument("--cache-bytes", type=int, default=None, help="for kept keys and values")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()

    spec = EnvSpec(resolve("env", options.env))
    policy = HFPolicy(options.model, cache_bytes=options.cache_bytes)
    engine, pool, counts = Noting(policy.engine()), EnvPool(2), RestoreCounts()
    settings = SearchSettings(simulations=options.simulations, proposals=options.proposals)
    tasks = list(islice(spec.tasks("train"), options.tasks))

    def searches() -> Iterable[tuple[TreeSearch, Sequence[Any]]]:
        for task in tasks:
            yield TreeSearch(task, Restorer(spec, task, counts=counts), settings, 0), ()

    started = time.perf_counter()
    edges = nodes = 0
    contexts: list[Context] = []
    for search in Scheduler(engine, pool, trees_in_flight=options.trees).run(searches()):
        assert search.tree is not None
        edges += sum(edge.child is not None for edge in search.tree.edges)
        nodes += len(search.tree.nodes)
    seconds = time.perf_counter() - started
    engine.close()
    pool.close()
    contexts = list(engine.contexts.values())
    prompts = [policy.renderer.context_ids(context) for context in contexts]
    trie, whole = trie_size(prompts), sum(map(len, prompts))
    made = policy.counts
    calls = counts.executed + counts.replayed
    write_result(
        "prefix_reuse",
        [
            {"what": "prompt ids", "done": made.prefilled, "fewest": trie, "ratio": made.prefilled / trie,
             "goal": PREFILLED_GOAL, "without reuse": made.prefilled + made.cached},
            {"what": "tool calls", "done": calls, "fewest": edges, "ratio": calls / edges, "goal": CALLS_GOAL,
             "without reuse": None},
        ],
        {
            "reached": made.prefilled <= PREFILLED_GOAL * trie and calls <= CALLS_GOAL * edges,
            "environment": options.env,
            "tasks": len(tasks),
            "simulations a task": options.simulations,
            "requests": engine.requests,
            "histories asked for": len(contexts),
            "ids of these histories": whole,
            "longest": max(map(len, prompts)),
            "nodes": nodes,
            "samples": {"ids": made.generated, "a second": made.generated / seconds},
            "slot occupancy": made.lane_steps / (made.steps * policy.slots),
            "generator busy": made.seconds / seconds,
            "kept": {"ids": policy.kept_ids, "thrown away": policy.thrown_away_ids},
            "replayed calls": counts.replayed,
        },
        options.out,
    )  # fmt: skip


if __name__ == "__main__":
    main()
