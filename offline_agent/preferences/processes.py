"""Processes that mine trees side by side; the rows and their order are those of one process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from offline_agent.errors import DataError, OfflineAgentError

_AHEAD = 4  # trees for each process that wait for it, or for those before them
_GRACE = 10.0  # seconds that idle processes may take to end

Mine = Callable[[str], Any]
"""Returns what is mined from the tree of a task."""


class MinerProcesses:
    """Miners in processes of their own; a bounded number of trees is with them.

    Args:
        make: Returns the miner of a process; can be pickled.
        processes: Number of processes.
    """

    def __init__(self, make: Callable[[], Mine], processes: int) -> None:
        self._ahead = _AHEAD * processes
        self._waiting: deque[Future[Any]] = deque()
        context = multiprocessing.get_context("spawn")  # threads and open files do not survive a fork
        self._pool = ProcessPoolExecutor(processes, context, _begin, (make,))

    def map(self, task_ids: Iterable[str]) -> Iterator[Any]:
        """Yield what is mined of each tree, in order. Raises DataError where a process dies."""
        try:
            for task_id in task_ids:
                self._waiting.append(self._pool.submit(_mine, task_id))
                if len(self._waiting) >= self._ahead:
                    yield self._waiting.popleft().result()
            while self._waiting:
                yield self._waiting.popleft().result()
        except BrokenProcessPool as error:
            raise DataError(
                f"a process that builds pairs died ({error}); is there memory for pairs.miners of them? Nothing is "
                "lost: give the same command again"
            ) from error

    def close(self) -> None:
        """End the processes: those that have nothing to do by themselves, the others whatever they are at."""
        processes = list(self._pool._processes.values())
        until = time.monotonic() + (0.0 if self._waiting else _GRACE)
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.join(max(0.0, until - time.monotonic()))
            process.terminate()


_miner: Mine | OfflineAgentError | None = None
"""The miner of a process of `MinerProcesses`, or why it has none."""


def _begin(make: Callable[[], Mine]) -> None:
    global _miner
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the command ends its processes itself
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _miner = make()
    except OfflineAgentError as error:
        _miner = error  # raised where the first tree is asked for: an error here would only break the pool


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is one of the pool's
    parent.join()
    os._exit(1)


def _mine(task_id: str) -> Any:
    if not callable(_miner):
        raise _miner or RuntimeError("this process was not begun")
    return _miner(task_id)
