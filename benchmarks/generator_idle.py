"""Idle share of the generator while tools are slow: serial, lock-step, and this project's scheduler.

Run `python benchmarks/generator_idle.py`. Latencies are simulated, the search is the real one: a generator of 64 slots
in which a sample takes 40 ms on average (uniform within ±50 %), and tools that take `--ratio` times as long. A request
for n samples takes n slots; one that finds no room waits. "idle" is the share of slot-seconds without a sample, from
the moment the first trees are under way until fewer trees are left than may be in flight.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offline_agent.envs.pool import EnvPool
from offline_agent.policies.base import Answer, Done, Proposals, ProposeRequest
from offline_agent.records import Action, Task, ToolCall, Verdict
from offline_agent.search.environment import Opening, Outcome
from offline_agent.search.scheduler import Scheduler
from offline_agent.search.settings import SearchSettings
from offline_agent.search.tree_search import TreeSearch

DEPTH, DOORS = 8, 6


class SlotEngine:
    """A generator of so many slots on a real clock; one thread wakes up when a sample is ready."""

    def __init__(self, slots: int, seconds: float) -> None:
        self.slots, self.seconds = slots, seconds
        self.busy_seconds = 0.0
        self.slot_seconds = 0.0
        self.samples = 0
        self.window = (0.0, float("inf"))
        self._free = slots
        self._queue: deque[tuple[ProposeRequest, Done]] = deque()
        self._ends: list[tuple[float, int, ProposeRequest, Done, float]] = []
        self._number = 0
        self._wake = threading.Condition()
        self._open = True
        threading.Thread(target=self._work, daemon=True).start()

    def submit(self, request: ProposeRequest, done: Done) -> None:
        """See `Engine.submit`."""
        with self._wake:
            self._queue.append((request, done))
            self._wake.notify()

    def close(self) -> None:
        """See `Engine.close`."""
        with self._wake:
            self._open = False
            self._wake.notify()

    def _work(self) -> None:
        while True:
            with self._wake:
                now = time.perf_counter()
                while self._queue and self._free >= len(self._queue[0][0].seeds):
                    request, done = self._queue.popleft()
                    length = self.seconds * (0.5 + random.Random(request.seeds[0]).random())
                    self._free -= len(request.seeds)
                    self._number += 1
                    heapq.heappush(self._ends, (now + length, self._number, request, done, now))
                if not self._open:
                    return
                if not self._ends or self._ends[0][0] > now:
                    self._wake.wait(self._ends[0][0] - now if self._ends else None)
                    continue
                end, _, request, done, started = heapq.heappop(self._ends)
                self._free += len(request.seeds)
                inside = max(0.0, min(end, self.window[1]) - max(started, self.window[0]))
                self.slot_seconds += inside * len(request.seeds)
                self.samples += len(request.seeds)
            done(answer(request))


def answer(request: ProposeRequest) -> Answer:
    """Return one of the doors for each seed."""
    return Proposals(tuple([_action(seed % DOORS) for seed in request.seeds]))


def _action(door: int) -> Action:
    return Action(str(door), call=ToolCall("door", {"number": door}), logps=(-1.0,))


class SlowWorld:
    """A tree of doors behind which every call takes its time."""

    one_thread = False

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def open(self) -> Opening:
        """See `TaskEnvironment.open`."""
        return Opening("start", "", (), lambda action: action.text, ())

    def execute(self, state: tuple[str, ...], action: Action, replay: bool = True) -> Outcome:
        """See `TaskEnvironment.execute`."""
        path = (*state, action.text)
        rng = random.Random("".join(path))
        time.sleep(self.seconds * (0.5 + rng.random()))
        if len(path) == DEPTH:
            return Outcome(None, "tool", True, verdict=Verdict(round(rng.random(), 2), False, "door"))
        return Outcome("on", "tool", False, state=path)

    def remember(self, state: Any, action: Action, observation: str | None, fingerprint: str | None) -> Any:
        """See `TaskEnvironment.remember`."""
        return (*state, action.text)

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class Setting:
    """One row of the table."""

    name: str
    trees: int
    leaves: int


def measure(setting: Setting, arguments: argparse.Namespace) -> dict[str, Any]:
    """Search with one setting and return its row."""
    engine = SlotEngine(arguments.slots, arguments.seconds)
    pool = EnvPool(setting.trees * setting.leaves, None)
    tasks = max(2, round(setting.trees * arguments.rounds))
    settings = SearchSettings(
        simulations=arguments.simulations, leaves_in_flight=setting.leaves, max_steps=DEPTH + 1,
    )  # fmt: skip

    def searches() -> Iterable[tuple[TreeSearch, Sequence[Any]]]:
        for i in range(tasks):
            world = SlowWorld(arguments.seconds * arguments.ratio)
            yield TreeSearch(Task(f"t{i}", "train", {}), world, settings, seed=i), ()

    scheduler = Scheduler(engine, pool, trees_in_flight=setting.trees)
    began = time.perf_counter()
    engine.window = (began, float("inf"))
    end = 0.0
    for finished, _ in enumerate(scheduler.run(searches()), 1):
        if finished == max(1, tasks - setting.trees):
            end = time.perf_counter()
            engine.window = (began, end)
            slot_seconds, samples, simulations = engine.slot_seconds, engine.samples, scheduler.counts.simulations
            if setting.trees > 1:
                break
    engine.close()
    pool.close()
    return {
        "search": setting.name,
        "tasks in flight": setting.trees,
        "leaves": setting.leaves,
        "idle": f"{1 - slot_seconds / (arguments.slots * (end - began)):.1%}",
        "simulations/s": round(simulations / (end - began), 1),
        "samples/simulation": round(samples / max(1, simulations), 1),
    }


def lock_step(tasks: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the row of trees that step together: all generate, then all wait for the slowest tool.

    The generator batches continuously: a sample begins as soon as a slot is free, whatever request it belongs to.
    Computed, not run: no time passes between a tool's answer and the next request.
    """
    rng, busy, now = random.Random(0), 0.0, 0.0
    for _ in range(200):
        free = [now] * arguments.slots
        for _ in range(tasks * 4):
            length = arguments.seconds * (0.5 + rng.random())
            heapq.heapreplace(free, free[0] + length)
            busy += length
        now = max(free) + max(arguments.seconds * arguments.ratio * (0.5 + rng.random()) for _ in range(tasks))
    return {
        "search": "lock-step, batched continuously (computed)", "tasks in flight": tasks, "leaves": 1,
        "idle": f"{1 - busy / (arguments.slots * now):.1%}", "simulations/s": "",
        "samples/simulation": "",
    }  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=0.04, help="mean time of one sample")
    parser.add_argument("--ratio", type=float, default=2.0, help="tool time / sample time")
    parser.add_argument("--simulations", type=int, default=32)
    parser.add_argument("--rounds", type=float, default=2.0, help="tasks per tree in flight")
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    from _common import write_result

    rows = [measure(Setting("serial", 1, 1), arguments)]
    rows += [lock_step(tasks, arguments) for tasks in (32, 64, 128, 256)]  # 32 x 4 leaves are 128 in flight
    for setting in (
        Setting("asynchronous", 32, 4),
        Setting("asynchronous", 64, 4),
    ):
        rows.append(measure(setting, arguments))
    write_result(
        "generator_idle",
        rows,
        {"slots": arguments.slots, "seconds per sample": arguments.seconds, "tools / sample": arguments.ratio},
    )


if __name__ == "__main__":
    main()
