"""The sandbox: runs programs and commands that a policy wrote, at the strongest level that the machine has."""

from __future__ import annotations

import base64
import contextlib
import json
import marshal
import os
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from offline_agent.errors import ConfigError
from offline_agent.sandbox import launch
from offline_agent.sandbox.inside.frames import read_frame, write_frame
from offline_agent.sandbox.limits import Limits, Result
from offline_agent.sandbox.process import SandboxError, WarmProcess
from offline_agent.sandbox.settings import STRENGTH, Settings, settings

INSTALL = "install bubblewrap (apt-get install bubblewrap, dnf install bubblewrap)"


class Sandbox:
    """A sandbox; its process is started by the first call and serves all threads.

    Args:
        level: The level to use; None = the strongest that works here.
        command: A command that starts a container and runs what follows in it (`docker run -i …`); each call starts
            one. None = none.

    Attributes:
        refusals: Level → why it does not work here, for those that were tried before the one in use.
    """

    def __init__(self, level: str | None = None, command: Sequence[str] | None = None) -> None:
        self._asked, self._command = level, tuple(command or ())
        self._level: str | None = "command" if self._command else None
        self._process: WarmProcess | None = None
        self._lock = threading.Lock()
        self.refusals: dict[str, str] = {}

    @property
    def level(self) -> str:
        """`command`, `bubblewrap`, `namespaces` or `limits`; found out by trying.

        Raises:
            SandboxError: None of them works, or not the one that was asked for.
        """
        if self._level is None:
            with self._lock:
                self._begin()
        assert self._level is not None
        return self._level

    def run(
        self,
        argv: Sequence[str],
        *,
        files: Mapping[str, bytes] | None = None,
        modes: Mapping[str, int] | None = None,
        links: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        fetch: Sequence[str] = (),
        limits: Limits | None = None,
    ) -> Result:
        """Run a command in a fresh working folder; everything that it starts ends with it.

        Args:
            argv: The command.
            files: Relative path → contents, written into the folder before.
            modes: Relative path → mode bits, of those that are not 0600.
            links: Relative path → target of symbolic links.
            env: Environment variables beside PATH, HOME, LANG and the like.
            fetch: Relative paths of files to return.
            limits: Its limits.

        Raises:
            SandboxError: The sandbox does not work.
            ValueError: A path leaves the folder.
        """
        request = _request(limits, files, modes, links)
        request.update(argv=list(argv), env=dict(env or {}), fetch=list(fetch), session=False)
        return self._once(request)

    def run_program(
        self, source: str, *, files: Mapping[str, bytes] | None = None, limits: Limits | None = None
    ) -> Result:
        """Run a Python program in a fork of the warm interpreter. Raises as `run`."""
        request = _request(limits, files, None, None)
        request.update(argv=None, program=source, env={}, fetch=[], session=False)
        return self._once(request)

    def session(
        self,
        *,
        files: Mapping[str, bytes] | None = None,
        paths: Sequence[str] | None = None,
        limits: Limits | None = None,
    ) -> Session:
        """Return an interpreter that stays until it is closed. Raises as `run`.

        Args:
            files: Relative path → contents.
            paths: Folders to import from; None = the installed packages.
            limits: Its limits; times are for each request.
        """
        request = _request(limits, files, None, None)
        request.update(session=True, paths=[*(launch.site_packages() if paths is None else paths)])
        return Session(self._connected(request), limits or Limits())

    def close(self) -> None:
        """End the process and all its calls."""
        with self._lock:
            if self._process is not None:
                self._process.close()
                self._process = None

    def _once(self, request: dict[str, Any]) -> Result:
        with self._connected(request) as channel:
            wall = float(request["limits"]["wall_seconds"])
            reply = channel.receive(wall + 30.0)
        if reply is None:
            raise SandboxError("the sandbox did not answer")
        files = {name: base64.b64decode(data) for name, data in reply.get("files", {}).items()}
        return Result(reply["status"], reply["code"], reply["stdout"], reply["stderr"], files)

    def _connected(self, request: dict[str, Any]) -> Channel:
        data = marshal.dumps(request, 2)
        for again in (True, False):
            try:
                channel = self._channel()
                channel.send(data)
                return channel
            except (OSError, SandboxError) as error:
                if not again:
                    raise SandboxError(f"the sandbox cannot be reached: {error}") from error
                self.close()  # its process was killed from outside: start another
        raise AssertionError

    def _channel(self) -> Channel:
        if self._command:
            return Channel.of_command(launch.custom(self._command))
        with self._lock:
            if self._process is None:
                self._begin()
            assert self._process is not None
            return Channel(self._process.connect())

    def _begin(self) -> None:
        """Start the process at the strongest level that works; `_lock` is held."""
        if self._command:
            return
        wanted = self._level or self._asked
        for level in ("bubblewrap", "namespaces", "limits"):
            if wanted is not None and level != wanted:
                continue
            try:
                self._process = _tried(level)
                self._level = level
                return
            except SandboxError as error:
                self.refusals[level] = str(error)
        told = "; ".join(f"{level}: {why}" for level, why in self.refusals.items())
        raise SandboxError(f"no sandbox works here ({told}); {INSTALL}")


class Channel:
    """The connection to one call.

    Args:
        connection: Its socket; None = a process's standard streams.
        process: The process of a command of the user.
    """

    def __init__(self, connection: socket.socket | None, process: subprocess.Popen[bytes] | None = None) -> None:
        self._socket, self._process = connection, process

    @classmethod
    def of_command(cls, command: Sequence[str]) -> Channel:
        """Return the connection to a call behind a command; raises SandboxError where it cannot be started."""
        try:
            pipe = subprocess.PIPE
            return cls(None, subprocess.Popen(list(command), stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL))
        except OSError as error:
            raise SandboxError(f"sandbox.command: {error}") from error

    def send(self, data: bytes) -> None:
        """Write a frame; raises OSError where the call has ended."""
        if self._socket is not None:
            self._socket.settimeout(None)
            write_frame(self._socket.fileno(), data)
        else:
            assert self._process is not None and self._process.stdin is not None
            write_frame(self._process.stdin.fileno(), data)

    def receive(self, seconds: float) -> dict[str, Any] | None:
        """Return the next reply; None where the call has ended without one.

        Raises:
            SandboxError: It reports a fault of the sandbox, or does not answer in time.
        """
        import select

        fd = self._fd()
        if not select.select([fd], [], [], seconds)[0]:
            raise SandboxError(f"the sandbox did not answer within {seconds:g} s")
        try:
            data = read_frame(fd)
        except (OSError, ValueError):
            data = None
        if data is None:
            return None
        reply: dict[str, Any] = json.loads(data)
        if "fault" in reply:
            raise SandboxError(f"the sandbox failed: {reply['fault']}")
        return reply

    def _fd(self) -> int:
        if self._socket is not None:
            return self._socket.fileno()
        assert self._process is not None and self._process.stdout is not None
        return self._process.stdout.fileno()

    def close(self) -> None:
        """End the call and everything that it started."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Session:
    """An interpreter in the sandbox; for one thread at a time. Made by `Sandbox.session`.

    Attributes:
        ended: The program ended or was stopped: no further request is answered.
    """

    def __init__(self, channel: Channel, limits: Limits) -> None:
        self._channel, self._limits = channel, limits
        self.ended = False

    def ask(self, body: Mapping[str, Any], seconds: float | None = None) -> dict[str, Any]:
        """Return the reply to a request: `status`, `stdout`, `stderr` and the program's own `body`.

        Args:
            body: See `inside.interpreter`.
            seconds: Time for it; None = the limit of the session.

        Raises:
            SandboxError: The session has ended before, or the sandbox does not work.
        """
        if self.ended:
            raise SandboxError("the session has ended")
        time = self._limits.wall_seconds if seconds is None else seconds
        try:
            self._channel.send(json.dumps({"seconds": time, "body": dict(body)}).encode())
        except OSError:
            reply = None
        else:
            reply = self._channel.receive(time + 30.0)
        if reply is None:
            self.close()
            raise SandboxError("the sandbox's process was killed from outside")
        if reply["body"] is None:
            self.close()
        return reply

    def close(self) -> None:
        """End the interpreter and everything that it started."""
        self.ended = True
        self._channel.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "ended", True):
            self.close()


def _request(
    limits: Limits | None,
    files: Mapping[str, bytes] | None,
    modes: Mapping[str, int] | None,
    links: Mapping[str, str] | None,
) -> dict[str, Any]:
    for path in (*(files or ()), *(links or ())):
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or ".." in parts or "\0" in path:
            raise ValueError(f"the path {path!r} leaves the working folder")
    return {
        "limits": (limits or Limits()).asdict(), "files": dict(files or {}), "modes": dict(modes or {}),
        "links": dict(links or {}),
    }  # fmt: skip


def _tried(level: str) -> WarmProcess:
    """Return a process of that level that has answered a call."""
    if level == "bubblewrap" and launch.bubblewrap(0) is None:
        raise SandboxError("there is no bwrap on the PATH")

    def command(fd: int, folder: str) -> list[str]:
        if level == "bubblewrap":
            found = launch.bubblewrap(fd)
            assert found is not None
            return found
        return launch.namespaces(fd, folder) if level == "namespaces" else launch.limits(fd)

    process = WarmProcess(command)
    try:
        request = _request(Limits(), None, None, None)
        request.update(argv=None, program="print(6 * 7)", env={}, fetch=[], session=False)
        with Channel(process.connect()) as channel:
            channel.send(marshal.dumps(request, 2))
            reply = channel.receive(30.0)
        if reply is None or reply["stdout"] != "42\n":
            raise SandboxError(f"a first program failed in it: {reply}")
    except (OSError, SandboxError) as error:
        process.close()
        raise SandboxError(str(error)) from error
    return process


# -- the one of this process -------------------------------------------------------------------------------------------

_shared: dict[Settings, Sandbox] = {}
_owner = os.getpid()
_guard = threading.Lock()


def shared() -> Sandbox:
    """Return this process's sandbox, as the settings ask for."""
    global _owner
    chosen = settings()
    with _guard:
        if _owner != os.getpid():  # a fork: locks may be held by threads that are not here
            _shared.clear()
            _owner = os.getpid()
        if chosen not in _shared:
            _shared[chosen] = Sandbox(command=chosen.command)
        return _shared[chosen]


def refusal(sandbox: Sandbox, allow: str) -> str | None:
    """Return why an untrusted policy's code may not run in a sandbox; None where it may."""
    level = sandbox.level
    if STRENGTH[level] >= STRENGTH[allow]:
        return None
    told = "; ".join(f"{name}: {why}" for name, why in sandbox.refusals.items())
    return (
        f"sandbox.allow: this machine's sandbox is {level!r}, allowed for a policy whose code is not trusted: {allow!r} or "
        f"stronger ({told}); {INSTALL}, or accept what it does not contain (docs/sandbox.md) with sandbox.allow={level}"
    )


def check_trust(trusted: bool) -> None:
    """Raise ConfigError where a policy's code may not run in this machine's sandbox."""
    if trusted:
        return
    try:
        fault = refusal(shared(), settings().allow)
    except SandboxError as error:
        raise ConfigError(f"sandbox: {error}") from error
    if fault:
        raise ConfigError(fault)
