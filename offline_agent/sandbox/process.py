"""The sandbox on this side: its warm process, connections to its calls, and sessions: interpreters that stay."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from offline_agent.errors import OfflineAgentError
from offline_agent.sandbox.calls import Limits
from offline_agent.sandbox.inside.messages import read_frame, write_frame

_START_SECONDS = 30.0


class SandboxError(OfflineAgentError):
    """The sandbox itself does not work; it says nothing of the program that it was to run."""


class WarmProcess:
    """A process that forks for each call.

    It ends when this process does: then nobody holds the other end of its socket.

    Args:
        command: Returns its command line, given the descriptor of its socket.
    """

    def __init__(self, command: Callable[[int], list[str]]) -> None:
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, tempfile.TemporaryFile() as errors:
            try:
                self._process = subprocess.Popen(
                    command(theirs.fileno()),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    env={"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"},
                    cwd="/",
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except OSError as error:
                raise SandboxError(f"{error}") from error
            theirs.close()
            ready, _, _ = select.select([self._control], [], [], _START_SECONDS)
            if not ready or self._control.recv(16) != b"ready":
                self.close()
                errors.seek(0)
                lines = errors.read().decode("utf-8", "replace").strip().splitlines()
                raise SandboxError(lines[-1] if lines else "its process did not start")

    def connect(self) -> socket.socket:
        """Return the socket of a new call.

        Raises:
            SandboxError: The process has ended.
        """
        own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            try:
                with self._lock:
                    socket.send_fds(self._control, [b"call"], [theirs.fileno()])
            except OSError as error:
                own.close()
                raise SandboxError(f"the sandbox's process has ended: {error}") from error
        return own

    def retire(self) -> None:
        """Begin no further call; the process ends with the last of those that it has."""
        with self._lock, contextlib.suppress(OSError):
            self._control.send(b"last")

    def close(self) -> None:
        """End the process and all its calls."""
        self._control.close()
        if self._process.poll() is None:
            self._process.kill()
        with contextlib.suppress(OSError):
            self._process.wait()


class Channel:
    """The connection to one call.

    Args:
        connection: Its socket.
        process: The process of a command of the user, which ends with the connection.
    """

    def __init__(self, connection: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        self._socket, self._process = connection, process

    @classmethod
    def from_command(cls, command: Sequence[str]) -> Channel:
        """Return the connection to a call behind a command; raises SandboxError where it cannot be started."""
        own, theirs = socket.socketpair()
        with theirs:
            try:
                streams = {"stdin": theirs, "stdout": theirs, "stderr": subprocess.DEVNULL}
                return cls(own, subprocess.Popen(list(command), **streams))  # type: ignore[call-overload]
            except OSError as error:
                own.close()
                raise SandboxError(f"sandbox.command: {error}") from error

    def send(self, data: bytes) -> None:
        """Write a frame; raises OSError where the call has ended."""
        write_frame(self._socket.fileno(), data)

    def receive(self, seconds: float) -> dict[str, Any] | None:
        """Return the next reply; None where the call has ended without one.

        Raises:
            SandboxError: It reports a fault of the sandbox, or does not answer in time.
        """
        if not select.select([self._socket], [], [], seconds)[0]:
            raise SandboxError(f"the sandbox did not answer within {seconds:g} s")
        try:
            data = read_frame(self._socket.fileno())
        except (OSError, ValueError):
            data = None
        if data is None:
            return None
        reply: dict[str, Any] = json.loads(data)
        if "fault" in reply:
            raise SandboxError(f"the sandbox failed: {reply['fault']}")
        return reply

    def close(self) -> None:
        """End the call and everything that it started."""
        self._socket.close()
        if self._process is not None:
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
