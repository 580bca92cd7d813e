"""The sandbox's process on this side: started once, asked for a socket of its own for each call."""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable

from offline_agent.errors import OfflineAgentError

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
        with theirs, tempfile.TemporaryFile() as said:
            try:
                self._process = subprocess.Popen(
                    command(theirs.fileno()),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=said,
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
                said.seek(0)
                lines = said.read().decode("utf-8", "replace").strip().splitlines()
                raise SandboxError(lines[-1] if lines else "its process did not start")

    def connect(self) -> socket.socket:
        """Return the socket of a new call.

        Raises:
            SandboxError: The process has ended.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            try:
                with self._lock:
                    socket.send_fds(self._control, [b"call"], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise SandboxError(f"the sandbox's process has ended: {error}") from error
        return ours

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
