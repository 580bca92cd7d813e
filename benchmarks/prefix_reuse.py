"""The work that is done twice: prompt ids against their trie, calls against edges, mining's against the search's.

Run `python benchmarks/prefix_reuse.py`. Trees of the shop are searched at once with the `hf` policy; every prompt that
was asked for is noted, and the trie of all of them counted: the fewest ids anybody could compute. The fewest calls are
the edges. Then every kind of pair is built from these trees, and from trees of the scripted policy in other
environments; the calls of its replays are set against those of the search.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

from _common import write_result

from offline_agent.catalog import resolve
from offline_agent.envs.base import EnvSpec
from offline_agent.envs.pool import EnvPool
from offline_agent.policies.base import Done, Engine, ProposeRequest
from offline_agent.policies.hf.policy import HFPolicy
from offline_agent.policies.scripted import NoisyPolicy
from offline_agent.preferences.mining import Miner
from offline_agent.preferences.replayer import Replayer
from offline_agent.preferences.settings import PairsSection
from offline_agent.records import Action, Context, Task
from offline_agent.search.restore import RestoreCounts, Restorer
from offline_agent.search.scheduler import Scheduler
from offline_agent.search.settings import SearchSection, SearchSettings
from offline_agent.search.tree import SearchTree
from offline_agent.search.tree_search import TreeSearch

Row = dict[str, Any]

SLOTS = 64  # samples of the policy at once, as by default
PREFILLED_GOAL, CALLS_GOAL, MINING_GOAL = 1.1, 1.05, 1.0
SLOTS = 64  # samples computed at once
STEPS = {"bfcl": 40, "textworld": 30}  # of an episode; 15 elsewhere, as by default
ARGUMENTS: dict[str, dict[str, Any]] = {
    "textworld": {
        "game": "cookingworld",
        "params": "numLocations=3,numIngredients=2,numDistractorItems=3,includeDoors=0",
    }
}


class Noting:
    """An engine that notes which histories were asked for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.contexts: dict[int, Context] = {}
        self.requests = 0

    @property
    def busy_seconds(self) -> float:
        """See `Engine.busy_seconds`."""
        return self._engine.busy_seconds

    def submit(self, request: ProposeRequest, done: Done) -> None:
        """Count the request and pass it on."""
        self.requests += 1
        self.contexts[id(request.context)] = request.context
        self._engine.submit(request, done)

    def close(self) -> None:
        """See `Engine.close`."""
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


def mined(what: str, spec: EnvSpec, trees: Sequence[SearchTree], state_cache: int) -> tuple[Row, dict[str, int]]:
    """Build every kind of pair from trees with the default budget.

    Returns:
        A line of the table: mining's calls against the search's. Then the pairs by kind, what was judged again, what
        was left out, and the trees whose mining made more calls than their search.
    """
    pairs = PairsSection()
    miner = Miner(spec, replay_budget=pairs.replay_budget, rejudge=pairs.rejudge, live_states=state_cache)
    counts: Counter[str] = Counter()

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def run(replayer: Replayer, task: Task, actions: Sequence[Action], *rest: Any) -> Any:
            counts["asked"] += len(actions)
            return method(replayer, task, actions, *rest)

        return run

    for tree in trees:
        with patch.multiple(Replayer, run=counted(Replayer.run), attempt=counted(Replayer.attempt)):
            one = miner.mine(tree)
        counts.update(f"{pair.kind} pairs" for pair in one.pairs)
        counts["steps saved by minimal pairs"] += sum(
            len(pair.rejected) - len(pair.chosen) for pair in one.pairs if pair.kind == "minimal"
        )
        counts["done"] += one.tool_calls
        counts["replays left out"] += one.left_out
        counts["trees above their search"] += one.tool_calls > tree.counters["tool_calls"]
        if one.rejudged is not None:
            counts["verdicts"] += one.rejudged.verdicts
            counts["judged again"] += one.rejudged.judged
            counts["disagreed"] += len(one.rejudged.disagreements)
    miner.close()
    calls = sum(tree.counters["tool_calls"] for tree in trees)
    done = counts.pop("done")
    row = {"what": f"mining's calls, {what}", "done": done, "fewest": None, "search": calls, "ratio": done / calls,
           "goal": MINING_GOAL}  # fmt: skip
    return row, dict(sorted(counts.items()))


def scripted(name: str, tasks: int, simulations: int, proposals: int) -> tuple[EnvSpec, list[SearchTree]]:
    """Search tasks of an environment with the scripted policy, which errs in three decisions of ten."""
    spec = EnvSpec(resolve("env", name), ARGUMENTS.get(name))
    policy = NoisyPolicy(spec.demonstrate)
    settings = SearchSettings(simulations=simulations, proposals=proposals, max_steps=STEPS.get(name, 15))
    engine, pool = policy.engine(), EnvPool(2)
    some = islice(spec.tasks("train"), tasks)
    searches = [(TreeSearch(task, Restorer(spec, task), settings, 0), ()) for task in some]
    trees = [search.tree for search in Scheduler(engine, pool, trees_in_flight=4).run(searches)]
    engine.close()
    pool.close()
    return spec, sorted((tree for tree in trees if tree is not None), key=lambda tree: tree.tree_id)


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=None, help="default: the embedded one")
    parser.add_argument("--env", default="shop")
    parser.add_argument("--tasks", type=int, default=24)
    parser.add_argument("--simulations", type=int, default=32)
    parser.add_argument("--proposals", type=int, default=4)
    parser.add_argument("--trees", type=int, default=16, help="searched at once")
    parser.add_argument("--cache-bytes", type=int, default=None, help="for kept keys and values")
    parser.add_argument("--others", default="shop,bfcl,textworld", help="searched by the scripted policy and mined")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()

    spec = EnvSpec(resolve("env", options.env))
    policy = HFPolicy(options.model, slots=SLOTS, cache_bytes=options.cache_bytes)
    engine, pool, counts = Noting(policy.engine()), EnvPool(2), RestoreCounts()
    settings = SearchSettings(simulations=options.simulations, proposals=options.proposals)
    tasks = list(islice(spec.tasks("train"), options.tasks))

    def searches() -> Iterable[tuple[TreeSearch, Sequence[Any]]]:
        for task in tasks:
            yield TreeSearch(task, Restorer(spec, task, counts=counts), settings, 0), ()

    started = time.perf_counter()
    edges = nodes = 0
    contexts: list[Context] = []
    trees: list[SearchTree] = []
    for search in Scheduler(engine, pool, trees_in_flight=options.trees).run(searches()):
        assert search.tree is not None
        edges += sum(edge.child is not None for edge in search.tree.edges)
        nodes += len(search.tree.nodes)
        trees.append(search.tree)
    seconds = time.perf_counter() - started
    engine.close()
    pool.close()
    contexts = list(engine.contexts.values())
    prompts = [policy.renderer.context_ids(context) for context in contexts]
    trie, whole = trie_size(prompts), sum(map(len, prompts))
    made = policy.counts
    calls = counts.executed + counts.replayed
    cache = SearchSection().state_cache
    mining = {f"{options.env}, hf": mined(f"{options.env}, hf", spec, trees, cache)}
    for name in filter(None, options.others.split(",")):
        other, grown = scripted(name, options.tasks, options.simulations, options.proposals)
        mining[name] = mined(name, other, grown, cache)
        if not other.replay_only:
            other.replay_only = True  # as where copies are found to be no snapshots
            mining[f"{name}, replayed"] = mined(f"{name}, restored by replay", other, grown, cache)
    write_result(
        "prefix_reuse",
        [
            {"what": "prompt ids", "done": made.prefilled, "fewest": trie, "ratio": made.prefilled / trie,
             "goal": PREFILLED_GOAL, "without reuse": made.prefilled + made.cached},
            {"what": "tool calls", "done": calls, "fewest": edges, "ratio": calls / edges, "goal": CALLS_GOAL,
             "without reuse": None},
            *(row for row, _ in mining.values()),
        ],
        {
            "reached": made.prefilled <= PREFILLED_GOAL * trie and calls <= CALLS_GOAL * edges
            and all(row["ratio"] <= row["goal"] and not found["trees above their search"]
                    for row, found in mining.values()),
            "environment": options.env,
            "tasks": len(tasks),
            "simulations a task": options.simulations,
            "requests": engine.requests,
            "histories asked for": len(contexts),
            "ids of these histories": whole,
            "longest": max(map(len, prompts)),
            "nodes": nodes,
            "samples": {"ids": made.generated, "a second": made.generated / seconds},
            "slot occupancy": made.lane_steps / (made.steps * SLOTS),
            "generator busy": made.seconds / seconds,
            "kept": policy.memory()["kept"],
            "replayed calls": counts.replayed,
            "mining": {name: found for name, (_, found) in mining.items()},
        },
        options.out,
    )  # fmt: skip


if __name__ == "__main__":
    main()
