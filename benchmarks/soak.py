"""Searches over a pool of servers while servers, workers and the driver are killed at random: nothing lost or doubled.

Run `python benchmarks/soak.py` (`--hours 24` for a day; half an hour without; `--launchers local` where there is no
Ray). Fake model servers are started by this script, each a process of its own. First `build_prefs` runs undisturbed.
Then it is run again and again, under each launcher in turn, and every few seconds, if it came on since, something is
killed with SIGKILL: a server (started again a little later), a worker of Ray's, or the driver, whose command is then
given again. After each run trees, pairs and trajectories must be the undisturbed run's to the byte, the event log must
have every simulation once, and no process and no temporary file of ours may be left. Runs that passed are removed, so
that a day takes no more disk than an hour. A row is a launcher.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from _common import write_result

from offline_agent.store.columns import PAIR_TABLES
from offline_agent.store.events import EventLog

HERE = Path(__file__).parent
BAD = ("trees lost", "trees that differ", "tables that differ", "simulations lost", "simulations doubled",
       "processes left", "temporary files left")  # fmt: skip
TABLES = ("trees", *PAIR_TABLES, "filtered", "trajectories")
KEYS = [
    "env=shop", "policy=server", "policy.model=fake", "policy.temperature=1", "policy.batch_invariant=true",
    "policy.backoff=0.2", "policy.patience=300", "policy.timeout=30", "search.max_steps=6", "limits.workers=2",
    "pairs.min_visits=1", "pairs.confidence=0.5",
    "pairs.min_gap=0.01", "pairs.length_tolerance=1", "tracking.uri=null",
]  # fmt: skip
ENVIRONMENT = {
    **os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")])),
}  # fmt: skip


class Servers:
    """Fake model servers at fixed ports.

    Args:
        count: How many.
        seconds: Of every answer.
    """

    def __init__(self, count: int, seconds: float) -> None:
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
            for one in sockets:
                one.bind(("127.0.0.1", 0))
            self.ports = [one.getsockname()[1] for one in sockets]
        self._seconds = seconds
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * count
        self._back = [0.0] * count
        for number in range(count):
            self._start(number)

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """Those that are alive."""
        return [process for process in self._processes if process is not None]

    @property
    def key(self) -> str:
        """The configuration's key for them."""
        return f"policy.url=[{','.join(f'http://127.0.0.1:{port}/v1' for port in self.ports)}]"

    def kill(self, number: int, seconds: float) -> bool:
        """Kill one, to be started again so many seconds later; False where it is dead already."""
        process = self._processes[number]
        if process is None:
            return False
        process.kill()
        process.wait()
        self._processes[number] = None
        self._back[number] = time.monotonic() + seconds
        return True

    def mend(self) -> None:
        """Start those again whose time has come."""
        for number, process in enumerate(self._processes):
            if process is None and time.monotonic() >= self._back[number]:
                self._start(number)

    def close(self) -> None:
        """End all servers."""
        for process in self._processes:
            if process is not None:
                process.kill()
                process.wait()

    def _start(self, number: int) -> None:
        command = [sys.executable, str(HERE / "_fake_server.py"), str(self.ports[number]), str(self._seconds)]
        self._processes[number] = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.ports[number]), 1):
                return
            time.sleep(0.05)
        raise SystemExit("a fake server did not start")


@dataclass
class Driver:
    """A command that is given again whenever it was killed.

    Attributes:
        command: The command.
        said: Where its output goes.
        family: Every process it had, so that none is left behind.
    """

    command: list[str]
    said: Path
    process: subprocess.Popen[bytes] | None = None
    family: dict[int, psutil.Process] = field(default_factory=dict)

    def start(self) -> None:
        """Start the command, its output appended to the log."""
        with open(self.said, "ab") as said:
            self.process = subprocess.Popen(self.command, stdout=said, stderr=said, env=ENVIRONMENT)

    def look(self) -> list[psutil.Process]:
        """Return the workers of Ray's that it has now."""
        assert self.process is not None
        workers = []
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                self.family[child.pid] = child
                with contextlib.suppress(psutil.Error):
                    if any(word.startswith("ray::_run") for word in child.cmdline()[:1]):
                        workers.append(child)
        return workers

    def kill(self) -> None:
        """Kill it, and wait until all it had is gone; what will not go is killed too."""
        assert self.process is not None
        self.look()
        self.process.kill()
        self.end()

    def end(self) -> None:
        """Wait until it is gone, with all it had."""
        assert self.process is not None
        self.process.wait()
        _, left = psutil.wait_procs(list(self.family.values()), timeout=15)
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=15)
        self.family.clear()


def digests(run_dir: Path) -> dict[str, str]:
    """Return the hash of every tree and table."""
    files = [file for table in TABLES for file in sorted((run_dir / table).rglob("*")) if file.is_file()]
    return {str(file.relative_to(run_dir)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def simulations(run_dir: Path) -> Counter[tuple[str, int]]:
    """Return how often the event log has each simulation of each tree."""
    logs = [run_dir / "events" / "0000.jsonl", *run_dir.glob("shards/*/events/0000.jsonl")]
    records = (record for log in logs for record in EventLog(log).read())
    return Counter((record["tree"], record["t"]) for record in records if "tree" in record)


@dataclass
class Soak:
    """The soak: what it runs, and what it has seen.

    Attributes:
        arguments: Of the command line.
        folder: Where runs go.
        servers: The pool.
        rng: Draws what is killed, and when.
        temporary: For temporary files.
        whole: What the undisturbed run left, and the simulations in its log.
    """

    arguments: argparse.Namespace
    folder: Path
    servers: Servers
    rng: random.Random
    temporary: Path
    whole: tuple[dict[str, str], Counter[tuple[str, int]]] = field(default_factory=lambda: ({}, Counter()))

    def command(self, run_dir: Path, *more: str) -> list[str]:
        """Return the command line of a run."""
        keys = [*KEYS, self.servers.key, f"tasks.n={self.arguments.tasks}", "search.simulations=16", *more]
        return [sys.executable, "-m", "offline_agent.pipelines.build_prefs", *keys, f"run_dir={run_dir}"]

    def undisturbed(self) -> float:
        """Run once in peace; return the seconds."""
        run_dir, started = self.folder / "whole", time.monotonic()
        done = subprocess.run(self.command(run_dir), env=ENVIRONMENT, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise SystemExit("the undisturbed run failed")
        self.whole = digests(run_dir), simulations(run_dir)
        return time.monotonic() - started

    def disturbed(self, number: int, launcher: str) -> dict[str, Any]:
        """Run once with kills, and return the figures."""
        run_dir = self.folder / f"run-{number}"
        keys = [] if launcher == "local" else ["launcher=ray", "ray.workers=2", "ray.deaths=20"]
        driver = Driver(self.command(run_dir, *keys), self.folder / f"run-{number}.log")
        kills: Counter[str] = Counter()
        resumed = gave_up = 0
        started = time.monotonic()
        driver.start()
        following, seen = started + self.rng.uniform(1, self.arguments.every), 0
        try:
            while True:
                assert driver.process is not None
                status = driver.process.poll()
                if status == 0:
                    break
                if status is not None:  # nobody killed it: it says why, and goes on where it was
                    gave_up += 1
                    driver.end()
                    if gave_up > 5:
                        raise SystemExit(f"it gives up again and again:\n{driver.said.read_text()[-3000:]}")
                    driver.start()
                    resumed += 1
                self.servers.mend()
                workers = driver.look()
                if time.monotonic() >= following and (now := self._progress(run_dir)) != seen:
                    seen = now if now >= 0 else seen
                    what = self.rng.choice(self._victims(workers, kills["driver"]))
                    kills[what] += self._kill(what, driver, workers)
                    if what == "driver":
                        driver.start()
                        resumed += 1
                    following = time.monotonic() + self.rng.uniform(0.5, self.arguments.every)
                time.sleep(0.05)
        finally:
            if driver.process is not None and driver.process.poll() is None:
                driver.kill()
            driver.end()
        return {
            "runs": 1, "seconds": round(time.monotonic() - started, 1),
            **{f"{what}s killed": kills[what] for what in ("server", "worker", "driver")},
            "resumed": resumed, "of these it stopped itself": gave_up, **self._compare(run_dir), **self._left(),
        }  # fmt: skip

    def _left(self) -> dict[str, int]:
        """Return what a run left behind, and remove its temporary files; Ray's sessions are its own."""
        kept = {process.pid for process in self.servers.processes}
        alive = [one for one in psutil.Process().children(recursive=True) if one.pid not in kept]
        names = os.listdir(self.temporary)
        shutil.rmtree(self.temporary)
        self.temporary.mkdir()
        return {"processes left": len(alive), "temporary files left": sum(name != "ray" for name in names)}

    def _progress(self, run_dir: Path) -> int:
        """Return the size of the event log: nothing is killed twice on the way to the same point; -1 = all searched."""
        with contextlib.suppress(OSError):
            if len(list((run_dir / "trees").glob("*.json.gz"))) == self.arguments.tasks:
                return -1
        with contextlib.suppress(OSError):
            return sum(file.stat().st_size for file in run_dir.glob("**/events/*.jsonl"))
        return 0

    def _victims(self, workers: list[psutil.Process], drivers: int) -> list[str]:
        most = self.arguments.drivers
        return ["server", "server", *(["worker"] * 2 if workers else []), *(["driver"] if drivers < most else [])]

    def _kill(self, what: str, driver: Driver, workers: list[psutil.Process]) -> bool:
        if what == "server":
            return self.servers.kill(self.rng.randrange(len(self.servers.ports)), self.rng.uniform(0.5, 5))
        if what == "worker":
            with contextlib.suppress(psutil.Error):
                self.rng.choice(workers).send_signal(signal.SIGKILL)
                return True
            return False
        driver.kill()
        return True

    def _compare(self, run_dir: Path) -> dict[str, int]:
        files, logged = digests(run_dir), simulations(run_dir)
        trees = [name for name in self.whole[0] if name.startswith("trees/")]
        return {
            "trees": len(trees),
            "trees lost": sum(name not in files for name in trees),
            "trees that differ": sum(name in files and files[name] != self.whole[0][name] for name in trees),
            "tables that differ": sum(
                files.get(name) != self.whole[0].get(name) for name in {*files, *self.whole[0]} - set(trees)
            ),
            "simulations lost": len(self.whole[1].keys() - logged.keys()),
            "simulations doubled": sum(count > 1 for count in logged.values()),
        }


def main() -> None:
    """Soak, print, write; exit with 1 where anything was lost, doubled or different."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=0.5)
    parser.add_argument("--launchers", nargs="+", default=["local", "ray"], choices=["local", "ray"])
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.05, help="of every answer")
    parser.add_argument("--tasks", type=int, default=24)
    parser.add_argument("--every", type=float, default=6.0, help="most seconds between two kills")
    parser.add_argument("--drivers", type=int, default=3, help="most kills of the driver in one run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="another file for the result")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and drivers are ended
    totals: dict[str, Counter[str]] = {launcher: Counter() for launcher in arguments.launchers}
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        (temporary := folder / "t").mkdir()
        ENVIRONMENT.update(TMPDIR=str(temporary), RAY_TMPDIR=str(temporary))
        servers = Servers(arguments.servers, arguments.seconds)
        try:
            soak = Soak(arguments, folder, servers, random.Random(arguments.seed), temporary)
            peace, until = soak.undisturbed(), time.monotonic() + 3600 * arguments.hours
            for number, launcher in enumerate(itertools.cycle(arguments.launchers)):
                if number >= len(arguments.launchers) and time.monotonic() > until:
                    break
                found = soak.disturbed(number, launcher)
                totals[launcher].update(found)
                print(number, launcher, found, file=sys.stderr, flush=True)
                if any(found[name] for name in BAD):
                    kept = shutil.copytree(folder / f"run-{number}", f"soak-run-{number}")
                    raise SystemExit(f"run {number} lost, doubled, changed or left something: {found}; it is in {kept}")
                shutil.rmtree(folder / f"run-{number}")
        finally:
            servers.close()
    rows = [{"launcher": launcher, **total} for launcher, total in totals.items()]
    hours = sum(total["seconds"] for total in totals.values()) / 3600
    write_result("soak", rows, {"hours": round(hours, 2), "undisturbed run, s": round(peace, 1)}, arguments.out)


if __name__ == "__main__":
    main()
