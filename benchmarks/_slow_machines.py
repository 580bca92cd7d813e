"""A row of machines whose arms take a while to pull: tools that wait, as a web page or a container does."""

from __future__ import annotations

import time

from examples.machines import Machines


class SlowMachines(Machines):
    """The machines of examples/machines.py.

    Args:
        seconds: Of a pull, which waits and computes nothing.
        machines: In a row.
    """

    def __init__(self, seconds: float = 0.05, machines: int = 3) -> None:
        super().__init__(machines)
        self._seconds = seconds

    def _pull(self, arm: str) -> str:
        time.sleep(self._seconds)
        return super()._pull(arm)
