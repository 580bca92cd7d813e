"""Confinement of a program: folders of its own, limits, no privileges; and the end of everything that it started."""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from offline_agent.sandbox.inside import folders, kernel
from offline_agent.sandbox.inside.processes import Stopped, kill_descendants, kill_user, lower, tasks_of

WORK = "/sandbox"
_BROKEN = 125


class Confinement:
    """A program, what it may do, and what it printed.

    Args:
        facts: `isolated` (namespaces of its own), `user` (the number to become where this process is root's; 0 =
            none), `reading` (see `kernel.become`), `confine` (see `kernel.confine_writes`); where isolated, `binds` and
            `links` (see `folders.new_root`).
    """

    def __init__(self, facts: dict[str, Any]) -> None:
        self._isolated = bool(facts["isolated"])
        self._user = int(facts["user"]) if os.getuid() == 0 else 0
        self._reading, self._confine_writes = bool(facts["reading"]), bool(facts.get("confine"))
        self._work = self._start_in = WORK
        self._shown = (facts.get("binds", []), facts.get("links", {}))
        self._limits: dict[str, Any] = {}
        self._printed = {"stdout": bytearray(), "stderr": bytearray()}
        self._pipes: dict[int, str] = {}
        self._child = 0

    def _set_up(self, more: dict[str, Any]) -> tuple[str, ...]:
        """Make the call's folders; return those in memory."""
        if not self._isolated:
            if more:
                raise PermissionError("folders at places of their own need namespaces")
            self._work = self._start_in = tempfile.mkdtemp(prefix="sandbox-")
            if self._user:
                os.chown(self._work, self._user, self._user)
            kernel.adopt_orphans()
            return ()
        kernel.mount(None, "/", None, kernel.REC | kernel.PRIVATE)
        kernel.mount("proc", "/proc", "proc", kernel.NOSUID | kernel.NODEV | kernel.NOEXEC)
        if more:
            folders.new_root(self._shown[0], self._shown[1], [path for path in (WORK, *more) if path != "/tmp"],
                             self._user)  # fmt: skip
        inodes = 64 + int(self._limits["disk_mb"]) * 256
        size = f"size={int(self._limits['disk_mb'])}m,nr_inodes={inodes},mode=0700"
        options = f"{size},uid={self._user},gid={self._user}"
        mounted = tuple(dict.fromkeys((WORK, "/tmp", "/dev/shm", *more)))
        for folder in mounted:
            own = more.get(folder)
            kernel.mount("tmpfs", folder, "tmpfs", kernel.NOSUID | kernel.NODEV, options if own is None else size)
        for folder, facts in more.items():
            folders.fill(folder, facts["entries"], self._user if facts["writable"] else 0)
            if not facts["writable"]:
                kernel.mount(None, folder, None, kernel.REMOUNT | kernel.BIND | kernel.RDONLY | kernel.NOSUID
                             | kernel.NODEV)  # fmt: skip
        # /dev/full reads alike, and a mapping of it cannot be shared: such memory would belong to no file
        kernel.mount("/dev/full", "/dev/zero", None, kernel.BIND)
        with contextlib.suppress(OSError):  # read-only already
            kernel.mount(None, "/dev", None, kernel.REMOUNT | kernel.BIND | kernel.RDONLY | kernel.NOSUID)
        os.chdir(WORK)
        return mounted

    def _start(self, program: Callable[[], None], keep: tuple[int, ...]) -> int:
        """Start the program in a child that has given up every privilege; return its process number."""
        pipes = {name: os.pipe() for name in self._printed}
        child = os.fork()
        if child == 0:
            status = _BROKEN
            try:
                os.setsid()
                null = os.open("/dev/null", os.O_RDONLY)
                for source, target in ((null, 0), (pipes["stdout"][1], 1), (pipes["stderr"][1], 2)):
                    os.dup2(source, target)
                low = 3
                for fd in sorted(keep):
                    os.closerange(low, fd)
                    low = fd + 1
                os.closerange(low, 4096)
                self._confine()
                program()
                sys.stdout.flush()
                status = 0
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else int(end.code is not None)
            except BaseException as error:
                with contextlib.suppress(BaseException):
                    os.write(2, f"{type(error).__name__}: {error}\n".encode("utf-8", "replace"))
                status = 1
            finally:
                os._exit(status & 0xFF)
        for name, (read, write) in pipes.items():
            os.close(write)
            os.set_blocking(read, False)
            self._pipes[read] = name
        self._child = child
        return child

    def _confine(self) -> None:
        limits = self._limits
        os.chdir(self._start_in)
        os.environ.clear()
        os.environ.update(
            PATH="/usr/local/bin:/usr/bin:/bin", HOME=self._work, LANG="C.UTF-8", PYTHONHASHSEED="0", TZ="UTC",
            TMPDIR="/tmp" if self._isolated else self._work, PYTHONDONTWRITEBYTECODE="1", OPENBLAS_NUM_THREADS="1",
            OMP_NUM_THREADS="1",
        )  # fmt: skip
        for what, most in (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_AS, int(limits["memory_mb"]) * 2**20),
            (resource.RLIMIT_FSIZE, int(limits["disk_mb"]) * 2**20),
            (resource.RLIMIT_NOFILE, int(limits["files"])),
        ):
            lower(what, most, most)
        kernel.show()
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # a container may forbid it
            file.write("1000")  # should memory end between two looks, these processes go first
        if self._user:
            kernel.become(self._user, self._reading)
        elif self._isolated:
            kernel.drop_capabilities()
        elif os.getuid() == 0:
            raise PermissionError("root is exempt from limits of processes")
        # those that the user has already count too, where it is the caller's own number
        running = 0 if self._user or self._isolated else tasks_of(os.getuid())
        lower(resource.RLIMIT_NPROC, running + int(limits["processes"]), running + int(limits["processes"]))
        kernel.no_new_privileges()
        if self._confine_writes:
            kernel.confine_writes(self._work)
        kernel.end_with_parent()
        kernel.filter_calls(unix_sockets=self._isolated, signals=self._isolated or self._user > 0)

    def _read(self, fd: int, selector: selectors.BaseSelector | None = None) -> bool:
        """Read what is printed; return whether there was any. Raises Stopped at the limit."""
        try:
            part = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        if not part and selector is not None:
            selector.unregister(fd)
        text = self._printed[self._pipes[fd]]
        text += part
        if sum(map(len, self._printed.values())) > 1024 * int(self._limits["output_kb"]):
            raise Stopped("output")
        return bool(part)

    def _drain(self) -> None:
        """Read what is printed and not read yet."""
        for fd in self._pipes:
            with contextlib.suppress(Stopped, OSError):
                while self._read(fd):
                    pass

    def _texts(self) -> dict[str, str]:
        most = 1024 * int(self._limits["output_kb"])
        return {name: bytes(text[:most]).decode("utf-8", "replace") for name, text in self._printed.items()}

    def _end_all(self) -> None:
        """Kill the program and everything that it started."""
        if self._isolated:
            if os.getpid() == 1:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(-1, signal.SIGKILL)
        elif self._user:
            kill_user(self._user)
        else:
            kill_descendants()
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
        self._child = 0
