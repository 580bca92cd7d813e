"""Helpers of a call: limits, files, and the processes that it must end."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time


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
    number = os.WTERMSIG(raw)
    return ("cpu" if number == signal.SIGXCPU else "signal"), number


def write_files(files: dict[str, bytes], modes: dict[str, int], links: dict[str, str]) -> None:
    """Write files below the working folder; their paths were checked by the host."""
    for name, data in files.items():
        folder = os.path.dirname(name)
        if folder:
            os.makedirs(folder, exist_ok=True)
        with open(name, "wb") as file:
            file.write(data)
        if name in modes:
            os.chmod(name, modes[name])
    for name, target in links.items():
        folder = os.path.dirname(name)
        if folder:
            os.makedirs(folder, exist_ok=True)
        os.symlink(target, name)


def resident() -> int:
    """Return the resident memory of all other processes of this namespace, in bytes."""
    total = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            with contextlib.suppress(OSError, IndexError, ValueError):
                with open(f"/proc/{name}/statm") as file:
                    parts = file.read().split()
                total += int(parts[1]) - int(parts[2])  # what is shared with the parent counts once, there
    return total * resource.getpagesize()


def left_running(seconds: float) -> int:
    """Return how many other processes of this namespace still run after so many seconds; zombies do not.

    They were stopped; they get the time to end by themselves.
    """
    end = time.monotonic() + seconds
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGCONT)
    while True:
        count = 0
        for name in os.listdir("/proc"):
            if name.isdigit() and name != "1":
                with contextlib.suppress(OSError, IndexError), open(f"/proc/{name}/stat") as file:
                    count += file.read().rpartition(")")[2].split()[0] not in "ZX"
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
        parents: dict[int, int] = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError, IndexError, ValueError):
                    with open(f"/proc/{name}/stat") as file:
                        after = file.read().rpartition(")")[2].split()
                    if after[0] != "Z":
                        parents[int(name)] = int(after[1])
        mine, grown = {os.getpid()}, True
        while grown:
            more = {pid for pid, parent in parents.items() if parent in mine} - mine
            mine |= more
            grown = bool(more)
        mine.discard(os.getpid())
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
