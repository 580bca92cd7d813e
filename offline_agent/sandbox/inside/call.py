"""One call: its first process, which confines the program, watches its limits, and ends with everything it started.

With namespaces this process is number 1 of a process namespace, so that nothing outlives it and nothing in it can
signal it. The program is a child that gave up every privilege.
"""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import selectors
import shutil
import signal
import time
from typing import Any

from offline_agent.sandbox.inside import folders, interpreter
from offline_agent.sandbox.inside.confinement import Confinement
from offline_agent.sandbox.inside.messages import frame, read_frame, too_deep, write_frame
from offline_agent.sandbox.inside.processes import TICK, Stopped, Watch, left_running, meaning, write_files


class Call(Confinement):
    """One call.

    Args:
        channel: Two descriptors: requests are read from the first, replies written to the second.
        facts: See `Confinement`.
    """

    def __init__(self, channel: tuple[int, int], facts: dict[str, Any]) -> None:
        super().__init__(facts)
        self._in, self._out = channel

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

    # -- one program ---------------------------------------------------------------------------------------------------

    def _once(self, request: dict[str, Any]) -> None:
        def program() -> None:
            write_files(request["files"])
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
        self._reply({"status": status, "code": code, **self._texts(), "folders": kept, "left": left})

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
            write_files(request["files"])
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

    def _reply(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # nobody waits for it any more
            write_frame(self._out, json.dumps(message).encode())
