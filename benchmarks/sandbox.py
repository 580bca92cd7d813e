"""The sandbox's speed: a call, a cell of a session and a verdict, beside a start of Python in the same run.

    python benchmarks/sandbox.py [--calls 100] [--levels bubblewrap,namespaces,limits]

The ratios say more than the milliseconds where other programs use the processors.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from offline_agent.judges.code import TestRun
from offline_agent.sandbox import Sandbox, SandboxError

REQUEST = {"op": "cell", "code": "1 + 1"}


def timed(function: Callable[[], object], calls: int) -> float:
    """Return the median of the calls, in ms."""
    times = []
    for _ in range(calls):
        began = time.perf_counter()
        function()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--levels", default="bubblewrap,namespaces,limits")
    given = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    print(f"{'':12} {'python -I -S':>14} {'call':>8} {'ratio':>6} {'cell':>8} {'session':>8} {'8 tests':>8}")
    for level in given.levels.split(","):
        sandbox = Sandbox(level)
        try:
            sandbox.run_program("pass")
        except SandboxError as error:
            print(f"{level:12} {error}")
            continue
        start = timed(lambda: subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True), given.calls)
        call = timed(lambda sandbox=sandbox: sandbox.run_program("pass"), given.calls)  # type: ignore[misc]
        with sandbox.session() as session:
            cell = timed(lambda session=session: session.ask(REQUEST), given.calls)  # type: ignore[misc]

        def opened(sandbox: Sandbox = sandbox) -> None:
            with sandbox.session() as session:
                session.ask(REQUEST)

        def judged(sandbox: Sandbox = sandbox) -> None:
            with TestRun("def f(x): return x + 1", sandbox=sandbox) as run:
                assert all(one.passed for one in run.outcomes([f"assert f({n}) == {n + 1}" for n in range(8)]))

        session_ms, verdict = timed(opened, given.calls), timed(judged, max(5, given.calls // 5))
        print(f"{level:12} {start:14.1f} {call:8.1f} {call / start:6.2f} {cell:8.2f} {session_ms:8.1f} {verdict:8.1f}")
        sandbox.close()


if __name__ == "__main__":
    main()
