"""The process that environments are forked from: it has imported the environment's class, and no heavy library.

It leads a session of its own. Copies whose original has ended become its children (it is a subreaper), so no zombie
stays. When the run ends, in whatever way, it kills the whole session.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.isolation.protocol import receive_request, send_answer
from offline_agent.envs.isolation.remote import demonstrated, facts_of
from offline_agent.envs.isolation.worker import serve
from offline_agent.errors import ConfigError, EnvironmentFault, in_words

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_REMEMBERED = 4096  # ends of processes
_PATIENCE = 2.0  # seconds to wait for the end of a process whose socket is closed
_IDLE = 1.0  # seconds after which it checks that the parent lives, and reaps ended processes


class ForkServer:
    """Forks processes of episodes, reaps them, and says how they ended.

    Args:
        spec: The environment.
        run: The socket to the run.
        parent: Process id of the run.
    """

    def __init__(self, spec: EnvSpec, run: socket.socket, parent: int) -> None:
        self._spec = spec
        self._run = run
        self._parent = parent
        self._ended: OrderedDict[int, int] = OrderedDict()
        self._listing: tuple[tuple[str, int], Iterator[Any]] | None = None

    def serve(self) -> socket.socket | None:
        """Answer requests until the run has ended; return None then, and in a new process its socket to the run."""
        while os.getppid() == self._parent:
            readable, _, _ = select.select([self._run], [], [], _IDLE)
            self._reap()
            if not readable:
                continue
            try:
                (what, *arguments), handed = receive_request(self._run)
            except (EOFError, OSError):
                return None
            if what == "open":
                try:
                    pid = os.fork()
                except OSError as error:
                    send_answer(self._run, {"fault": str(error)})
                    handed[0].close()
                    continue
                if pid == 0:
                    self._run.close()
                    return handed[0]
                handed[0].close()
                send_answer(self._run, {"pid": pid})
            elif what in ("tasks", "demonstrate"):
                send_answer(self._run, self._class_answer(what, arguments))
            elif what == "ended":
                send_answer(self._run, {"code": self._end_of(arguments[0])})
            else:
                self._kill(arguments[0])
                send_answer(self._run, {})
        return None

    def _class_answer(self, what: str, arguments: list[Any]) -> dict[str, Any]:
        """Return the answer of the class to a request of another interpreter."""
        try:
            function = partial(demonstrated, self._spec) if what == "demonstrate" else self._tasks
            answer = {"value": function(*arguments)}
            json.dumps(answer)  # a task may be anything
            return answer
        except ConfigError as error:
            return {"faults": list(error.faults)}
        except EnvironmentFault as error:
            return {"fault": str(error)}
        except BaseException as error:  # the environment's code
            return {"fault": f"{self._spec.name}: {what} raised {in_words(error)}"}

    def _tasks(self, split: str, first: int, count: int) -> list[Any]:
        """Return some tasks of a split; the listing goes on where the last request ended."""
        key, listing = (split, first), self._listing
        if listing is None or listing[0] != key:
            listing = key, islice(self._spec.entries(split), first, None)
        entries = list(islice(listing[1], count))
        self._listing = (split, first + len(entries)), listing[1]
        return entries

    def _end_of(self, pid: int) -> int | None:
        """Return how a process ended: its exit status, or minus the signal; None where it lives on, or is unknown."""
        until = time.monotonic() + _PATIENCE
        while True:
            self._reap()
            code = self._ended.get(pid, _code_of_zombie(pid))
            if code is not None or time.monotonic() > until:
                return code
            time.sleep(0.001)

    def _kill(self, pid: int) -> None:
        self._reap()
        if pid not in self._ended:  # the id of an ended process may be in use again
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                return

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._ended.pop(pid, None)
            self._ended[pid] = os.waitstatus_to_exitcode(status)
            if len(self._ended) > _REMEMBERED:
                self._ended.popitem(last=False)


def _code_of_zombie(pid: int) -> int | None:
    """Return how a process ended that its parent, the episode it is a copy of, has not reaped; None for any other."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return os.waitstatus_to_exitcode(int(fields[-1])) if fields[0] == "Z" else None


def main() -> None:
    """Import the environment, serve, and kill the session at the end."""
    run = socket.socket(fileno=int(sys.argv[1]))
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    (path, args, options, paths, parent), _ = receive_request(run)
    if paths is not None:
        sys.path[:] = paths
    try:
        spec = EnvSpec.load(path, args, **options)
        facts = {} if paths is not None else {"facts": facts_of(spec)}
    except ConfigError as error:
        send_answer(run, {"faults": list(error.faults)})
        return
    except Exception as error:  # of a module that imports differently here
        send_answer(run, {"faults": [in_words(error)]})
        return
    send_answer(run, facts)
    gc.collect()
    gc.freeze()  # what was imported is never collected, so its pages stay shared
    mine = ForkServer(spec, run, parent).serve()
    if mine is None:
        os.killpg(0, signal.SIGKILL)
    else:
        serve(spec, mine)
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
