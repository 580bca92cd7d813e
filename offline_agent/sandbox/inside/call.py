"""One call: its first process, which confines the program, watches its limits, and ends with everything it started.

With namespaces this process is number 1 of a process namespace, so that nothing outlives it and nothing in it can
signal it. The program is a child that gave up every privilege.
"""

from __future__ import annotations

import base64
import contextlib
import json
import marshal
import os
import resource
import selectors
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from offline_agent.sandbox.inside import folders, interpreter, kernel
from offline_agent.sandbox.inside.frames import frame, read_frame, write_frame
from offline_agent.sandbox.inside.plain import too_deep
from offline_agent.sandbox.inside.processes import (
    TICK,
    Stopped,
    Watch,
    kill_descendants,
    kill_user,
    left_running,
    lower,
    meaning,
    tasks_of,
    write_files,
)

WORK = "/sandbox"
_BROKEN = 125


class Call:
    """One call.

    Args:
        channel: Two descriptors: requests are read from the first, replies written to the second.
        facts: `isolated` (namespaces of its own), `user` (the number to become where this process is root's; 0 =
            none), `reading` (see `kernel.become`), `confine` (see `kernel.confine_writes`); where isolated, `binds` and
            `links` (see `folders.new_root`).
    """

    def __init__(self, channel: tuple[int, int], facts: dict[str, Any]) -> None:
        self._in, self._out = channel
        self._isolated = bool(facts["isolated"])
        self._user = int(facts["user"]) if os.getuid() == 0 else 0
        self._reading, self._confine_writes = bool(facts["reading"]), bool(facts.get("confine"))
        self._work = self._start_in = WORK
        self._shown = (facts.get("binds", []), facts.get("links", {}))
        self._limits: dict[str, Any] = {}
        self._printed = {"stdout": bytearray(), "stderr": bytearray()}
        self._pipes: dict[int, str] = {}
        self._child = 0

    def serve(self) -> None:
        """Read the request, run the program, reply."""
        data = read_frame(self._in)
        if data is None:
            return
        request = marshal.loads(data)
        self._limits = request["limits"]
        try:
            self._watch = Watch(self._limits, self._isolated, self._set_up(request.get("folders", {})))
            self._reply({"ready": True})
            try:
                if request["session"]:
                    self._session(request)
                else:
                    self._once(request)
            finally:
                self._end_all()
                if not self._isolated:
                    shutil.rmtree(self._work, ignore_errors=True)
        except Exception as error:  # a fault of the sandbox, not of the program
            self._reply({"fault": f"{type(error).__name__}: {error}"})

    # -- confinement ---------------------------------------------------------------------------------------------------

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

    # -- one program ---------------------------------------------------------------------------------------------------

    def _once(self, request: dict[str, Any]) -> None:
        def program() -> None:
            write_files(request["files"], request["modes"], request["links"])
            os.environ.update(request["env"])
            if request["argv"] is None:
                interpreter.run_program(request["program"])
                return
            try:
                os.execvp(request["argv"][0], request["argv"])
            except OSError as error:
                os.write(2, f"{request['argv'][0]}: {error.strerror}\n".encode())
                os._exit(127)

        self._start_in = request["cwd"] or self._work
        self._start(program, ())
        end = time.monotonic() + float(self._limits["wall_seconds"])
        status, code = "exited", None
        kept, left = {}, 0
        try:
            raw = self._wait(end)
            status, code = meaning(raw)
        except Stopped as reason:
            status = str(reason)
        if request["folders"]:
            try:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(-1, signal.SIGSTOP)  # what is left behind writes no more
                kept = self._kept(request["folders"])
                left = left_running(float(request["settle"])) if request["settle"] and status == "exited" else 0
            except folders.Overfull:
                status, code = "disk", None
        self._end_all()
        self._drain()
        files = {name: data for name in request["fetch"] if (data := self._fetched(name)) is not None}
        self._reply({"status": status, "code": code, **self._texts(), "files": files, "folders": kept, "left": left})

    def _kept(self, more: dict[str, Any]) -> dict[str, Any]:
        """Return what the kept folders hold; raises Overfull where it is more than may be written."""
        found, left = {}, int(self._limits["disk_mb"]) * 2**20
        for path, facts in more.items():
            if facts["kept"]:
                found[path], size = folders.read(path, facts["entries"], left)
                left -= size
        return found

    def _wait(self, end: float) -> int:
        """Return the wait status of the program; raises Stopped at a limit."""
        with selectors.DefaultSelector() as selector:
            for fd in self._pipes:
                selector.register(fd, selectors.EVENT_READ, "pipe")
            selector.register(self._in, selectors.EVENT_READ, "host")
            watch = self._watch_child(selector)
            try:
                while True:
                    for key, _ in selector.select(TICK if watch >= 0 else 0.005):
                        if key.data == "pipe":
                            self._read(key.fd, selector)
                        elif key.data == "host" and not os.read(self._in, 1):
                            raise Stopped("wall")  # nobody waits for it any more
                    done, raw = os.waitpid(self._child, os.WNOHANG)
                    if done:
                        self._child = 0
                        return raw
                    self._watch.check(end)
            finally:
                if watch >= 0:
                    os.close(watch)

    def _watch_child(self, selector: selectors.BaseSelector) -> int:
        try:
            watch = os.pidfd_open(self._child)
        except OSError:  # older kernels
            return -1
        selector.register(watch, selectors.EVENT_READ, "child")
        return watch

    # -- a session -----------------------------------------------------------------------------------------------------

    def _session(self, request: dict[str, Any]) -> None:
        """Carry messages between the host and a program that stays; see `interpreter.serve`."""
        ask_read, ask_write = os.pipe()
        answer_read, answer_write = os.pipe()

        def program() -> None:
            write_files(request["files"], request["modes"], request["links"])
            interpreter.serve(ask_read, answer_write, request["paths"])

        self._start(program, (ask_read, answer_write))
        os.close(ask_read)
        os.close(answer_write)
        os.set_blocking(ask_write, False)
        try:
            while self._watch.idle(self._in) and (data := read_frame(self._in)) is not None:
                asked = json.loads(data)
                end = time.monotonic() + float(asked["seconds"])
                self._watch.write(ask_write, frame(json.dumps(asked["body"]).encode()), end)
                answer = self._answer(answer_read, end)
                self._drain()
                self._reply({"status": "exited", "body": answer, **self._texts()})
                for text in self._printed.values():
                    text.clear()
        except Stopped as reason:
            self._end_all()
            self._drain()
            self._last(str(reason))
        except BrokenPipeError:
            self._last("exited")

    def _last(self, status: str) -> None:
        """Reply that the program has ended, to the present request or to the next."""
        self._reply({"status": status, "code": None, "body": None, **self._texts()})
        read_frame(self._in)

    def _answer(self, fd: int, end: float) -> Any:
        """Return the program's next message; raises Stopped at a limit, and where the program ended."""
        got = bytearray()
        most = 1024 * int(self._limits["output_kb"]) + 2**20
        with selectors.DefaultSelector() as selector:
            for pipe in self._pipes:
                selector.register(pipe, selectors.EVENT_READ, "pipe")
            selector.register(fd, selectors.EVENT_READ, "answer")
            selector.register(self._in, selectors.EVENT_READ, "host")
            while True:
                for key, _ in selector.select(TICK):
                    if key.data == "pipe":
                        self._read(key.fd, selector)
                    elif key.data == "host":  # it asks nothing before it is answered: it is gone
                        raise Stopped("wall")
                    else:
                        part = os.read(fd, 1 << 16)
                        if not part:
                            raise Stopped(self._ended())
                        got += part
                if len(got) >= 4:
                    size = int.from_bytes(got[:4], "big")
                    if size > most or len(got) > size + 4:
                        raise Stopped("output")
                    if len(got) == size + 4:
                        with contextlib.suppress(ValueError, RecursionError):
                            answer = json.loads(bytes(got[4:]))
                            if not too_deep(answer):
                                return answer
                        raise Stopped("signal")  # the program wrote in the interpreter's place
                self._watch.check(end)

    def _ended(self) -> str:
        """Return how the program ended, as `Result.status`."""
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            done, raw = os.waitpid(self._child, os.WNOHANG)
            if done:
                self._child = 0
                return meaning(raw)[0]
            time.sleep(0.002)
        return "signal"

    # -- limits and ends -----------------------------------------------------------------------------------------------

    def _read(self, fd: int, selector: selectors.BaseSelector | None = None) -> None:
        try:
            part = os.read(fd, 1 << 16)
        except BlockingIOError:
            return
        if not part and selector is not None:
            selector.unregister(fd)
        text = self._printed[self._pipes[fd]]
        text += part
        if sum(map(len, self._printed.values())) > 1024 * int(self._limits["output_kb"]):
            raise Stopped("output")

    def _drain(self) -> None:
        """Read what is printed and not read yet."""
        for fd in self._pipes:
            with contextlib.suppress(Stopped, OSError):
                while True:
                    before = len(self._printed[self._pipes[fd]])
                    self._read(fd)
                    if len(self._printed[self._pipes[fd]]) == before:
                        break

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

    def _fetched(self, name: str) -> str | None:
        """Return a file of the working folder, base64; None where it is none, or a link leads to it."""
        path = os.path.join(self._work, name)
        try:
            if os.path.realpath(path) != os.path.normpath(path) or not path.startswith(self._work + "/"):
                return None
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(fd, "rb") as file:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    return None
                return base64.b64encode(file.read(1024 * int(self._limits["output_kb"]) * 16)).decode()
        except OSError:
            return None

    def _reply(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # nobody waits for it any more
            write_frame(self._out, json.dumps(message).encode())
