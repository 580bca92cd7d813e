"""Growth of throughput with the number of servers (simulated) and with the number of Ray workers (real).

Run `python benchmarks/scaling.py` for both, `--simulated` or `--real` for one of them; `--trees 1000000` also simulates
one search of so many trees with the most servers.

Simulated: first the embedded default model plays searches of the shop in this process, as many samples at once as
`--slots`; prompt tokens computed, tokens sampled and seconds of every sample are recorded. Then clusters of 1 to 64
such servers run in virtual time: the scheduler, the searches and the router are the project's own, a server takes for
a sample as long as was measured for one of like lengths, its prefix cache and its queue are kept account of, and so is
the time that the driver's one thread needs for each answer (measured too). Efficiency of N servers is their samples a
second over N times those of one, in the steady part: until fewer trees are left than may be in flight.

Real: `build_prefs launcher=ray` with one and with two workers, in an environment whose tools compute; needs two cores
with nothing else to do, and the extra `ray`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from _cluster_simulation import Latencies, Outcomes, Sample, Setting, simulate
from _common import RESULTS, write_result

from offline_agent.policies.base import Answer, Done, Engine, Proposals, ProposeRequest, Usage
from offline_agent.records import Action

SERVERS = (1, 2, 4, 8, 16, 32, 64)
GOAL, REAL_GOAL = 0.9, 1.7
CONCURRENCY = 32  # policy.concurrency as it is by default


class Recorder:
    """An engine that asks for every sample apart, as with real servers, so many at once, and notes what each took.

    Args:
        engine: Answers.
        slots: Samples at once; others wait here, uncounted.
    """

    def __init__(self, engine: Engine, slots: int) -> None:
        self._engine, self._free = engine, slots
        self._waiting: list[tuple[ProposeRequest, Done]] = []
        self._lock = threading.Lock()
        self.samples: list[Sample] = []
        self.level: list[tuple[float, int]] = []
        self._open = 0

    @property
    def busy_seconds(self) -> float:
        """See `Engine.busy_seconds`."""
        return self._engine.busy_seconds

    def submit(self, request: ProposeRequest, done: Done) -> None:
        """See `Engine.submit`."""
        parts: list[Proposals | None] = [None] * len(request.seeds)
        lock = threading.Lock()

        def take(index: int, answer: Answer) -> None:
            if not isinstance(answer, Proposals):
                raise answer
            with lock:
                parts[index] = answer
                known = [part for part in parts if part is not None]
            if len(known) == len(parts):
                actions: tuple[Action, ...] = tuple(part.actions[0] for part in known)
                done(Proposals(actions, Usage(*map(sum, zip(*(part.usage for part in known), strict=True)))))

        for index, seed in enumerate(request.seeds):
            one = request._replace(seeds=(seed,))
            self._ask(one, lambda answer, index=index: take(index, answer))  # type: ignore[misc]

    def _ask(self, request: ProposeRequest, done: Done) -> None:
        with self._lock:
            if not self._free:
                self._waiting.append((request, done))
                return
            self._free -= 1
            self._open += 1
            started = time.perf_counter()
            self.level.append((started, self._open))

        def ended(answer: Answer) -> None:
            now = time.perf_counter()
            with self._lock:
                self._free += 1
                self._open -= 1
                self.level.append((now, self._open))
                following = self._waiting.pop(0) if self._waiting else None
                if isinstance(answer, Proposals):
                    usage = answer.usage
                    depth = request.context.depth
                    sample = Sample(usage.prefilled, usage.cached, usage.generated, now - started, depth)
                    self.samples.append(sample)
            if following is not None:
                self._ask(*following)
            done(answer)

        self._engine.submit(request, ended)

    def close(self) -> None:
        """See `Engine.close`."""
        self._engine.close()

    def occupied(self) -> float:
        """Return the mean number of samples under way."""
        pairs = list(itertools.pairwise(self.level))
        area = sum((later - now) * count for (now, count), (later, _) in pairs)
        return area / (self.level[-1][0] - self.level[0][0])


def measure(arguments: argparse.Namespace) -> tuple[list[Sample], dict[str, Any], float]:
    """Search the shop with the default model in this process; return samples, facts, the driver's seconds a sample."""
    from offline_agent.envs.base import EnvSpec
    from offline_agent.envs.pool import EnvPool
    from offline_agent.policies.hf.policy import HFPolicy
    from offline_agent.search.restore import Restorer
    from offline_agent.search.scheduler import Scheduler
    from offline_agent.search.settings import SearchSettings
    from offline_agent.search.tree_search import TreeSearch

    spec = EnvSpec.load("shop", {})
    policy = HFPolicy(arguments.model, slots=arguments.slots)
    engine, pool = Recorder(policy.engine(), arguments.slots), EnvPool(2)
    settings = SearchSettings(simulations=arguments.simulations, leaves_in_flight=arguments.leaves)
    tasks = list(itertools.islice(spec.tasks("train"), arguments.measured))
    scheduler = Scheduler(engine, pool, trees_in_flight=len(tasks))

    def searches() -> Any:
        for task in tasks:
            yield TreeSearch(task, Restorer(spec, task), settings, segment=policy.renderer.segment), ()

    for _ in scheduler.run(searches()):  # everything is warm after this
        pass
    policy.forget()
    engine.samples.clear()
    engine.level.clear()
    scheduler = Scheduler(engine, pool, trees_in_flight=len(tasks))
    started, thread = time.perf_counter(), time.thread_time()
    for _ in scheduler.run(searches()):
        pass
    seconds, own = time.perf_counter() - started, time.thread_time() - thread
    engine.close()
    pool.close()
    samples = engine.samples
    facts = {
        "samples measured": len(samples),
        "samples under way, mean": round(engine.occupied(), 1),
        "measured samples/s": round(len(samples) / seconds, 2),
        "mean seconds of a sample": round(sum(one.seconds for one in samples) / len(samples), 4),
        "prompt tokens, mean": round(sum(one.computed + one.cached for one in samples) / len(samples)),
        "of these computed": round(sum(one.computed for one in samples) / len(samples), 1),
        "tokens sampled, mean": round(sum(one.generated for one in samples) / len(samples), 1),
        "driver's seconds a sample": round(own / len(samples), 6),
    }
    return samples, facts, own / len(samples)


def simulated(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows and facts of the simulation."""
    samples, facts, driver = measure(arguments)
    slots = max(1, round(facts["samples under way, mean"]))
    mean = facts["mean seconds of a sample"]
    latencies = Latencies(samples)
    rows: list[dict[str, Any]] = []
    per_server = -(-3 * slots // arguments.leaves)  # three times as many simulations in flight as slots

    def run(name: str, servers: int, trees: int | None = None, tasks: int | None = None, **more: Any) -> Outcomes:
        wanted = per_server * servers if trees is None else trees
        setting = Setting(
            servers, slots, wanted, arguments.leaves, tasks or max(wanted * 2, per_server * servers * 2),
            arguments.simulations, arguments.ratio * mean, **{"driver_seconds": driver, "most": CONCURRENCY, **more},
        )  # fmt: skip
        found = simulate(setting, latencies)
        assert found.asked == found.answered, "a sample was lost"
        one = rows[0]["samples/s"] if rows else found.rate
        rows.append({
            "cluster": name, "servers": servers, "trees in flight": wanted, "leaves": arguments.leaves,
            "samples/s": found.rate,
            "efficiency": round(found.rate / servers / one, 4),
            "with the end": round(found.whole_samples / found.whole_seconds / servers / one, 4),
            "idle, mean": round(sum(found.idle) / servers, 4), "idle, most": round(max(found.idle), 4),
            "cached, mean": round(sum(found.hits) / servers, 4), "cached, least": round(min(found.hits), 4),
            "driver busy": round(found.driver, 4),
        })  # fmt: skip
        print(f"{name}, {servers} servers: efficiency {rows[-1]['efficiency']:.1%}", file=sys.stderr, flush=True)
        return found

    for servers in SERVERS:
        run("default", servers)
    most = SERVERS[-1]
    run("search.trees_in_flight=64 as it is by default", most, trees=64)
    run(f"policy.concurrency={4 * CONCURRENCY}: none waits before it is routed", most, most=4 * CONCURRENCY)
    run("sent at random to a server with a free slot", most, routing="random")
    run("a driver that costs nothing", most, driver_seconds=0.0)
    if arguments.trees:
        begun, small = time.perf_counter(), memory()
        found = run(f"{arguments.trees:,} trees", most, tasks=arguments.trees)
        facts["many trees"] = {
            "trees": len(found.trees), "samples": found.answered, "lost": found.asked - found.answered,
            "simulated hours": round(found.whole_seconds / 3600, 2),
            "seconds here": round(time.perf_counter() - begun),
            "memory before, MB": small, "most memory, MB": memory(),
        }  # fmt: skip
    facts |= {
        "slots of a server": slots,
        "policy.concurrency": CONCURRENCY,
        "tools / sample": arguments.ratio,
        "simulated / measured samples/s of one server": round(rows[0]["samples/s"] / facts["measured samples/s"], 3),
        "servers that one driver could feed": round(1 / (driver * rows[0]["samples/s"])),
        "goal: efficiency at 64": GOAL,
        "reached": rows[len(SERVERS) - 1]["efficiency"],
    }
    return rows, facts


def memory() -> int:
    """Return the most resident memory of this process so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def real(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run build_prefs on Ray with one worker and with two, in turn; return rows and facts."""
    rows: list[dict[str, Any]] = []
    best: dict[int, float] = {}
    for number, workers in itertools.product(range(arguments.repeats), (1, 2)):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run"
            command = [
                sys.executable, "-m", "offline_agent.pipelines.build_prefs", "env=_slow_shop:SlowShop",
                f"env.seconds={arguments.tool_seconds}", "policy=noisy", f"tasks.n={arguments.tasks}",
                "search.simulations=16", "limits.workers=2", "pairs.kinds=[step,trajectory]",
                "launcher=ray", f"ray.workers={workers}", "tracking.uri=null",
                f"run_dir={path}",
            ]  # fmt: skip
            here = str(Path(__file__).parent)
            paths = os.pathsep.join(filter(None, [here, str(Path(here).parent), os.environ.get("PYTHONPATH")]))
            started = time.perf_counter()
            done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}, check=False)
            wall = time.perf_counter() - started
            if done.returncode:
                sys.exit(done.returncode)
            summary = json.loads((path / "summary.json").read_text())
            shards = [json.loads(file.read_text()) for file in path.glob("shards/*/summary.json")]
        seconds = max(shard["seconds"]["search"] for shard in shards)
        best[workers] = min(best.get(workers, seconds), seconds)
        rows.append({
            "cluster": "Ray, real", "repeat": number, "workers": workers, "simulations": summary["simulations"],
            "tool calls": summary["tool_calls"], "search, s": round(seconds, 2), "whole command, s": round(wall, 2),
        })  # fmt: skip
    speedup = best[1] / best[2]
    return rows, {"two workers are faster by": round(speedup, 3), "goal: two workers": REAL_GOAL}


def main() -> None:
    """Measure, simulate, print and write; a part that is not run keeps what an earlier run found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulated", action="store_true", help="only the simulation")
    parser.add_argument("--real", action="store_true", help="only Ray")
    parser.add_argument("--model", default=None, help="of the measurement; default: the embedded one")
    parser.add_argument("--slots", type=int, default=16, help="samples at once in the measurement")
    parser.add_argument("--measured", type=int, default=12, help="tasks of the measurement")
    parser.add_argument("--simulations", type=int, default=16, help="of each tree")
    parser.add_argument("--leaves", type=int, default=4, help="simulations of one tree in flight")
    parser.add_argument("--trees", type=int, default=0, help="of one long search, simulated; 0 = none")
    parser.add_argument("--ratio", type=float, default=0.5, help="tool time / time of a sample, in the simulation")
    parser.add_argument("--tasks", type=int, default=96, help="of the runs on Ray")
    parser.add_argument("--tool-seconds", type=float, default=0.02, help="of computing in each tool call on Ray")
    parser.add_argument("--repeats", type=int, default=2, help="of the runs on Ray; the fastest counts")
    parser.add_argument("--out", type=Path, default=None, help="another file for the result")
    arguments = parser.parse_args()
    both = arguments.simulated == arguments.real
    found = _before(arguments.out or RESULTS / "scaling.json")
    if both or arguments.simulated:
        found["simulated"] = simulated(arguments)
    if both or arguments.real:
        found["real"] = real(arguments)
    rows = [row for part in ("simulated", "real") if part in found for row in found[part][0]]
    facts = {part: found[part][1] for part in ("simulated", "real") if part in found}
    write_result("scaling", rows, facts, arguments.out)


def _before(path: Path) -> dict[str, tuple[list[dict[str, Any]], dict[str, Any]]]:
    """Return what an earlier run found, by part."""
    try:
        told = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    out = {}
    for part in ("simulated", "real"):
        if part in told["facts"]:
            rows = [row for row in told["rows"] if (row["cluster"] == "Ray, real") == (part == "real")]
            out[part] = (rows, told["facts"][part])
    return out


if __name__ == "__main__":
    main()
