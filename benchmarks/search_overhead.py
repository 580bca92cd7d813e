"""Cost of the search itself: simulations per second with a policy and an environment that cost nothing.

Run `python benchmarks/search_overhead.py`. Branching 4, depth 8, reward at the leaves. The search runs exactly as in
`build_prefs` (scheduler, ordered commit, rollouts into the tree, event log), and once more without the log.
llm-reasoners searches the same tree in the same rounds (`_llm_reasoners.py`): it is installed from PyPI into an
environment of its own, or `--rival` names the Python of one that has it. Seconds are the processor's, in the kernel
included: nothing here waits, and other load on the machine counts less.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import tracemalloc
import venv
from pathlib import Path
from typing import Any

from offline_agent.envs.pool import EnvPool
from offline_agent.policies.base import Proposals, ProposeRequest
from offline_agent.policies.engines import InlineEngine
from offline_agent.records import Action, Task, ToolCall, Verdict
from offline_agent.search.environment import Opening, Outcome
from offline_agent.search.scheduler import Scheduler
from offline_agent.search.settings import SearchSettings
from offline_agent.search.tree_search import TreeSearch

RIVAL = "llm-reasoners==1.0.2"
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

    one_thread = False

    def open(self) -> Opening:
        """See `TaskEnvironment.open`."""
        return Opening("start", "", (), _key, 0)

    def execute(self, state: int, action: Action, replay: bool = True) -> Outcome:
        """See `TaskEnvironment.execute`."""
        return OUTCOMES[state * BRANCHING + WAYS[action.text]]

    def remember(self, state: Any, action: Action, observation: str | None, fingerprint: str | None) -> Any:
        """See `TaskEnvironment.remember`."""
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


def logged(simulations: int, trees: int) -> float:
    """Return simulations per processor second with the event log, as real runs have it."""
    from offline_agent.store.events import EventLog

    with tempfile.TemporaryDirectory() as folder:
        log = EventLog(Path(folder) / "0000.jsonl")
        log.create()
        gc.collect()  # what an earlier measurement left is not this one's
        started = time.process_time()
        search(simulations, log.append, trees=trees)
        log.close()
        return trees * simulations / (time.process_time() - started)


def plain(simulations: int, trees: int) -> float:
    """Return simulations per processor second without the event log."""
    gc.collect()
    started = time.process_time()
    search(simulations, trees=trees)
    return trees * simulations / (time.process_time() - started)


def install(folder: Path) -> Path:
    """Install llm-reasoners into an environment of its own; return its Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", RIVAL], check=True)
    return python


def rival(python: Path, settings: str, simulations: int, trees: int) -> float:
    """Return llm-reasoners' simulations per processor second; what it imports and does not use, torch, is ours."""
    script = Path(__file__).with_name("_llm_reasoners.py")
    environment = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    command = [str(python), str(script), settings, str(simulations), str(trees)]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def memory(simulations: int) -> tuple[int, float]:
    """Return a tree's nodes, and the bytes of one."""
    tracemalloc.start()
    tree = search(simulations).tree
    assert tree is not None
    per_node = tracemalloc.get_traced_memory()[0] / len(tree.nodes)
    tracemalloc.stop()
    return len(tree.nodes), per_node


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rival", type=Path, help="Python of an environment that has llm-reasoners")
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    from _common import write_result

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        python = arguments.rival or install(Path(folder))
        for simulations in (200, 2000, 20000):
            trees = max(1, 4000 // simulations)
            rounds = [
                (logged(simulations, trees), plain(simulations, trees), rival(python, "fastest", simulations, trees))
                for _ in range(arguments.repeats)
            ]
            ours, bare, theirs = map(max, zip(*rounds, strict=True))
            nodes, per_node = memory(simulations)
            rows.append(
                {
                    "simulations": simulations,
                    "simulations/s": round(ours),
                    "llm-reasoners": round(theirs),
                    "times as fast": round(ours / theirs, 1),
                    "llm-reasoners, defaults": round(rival(python, "defaults", simulations, 1)),
                    "without event log": round(bare),
                    "us/simulation": round(1e6 / ours, 1),
                    "nodes": nodes,
                    "bytes/node": round(per_node),
                }
            )
    growth = rows[-1]["us/simulation"] / rows[0]["us/simulation"]
    facts = {"growth of cost per simulation, 200 -> 20,000": round(growth, 2), "llm-reasoners": RIVAL}
    write_result("search_overhead", rows, facts)


if __name__ == "__main__":
    main()
