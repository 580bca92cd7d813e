"""Items on workers that die: the pool of this package against Ray's own restarts and retries.

Run `python benchmarks/ray_retries.py`. Each item is ten steps of waiting, as a search waits for tools. A worker sets up
a model first (one second). One item of 32 ends its worker's process whenever it runs. Compared are the pool; actors
with `max_restarts` and `max_task_retries`, whose calls are items; and plain Ray tasks with `max_retries`, an item each.
All have two workers.

Columns: items that were given up although nothing is wrong with them; steps carried out, per step needed; set-ups;
seconds.
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from _common import write_result

from offline_agent.launch.ray import cluster
from offline_agent.launch.ray.pool import WorkerPool
from offline_agent.launch.ray.work_items import LOST, PoolSettings, WorkItem
from offline_agent.launch.ray.worker import DONE, RECORD, ItemFeed, Send

STEPS = 10
SET_UP_SECONDS = 1.0
WORKERS = 2
DEATHS = 3


class Tally:
    """Ray actor that counts over all processes."""

    def __init__(self) -> None:
        self._counts: collections.Counter[str] = collections.Counter()

    def add(self, name: str) -> None:
        """Add one."""
        self._counts[name] += 1

    def take(self) -> dict[str, int]:
        """Return the counts, and begin anew."""
        counts, self._counts = dict(self._counts), collections.Counter()
        return counts


def count(name: str) -> None:
    """Add one to a count of the tally."""
    import ray

    ray.get(ray.get_actor("tally").add.remote(name))


def set_up() -> None:
    """Wait as a model is loaded."""
    time.sleep(SET_UP_SECONDS)
    count("set-ups")


def step(item: int, number: int, poison: int | None, seconds: float) -> None:
    """Wait as for a tool; the poisonous item ends the process at its fourth step."""
    time.sleep(seconds)
    count("steps")
    if item == poison and number == 3:
        os._exit(1)


class Steps:
    """Executor of the pool: carries out the steps of all its items at once."""

    notes: tuple[str, ...] = ()

    def __init__(self, poison: int | None, seconds: float) -> None:
        set_up()
        self._poison, self._seconds = poison, seconds

    def work(self, phase: str, feed: ItemFeed, send: Send, elapsed: float) -> None:
        """See `worker.Executor`."""

        def carry_out(number: int, payload: list[int]) -> None:
            item, done = payload[0], len(payload) - 1
            for index in range(done, STEPS):
                step(item, index, self._poison, self._seconds)
                send(number, RECORD, index)
            send(number, DONE, None)

        threads = []
        while feed.wait():
            for handed in feed:
                threads.append(threading.Thread(target=carry_out, args=(handed.number, list(handed.payload))))
                threads[-1].start()
        for thread in threads:
            thread.join()

    def figures(self, last: bool) -> dict[str, Any]:
        """See `worker.Executor`."""
        return {}

    def stop(self) -> None:
        """See `worker.Executor`."""


def pool(ray: Any, items: int, in_flight: int, poison: int | None, seconds: float) -> set[int]:
    """Run the items on the pool of this package; return those that were given up."""
    lost = set()
    settings = PoolSettings(workers=WORKERS, in_flight=in_flight, deaths=DEATHS)
    with WorkerPool(lambda: Steps(poison, seconds), settings, print) as workers:
        for item, kind, value in workers.run("steps", (WorkItem(f"item-{i}", [i]) for i in range(items))):
            number = item.payload[0]
            if kind == RECORD:
                item.payload.append(value)
            elif kind == LOST:
                lost.add(number)
    return lost


def actors(ray: Any, items: int, in_flight: int, poison: int | None, seconds: float) -> set[int]:
    """Run each item as a call of an actor that Ray restarts, with `in_flight` calls at once."""

    @ray.remote(max_restarts=-1, max_task_retries=DEATHS, max_concurrency=in_flight)
    class Worker:
        def __init__(self) -> None:
            set_up()

        def item(self, number: int) -> int:
            for index in range(STEPS):
                step(number, index, poison, seconds)
            return number

    workers = [Worker.options(num_cpus=1).remote() for _ in range(WORKERS)]
    return _lost(ray, {workers[i % WORKERS].item.remote(i): i for i in range(items)})


def tasks(ray: Any, items: int, in_flight: int, poison: int | None, seconds: float) -> set[int]:
    """Run each item as a Ray task with retries; a worker process keeps its model between tasks."""

    @ray.remote(max_retries=DEATHS, num_cpus=1)
    def run(number: int) -> int:
        if not hasattr(sys, "_benchmark_model"):
            set_up()
            sys._benchmark_model = True  # type: ignore[attr-defined]
        for index in range(STEPS):
            step(number, index, poison, seconds)
        return number

    return _lost(ray, {run.remote(i): i for i in range(items)})


def _lost(ray: Any, calls: dict[Any, int]) -> set[int]:
    lost = set()
    for call, number in calls.items():
        try:
            ray.get(call)
        except ray.exceptions.RayError:
            lost.add(number)
    return lost


def main() -> None:
    """Measure and write the table."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--items", type=int, default=32)
    arguments.add_argument("--in-flight", type=int, default=8, help="items that a worker has at once")
    arguments.add_argument("--seconds", type=float, default=0.2, help="duration of a step")
    arguments.add_argument("--out", type=Path)
    given = arguments.parse_args()
    import ray

    rows = []
    with cluster.connected(None, WORKERS):
        tally = ray.remote(Tally).options(name="tally", num_cpus=0).remote()
        for poison in (None, 5):
            for name, run in (("this package's pool", pool), ("Ray actors, restarts and retries", actors),
                              ("Ray tasks with retries", tasks)):  # fmt: skip
                started = time.perf_counter()
                lost = run(ray, given.items, given.in_flight, poison, given.seconds)
                wall, counts = time.perf_counter() - started, ray.get(tally.take.remote())
                needed = given.items * STEPS - (0 if poison is None else STEPS - 3)
                rows.append({
                    "workers": name,
                    "items that end their worker": 0 if poison is None else 1,
                    "good items given up": len(lost - {poison}),
                    "steps per step needed": counts["steps"] / needed,
                    "set-ups": counts["set-ups"],
                    "seconds": wall,
                })  # fmt: skip
                print(rows[-1], flush=True)
    facts = {"items": given.items, "items at once per worker": given.in_flight, "workers": WORKERS,
             "retries": DEATHS, "seconds of a step": given.seconds, "ray": ray.__version__}  # fmt: skip
    write_result("ray_retries", rows, facts, given.out)


if __name__ == "__main__":
    main()
