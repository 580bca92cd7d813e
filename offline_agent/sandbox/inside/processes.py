"""Helpers of a call: limits, files, and the processes that it must end."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import select
import signal
import socket
import stat
import time
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

TICK = 0.02


def lower(what: int, soft: int, hard: int) -> None:
    """Set a limit, as far as the present one allows."""
    _, present = resource.getrlimit(what)
    if present != resource.RLIM_INFINITY:
        hard = present if hard == resource.RLIM_INFINITY else min(hard, present)
        soft = min(soft, hard)
    resource.setrlimit(what, (soft, hard))


def meaning(raw: int) -> tuple[str, int | None]:
    """Return status and code of a wait status."""
    if os.WIFEXITED(raw):
        return "exited", os.WEXITSTATUS(raw)
    return "signal", os.WTERMSIG(raw)


def write_files(files: dict[str, Any]) -> None:
    """Write files and links below the working folder; their paths were checked by the host."""
    entries = [(name, ("file", 0o600, 0, one) if isinstance(one, bytes) else one) for name, one in files.items()]
    for name, (kind, mode, _, data) in sorted(entries, key=lambda entry: entry[1][0] == "link"):  # no file through one
        if folder := os.path.dirname(name):
            os.makedirs(folder, exist_ok=True)
        if kind == "link":
            os.symlink(data, name)
            continue
        with open(name, "wb") as file:
            file.write(data)
        os.chmod(name, mode)


class Stopped(Exception):
    """The program was stopped; the argument is the reason, as `Result.status`."""


class Watch:
    """The limits of a call that no limit of a single process is: they are looked at every `TICK`.

    Args:
        limits: See `Limits`.
        isolated: See `running`.
        folders: Folders in memory; what they hold later counts as memory.
    """

    def __init__(self, limits: dict[str, Any], isolated: bool, folders: tuple[str, ...]) -> None:
        self._limits, self._isolated, self._folders = limits, isolated, folders
        self._given = self._written()
        self._spent: dict[int, float] | None = {}  # processor time before the present request; None = not known yet
        self._next = time.monotonic() + TICK

    def check(self, end: float) -> None:
        """Raise Stopped at a limit; `end` is that of time."""
        now = time.monotonic()
        if now > end:
            raise Stopped("wall")
        if now < self._next:
            return
        seconds = running(self._isolated)
        if self._spent is None:
            self._spent = seconds
        if any(spent - self._spent.get(pid, 0.0) > self._limits["cpu_seconds"] for pid, spent in seconds.items()):
            raise Stopped("cpu")
        held = memory(seconds, mapped=not self._isolated) + self._written() - self._given
        if held > int(self._limits["memory_mb"]) * 2**20:
            raise Stopped("memory")
        after = time.monotonic()
        self._next = after + max(TICK, 4 * (after - now))  # a machine's other processes may be many

    def idle(self, fd: int) -> bool:
        """Wait for a request, of which a descriptor tells; raise Stopped at a limit."""
        self._spent = None
        while not select.select([fd], [], [], 5 * TICK)[0]:
            self.check(math.inf)
        self._spent = None
        return True

    def write(self, fd: int, data: bytes, end: float) -> None:
        """Write to a program, which need not read; raise Stopped at a limit."""
        while data:
            if select.select([], [fd], [], TICK)[1]:
                data = data[os.write(fd, data) :]
            self.check(end)

    def _written(self) -> int:
        found = map(os.statvfs, self._folders)
        return sum((one.f_blocks - one.f_bfree) * one.f_frsize for one in found)


def running(isolated: bool) -> dict[int, float]:
    """Return the processes of this call but this one, each with its processor time in seconds; zombies are none.

    Args:
        isolated: All others of this namespace are the call's; else this process's descendants are.
    """
    seconds, parents = {}, {}
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            pid = int(name)
            with open(f"/proc/{name}/stat") as file:
                facts = file.read().rpartition(")")[2].split()
            if facts[0] not in "ZX" or int(facts[17]) > 1:  # its first thread may have ended, and others live
                seconds[pid] = (int(facts[11]) + int(facts[12])) / os.sysconf("SC_CLK_TCK")
                parents[pid] = int(facts[1])
    mine, grown = set(seconds) if isolated else {os.getpid()}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in mine} - mine
        mine |= more
        grown = bool(more)
    return {pid: seconds[pid] for pid in mine - {os.getpid()} if pid in seconds}


def memory(pids: Iterable[int], mapped: bool) -> int:
    """Return the bytes that processes hold: their own memory, and what their pipes and sockets may hold.

    Args:
        pids: Their numbers.
        mapped: Count files in memory that they map; else these are counted where they lie.
    """
    fields = (b"RssAnon:", b"VmSwap:", *((b"RssShmem:",) if mapped else ()))
    total, buffers = 0, {}
    for pid in pids:
        own = 0
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):  # a first thread that has ended tells nothing
                with contextlib.suppress(OSError):
                    with open(f"/proc/{pid}/task/{task}/status", "rb") as file:
                        own = max(own, sum(int(line.split()[1]) for line in file if line.startswith(fields)))
                    buffers.update(_buffers(f"/proc/{pid}/task/{task}/fd"))
        total += own * 1024
    return total + sum(buffers.values())


def _buffers(folder: str) -> dict[int, int]:
    """Return inode → bytes that each open pipe and socket may hold; a process without CAP_SYS_PTRACE sees its own."""
    found = {}
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):  # closed meanwhile
            info = os.stat(f"{folder}/{name}")
            if stat.S_ISSOCK(info.st_mode):
                found[info.st_ino] = _socket_bytes()
            elif stat.S_ISFIFO(info.st_mode):
                found[info.st_ino] = 16 * resource.getpagesize()
    return found


@lru_cache(maxsize=1)
def _socket_bytes() -> int:
    one, other = socket.socketpair()
    with one, other:
        return one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


def left_running(seconds: float) -> int:
    """Return how many other processes of this namespace still run after so many seconds; zombies do not.

    They were stopped; they get the time to end by themselves.
    """
    end = time.monotonic() + seconds
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGCONT)
    while True:
        count = len(running(isolated=True))
        if not count or time.monotonic() > end:
            return count
        time.sleep(0.01)


def kill_user(user: int) -> None:
    """Kill all processes of a user number that one call has to itself."""
    helper = os.fork()
    if helper == 0:
        try:
            os.setresuid(user, user, user)
            os.kill(-1, signal.SIGKILL)
        except OSError:
            pass
        finally:
            os._exit(0)
    os.waitpid(helper, 0)


def kill_descendants() -> None:
    """Kill this process's descendants, until there are none."""
    for _ in range(1000):
        mine = running(isolated=False)
        if not mine:
            return
        for pid in mine:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def tasks_of(user: int) -> int:
    """Return the number of processes and threads that a user has."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == user:
                    count += len(os.listdir(f"/proc/{name}/task"))
    return count
