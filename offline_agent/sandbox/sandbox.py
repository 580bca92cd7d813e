"""The sandbox: runs programs and commands that a policy wrote, at the strongest level that the machine has."""

from __future__ import annotations

import marshal
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Any

from offline_agent.sandbox import launch
from offline_agent.sandbox.calls import Files, Folder, Limits, Result, returned, sent
from offline_agent.sandbox.process import Channel, SandboxError, Session, WarmProcess

_COMMANDS = {"bubblewrap": launch.bubblewrap, "namespaces": launch.namespaces, "limits": launch.limits}
INSTALL = "install bubblewrap (apt-get install bubblewrap, dnf install bubblewrap)"


class Sandbox:
    """A sandbox; its process is started by the first call and serves all threads.

    Args:
        level: The level to use; None = the strongest that works here.
        command: A command that starts a container and runs what follows in it (`docker run -i …`); each call starts
            one. None = none.
        found: Called with the sandbox when its level is found out.

    Attributes:
        refusals: Level → why it does not work here, for those that were tried before the one in use.
    """

    def __init__(
        self,
        level: str | None = None,
        command: Sequence[str] | None = None,
        found: Callable[[Sandbox], None] = lambda sandbox: None,
    ) -> None:
        self._asked, self._command, self._found = level, tuple(command or ()), found
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
        files: Files | None = None,
        env: Mapping[str, str] | None = None,
        folders: Mapping[str, Folder] | None = None,
        cwd: str | None = None,
        settle: float = 0.0,
        limits: Limits | None = None,
    ) -> Result:
        """Run a command in a fresh working folder; everything that it starts ends with it.

        Args:
            argv: The command.
            files: Relative path → contents, written into the folder before, or a file or link as an entry.
            env: Environment variables beside PATH, HOME, LANG and the like.
            folders: Absolute path → a folder that the call has there; they need namespaces.
            cwd: Absolute path of the folder to start in; None = the working folder.
            settle: Seconds that processes get to end which the command left behind; with 0 they are ended uncounted.
            limits: Its limits.

        Raises:
            SandboxError: The sandbox does not work, or has no namespaces.
            ValueError: A path leaves the folder, or a folder cannot be at its place.
        """
        more = dict(folders or {})
        request = _request(limits, files)
        request.update(argv=list(argv), env=dict(env or {}), session=False)
        request.update(folders=sent(more), cwd=cwd, settle=settle)
        return self._once(request, more)

    def run_program(self, source: str, *, limits: Limits | None = None) -> Result:
        """Run a Python program in a fork of the warm interpreter. Raises as `run`."""
        return self._once(_of_program(source, limits))

    def session(self, *, files: Files | None = None, limits: Limits | None = None) -> Session:
        """Return an interpreter that stays until it is closed, and has the installed packages. Raises as `run`.

        Args:
            files: Relative path → contents.
            limits: Its limits; times are for each request.
        """
        request = _request(limits, files) | {"session": True, "paths": launch.packages()}
        return Session(self._connected(request), limits or Limits())

    def close(self) -> None:
        """End the process and all its calls."""
        with self._lock:
            if self._process is not None:
                self._process.close()
                self._process = None

    def _once(self, request: dict[str, Any], more: Mapping[str, Folder] | None = None) -> Result:
        with self._connected(request) as channel:
            wall = float(request["limits"]["wall_seconds"])
            reply = channel.receive(wall + 30.0)
        if reply is None:
            raise SandboxError("the sandbox did not answer")
        kept = returned(reply.get("folders", {}), more or {})
        ended = (reply["status"], reply["code"], reply["stdout"], reply["stderr"])
        return Result(*ended, kept, reply.get("left", 0))

    def _connected(self, request: dict[str, Any]) -> Channel:
        """Return the connection to a call that was set up.

        Where that fails, another process is tried: this one was killed from outside, or what it shows was replaced.
        """
        process = self._running()
        try:
            return _ready(self._channel(process), request)
        except SandboxError:
            return _ready(self._channel(self._running(failed=process)), request)

    def _running(self, failed: WarmProcess | None = None) -> WarmProcess | None:
        """Return the process, another one than what failed; None where a command takes its place."""
        with self._lock:
            if failed is not None and failed is self._process:
                failed.retire()  # its other calls go on
                self._process = None
            if self._process is None:
                self._begin()
            return self._process

    def _channel(self, process: WarmProcess | None) -> Channel:
        return Channel.from_command(launch.custom(self._command)) if process is None else Channel(process.connect())

    def _begin(self) -> None:
        """Start the process at the strongest level that works; `_lock` is held."""
        if self._command:
            return
        wanted = self._level or self._asked
        for level in _COMMANDS:
            if wanted is not None and level != wanted:
                continue
            try:
                self._process = _tried(level)
            except SandboxError as error:
                self.refusals[level] = str(error)
                continue
            if self._level is None:
                self._level = level
                self._found(self)
            return
        detail = "; ".join(f"{level}: {why}" for level, why in self.refusals.items())
        raise SandboxError(f"no sandbox works here ({detail}); {INSTALL}")


def _request(limits: Limits | None, files: Files | None = None) -> dict[str, Any]:
    for path in files or ():
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or ".." in parts or "\0" in path:
            raise ValueError(f"the path {path!r} leaves the working folder")
    return {
        "limits": asdict(limits or Limits()), "folders": {}, "cwd": None, "settle": 0.0,
        "files": {path: one if isinstance(one, bytes) else tuple(one) for path, one in (files or {}).items()},
    }  # fmt: skip


def _of_program(source: str, limits: Limits | None = None) -> dict[str, Any]:
    return _request(limits) | {"argv": None, "program": source, "env": {}, "session": False}


def _ready(channel: Channel, request: dict[str, Any]) -> Channel:
    """Return a channel whose call has been set up; raise SandboxError, and close it, where that fails."""
    try:
        channel.send(marshal.dumps(request, 2))
        if channel.receive(float(request["limits"]["wall_seconds"]) + 30.0) is None:
            raise SandboxError("the sandbox's process has ended")
        return channel
    except OSError as error:
        channel.close()
        raise SandboxError(f"the sandbox cannot be reached: {error}") from error
    except SandboxError:
        channel.close()
        raise


def _tried(level: str) -> WarmProcess:
    """Return a process of that level that has answered a call."""
    if level == "bubblewrap" and shutil.which("bwrap") is None:
        raise SandboxError("there is no bwrap on the PATH")
    hidden = None if level == "limits" else launch.hidden_python()
    if hidden is not None:
        raise SandboxError(
            f"Python is in {hidden}, and programs have a folder of their own in place of /tmp and /dev; "
            "use a Python that is installed elsewhere"
        )
    process = WarmProcess(_COMMANDS[level])
    try:
        with _ready(Channel(process.connect()), _of_program("print(6 * 7)")) as channel:
            reply = channel.receive(30.0)
        if reply is None or reply["stdout"] != "42\n":
            raise SandboxError(f"a first program failed in it: {reply}")
    except (OSError, SandboxError) as error:
        process.close()
        raise SandboxError(str(error)) from error
    return process
