"""A hostile policy in the environments that run code or SQL: nothing escapes, hangs, or scores above its floor.

    python benchmarks/hostile.py --minutes 10 [--envs code,math,repo,rows,sql] [--workers 2]

Episodes are drawn at random until the time is over. The floor of an episode is 0: the policy solves nothing. Around it
are a file, an environment variable, a listening socket and a sleeping process that must not be reached; after it no
process of a program may be left, and an honest episode must still score 1.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ["HOSTILE_CANARY"] = "canary-of-the-environment"
SECRETS = ("canary-of-the-environment", "canary-of-the-file")

sys.path.insert(0, str(Path(__file__).parents[1]))  # for tests.helpers

from _common import write_result  # noqa: E402

from offline_agent.envs.base import EnvSpec  # noqa: E402  (after the variable that must not be seen)
from offline_agent.envs.play import play  # noqa: E402
from offline_agent.errors import EnvironmentFault  # noqa: E402
from offline_agent.policies.base import Proposals, ProposeRequest  # noqa: E402
from offline_agent.policies.scripted import OraclePolicy  # noqa: E402
from offline_agent.records import Action, Context, Task  # noqa: E402
from offline_agent.sandbox import shared  # noqa: E402
from offline_agent.sandbox.launch import user_number  # noqa: E402
from offline_agent_environments.repo.tests import repository  # noqa: E402
from offline_agent_environments.tests.hostile_policy import HostilePolicy  # noqa: E402

_SLOW = 120.0


def episode(spec: EnvSpec, task: Task, policy: Any, seed: int) -> tuple[float | None, list[str], list[str], float]:
    """Play an episode; return its score, what was done, what was observed, and its seconds."""
    began, number = time.monotonic(), 0

    def choose(context: Context) -> Action:
        nonlocal number
        number += 1
        answer = policy.propose([ProposeRequest(context, (seed * 1000 + number,), 1.0)])[0]
        assert isinstance(answer, Proposals), answer
        return answer.actions[0]

    one = spec.open()
    try:
        played = play(one, task, choose, 8)
    finally:
        one.close()
    score = None if played.verdict is None else played.verdict.score
    done, seen = [step.action.text for step in played.steps], [str(step.observation) for step in played.steps]
    return score, done, seen, time.monotonic() - began


def attacked(name: str, end: float, workers: int, seed: int, folder: str) -> dict[str, Any]:
    """Attack an environment until a time, with a folder that statements reach for; return the counts."""
    if name == "rows":  # `repo` with a repository of its own
        place = tempfile.TemporaryDirectory()  # it goes with the variable
        spec, split = EnvSpec.load("repo", repository.written(Path(place.name))), "test"
    else:
        # a constant passes some of a problem's tests: it must pass all
        spec, split = EnvSpec.load(name, {"score": "all"} if name == "code" else {}), "train"
    tasks = [task for _, task in zip(range(50), spec.tasks(split), strict=False)]
    counts: Counter[str] = Counter()
    times: list[float] = []
    lock = threading.Lock()

    def run(worker: int) -> None:
        rng = random.Random(f"{seed} {name} {worker}")
        policy = HostilePolicy(folder)
        while time.monotonic() < end:
            try:
                score, done, seen, seconds = episode(spec, rng.choice(tasks), policy, rng.randrange(2**30))
            except EnvironmentFault:
                score, done, seen, seconds = None, [], [], 0.0
                with lock:
                    counts["faults"] += 1
            with lock:
                times.append(seconds)
                counts["episodes"] += 1
                counts["unscored"] += score is None
                counts["above the floor"] += bool(score)
                if score:
                    print(f"{name}: an attack scored {score:.2f}:", *done, sep="\n", file=sys.stderr)
                counts["secrets seen"] += any(secret in text for secret in SECRETS for text in seen)
                counts["slow"] += seconds > _SLOW

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(run, range(workers)))
    oracle = OraclePolicy(spec.demonstrate)
    honest = [episode(spec, task, oracle, 0)[0] for task in (tasks * 5)[:5]]
    counts["honest episodes at 1"] = sum(score == 1.0 for score in honest)
    return {**counts, "longest": max(times, default=0.0)}


def left_behind() -> int:
    """Return the number of processes that programs of this run have left; 0 where root did not start it.

    A sandbox that is kept warm has one process, its own, in a PID namespace of its own; any other was left.
    """
    first = user_number()
    if not first:  # not root: programs have the caller's own number outside
        return 0
    spaces: Counter[str] = Counter()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if first <= entry.stat().st_uid < first + 1024:
                    spaces[os.readlink(entry / "ns" / "pid")] += 1
            except OSError:  # it ended
                continue
    outside = spaces.pop(os.readlink("/proc/self/ns/pid"), 0)
    return outside + sum(count - 1 for count in spaces.values())


def main() -> None:
    """Attack each environment in turn; print the table; exit with 1 where something got through."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--envs", default="code,math,repo,rows,sql")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    names = given.envs.split(",")
    with tempfile.TemporaryDirectory() as folder, socket.socket() as server:
        Path(folder, "canary.txt").write_text("canary-of-the-file")
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.setblocking(False)
        victim = subprocess.Popen(["sleep", "100000"])
        found = {}
        try:
            for name in names:
                end = time.monotonic() + 60 * given.minutes / len(names)
                found[name] = attacked(name, end, given.workers, given.seed, folder)
            alive = victim.poll() is None
        finally:
            victim.kill()
            victim.wait()
        try:
            server.accept()
            reached = True
        except BlockingIOError:
            reached = False
        untouched = os.listdir(folder) == ["canary.txt"]
    time.sleep(1.0)
    level, left = shared().level, left_behind()
    shared().close()
    columns = ("episodes", "above the floor", "unscored", "faults", "secrets seen", "slow", "honest episodes at 1")
    facts = {
        "minutes": given.minutes, "sandbox": level, "process beside it alive": alive, "socket reached": reached,
        "file untouched": untouched, "processes left behind": left,
    }  # fmt: skip
    rows = [{"environment": name, **{c: counts.get(c, 0) for c in columns}, "longest s": counts["longest"]}
            for name, counts in found.items()]  # fmt: skip
    write_result("hostile", rows, facts)
    bad = any(c.get("above the floor") or c.get("secrets seen") or c.get("slow") for c in found.values())
    weak = any(counts["honest episodes at 1"] < 5 for counts in found.values())
    raise SystemExit(int(bad or weak or reached or left > 0 or not alive or not untouched))


if __name__ == "__main__":
    main()
