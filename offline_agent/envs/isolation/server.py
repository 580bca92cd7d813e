"""The process that environments are forked from, and in its forks the processes of single episodes.

It has imported the environment's class, and no heavy library.

It leads a session of its own. Copies whose original has ended become its children (it is a subreaper), so no zombie
stays. When the run ends, in whatever way, it kills the whole session.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import random
import select
import signal
import socket
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from offline_agent import pictures
from offline_agent.envs.base import EnvSpec
from offline_agent.envs.episode import Episode
from offline_agent.envs.isolation.protocol import demonstrated, facts_of, receive_request, send_answer
from offline_agent.errors import ConfigError, EnvironmentFault, in_words

_ENDING = 0.1  # seconds
_UNREAPED = 16  # copies left for the server, which reads from a zombie how it ended


def serve(spec: EnvSpec, run: socket.socket) -> None:
    """Open the environment and answer the run's requests until it closes the socket; returns in forks too."""
    episodes: list[Episode] = []  # earlier ones are kept: destroying them could free what their own process uses
    if not _open(spec, run, episodes):
        return
    copies: list[int] = []
    while True:
        try:
            (what, *arguments), handed = receive_request(run)
        except (EOFError, OSError):
            return  # the run does not need it any more, or has ended
        if what not in ("copy", "open"):
            _answer(run, episodes[-1], what, arguments)
        elif (fork := _fork(spec, handed[0], run, copies)) is not None:
            run = fork
            if what == "open" and not _open(spec, run, episodes):
                return


def _open(spec: EnvSpec, run: socket.socket, episodes: list[Episode]) -> bool:
    """Add a fresh environment to the episodes and answer; return whether it opened."""
    try:
        episodes.append(spec.open())
    except (EnvironmentFault, ConfigError) as error:
        send_answer(run, {"fault": str(error)})
        return False
    send_answer(run, {"value": None})
    return True


def _answer(run: socket.socket, episode: Episode, what: str, arguments: list[Any]) -> None:
    """Execute one request and send its answer."""
    try:
        answer = {"value": _REQUESTS[what](episode, *arguments)}
    except EnvironmentFault as error:
        answer = {"fault": str(error)}
    except RuntimeError as error:
        answer = {"misuse": str(error)}
    try:
        answer["terminated"] = episode.terminated
    except EnvironmentFault as error:
        answer["terminated"] = str(error)
    try:
        shown = pictures.named(str(answer.get("value")))
        send_answer(run, {**answer, "pictures": list(map(pictures.url, shown))} if shown else answer)
    except (TypeError, ValueError, RecursionError) as error:
        fault = f"{episode.spec.name}: {what} gave something that is no JSON ({in_words(error)})"
        send_answer(run, {"fault": fault, "terminated": answer["terminated"]})


def _reset(episode: Episode, task: Any) -> dict[str, Any]:
    observation = episode.reset(task)
    own = None if episode.tools is episode.spec.tools else episode.tools.to_json()
    return {"observation": observation, "tools": own}


_REQUESTS: dict[str, Callable[..., Any]] = {
    "reset": _reset,
    "step": lambda episode, action: list(episode.step(action)),
    "verdict": lambda episode: episode.verdict().to_json(),
    "fingerprint": Episode.fingerprint,
    "achieved_goal": Episode.achieved_goal,
    "turn_reward": Episode.turn_reward,
    "system_prompt": lambda episode: episode.system_prompt,
    "close": Episode.close,
}


def _fork(spec: EnvSpec, copy: socket.socket, run: socket.socket, copies: list[int]) -> socket.socket | None:
    """Fork this process; return in the copy its socket to the run, and None in this process, whose own is `run`.

    `copies` are the process ids of earlier copies that were not reaped; the new one is added.
    """
    if others := _other_threads():
        fault = f"{spec.name}: its process cannot be forked: it runs {others} more threads, which a fork does not copy"
        send_answer(copy, {"fault": fault})
        copy.close()
        return None
    while len(copies) > _UNREAPED and os.waitpid(copies[0], os.WNOHANG)[0]:
        del copies[0]
    chance = random.getstate()  # Python seeds the shared generator anew in a child
    try:
        pid = os.fork()
    except OSError as error:
        send_answer(copy, {"fault": f"{spec.name}: its process cannot be forked: {error}"})
        copy.close()
        return None
    if pid:
        copies.append(pid)
        copy.close()
        return None
    copies.clear()
    run.close()
    random.setstate(chance)
    send_answer(copy, {"value": os.getpid()})
    return copy


def _other_threads() -> int:
    """Return how many threads this process has beside this one, those of C libraries included.

    That of tqdm, which watches progress bars and is begun by the first of them, is ended: it begins again by itself.
    """
    for thread in threading.enumerate():
        if type(thread).__module__ == "tqdm._monitor":
            watch: Any = thread
            watch.exit()
            watch.tqdm_cls.monitor = None
    until = time.monotonic() + _ENDING
    while (others := len(os.listdir("/proc/self/task")) - 1) and threading.active_count() == 1:
        if time.monotonic() > until:
            break  # a library's own
        time.sleep(0.001)  # one that was joined is listed a little longer
    return others


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
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

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
