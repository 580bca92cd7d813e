"""Memory, handles and processes of one instance, beside whatever else the process does."""

from __future__ import annotations

import subprocess
import sys

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.costs import holding_of_one
from tests.helpers.audited_environments import Honest

HOLDS = "import sys; ballast = b'x' * 60_000_000; print('ready', flush=True); sys.stdin.read()"


def test_a_process_that_ends_meanwhile_hides_nothing_of_what_an_instance_holds() -> None:
    """Alone catches too high a bound on open environments: other memory was given back while it was found."""
    child = subprocess.Popen([sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline()
    opened = []

    class EndsTheChild(Honest):
        def reset(self, goal: int) -> str:
            opened.append(goal)
            if len(opened) == 3:  # the first is not counted
                child.communicate()
            self.ballast = b"x" * 40_000_000  # malloc reuses what was freed only below 32 MiB
            return super().reset(goal)

    spec = EnvSpec(EndsTheChild)
    try:
        holding = holding_of_one(spec, next(iter(spec.tasks("train"))))
    finally:
        child.kill()
        child.wait()
    assert len(opened) > 3 and holding.memory > 36_000_000 and holding.processes == 0
