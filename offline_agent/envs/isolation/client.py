"""Isolated episodes, as the rest of the package uses them, and the server process that forks them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from offline_agent import catalog, crash_notes, pictures
from offline_agent.envs.episode import Episode, StepResult
from offline_agent.envs.isolation.protocol import (
    BadMessage,
    check_interpreter,
    receive_answer,
    send_request,
    server_command,
)
from offline_agent.envs.pool import present
from offline_agent.envs.tools import ToolSet
from offline_agent.errors import ConfigError, EnvironmentFault, ToolError
from offline_agent.records import Action, Task, Verdict

if TYPE_CHECKING:
    from offline_agent.envs.description import EnvDescription



class EpisodeServer:
    """The process that episodes are forked from; starts at once, ends with this object or with the run.

    Args:
        path: The environment's name, as its interpreter finds it.
        args: Arguments of its constructor.
        options: Of `EnvSpec`.
        python: The interpreter; None = this one.

    Attributes:
        template: A process that has reset the environment once, so its forks have loaded all modules and data. None
            before the first reset, and where that process cannot be forked.
        facts: What the environment of another interpreter is like (`remote.facts_of`); None for this one's.

    Raises:
        ConfigError: It is no interpreter, its process cannot load the environment, or the system is not Linux.
    """

    def __init__(
        self, path: str, args: Mapping[str, Any], options: Mapping[str, Any], python: str | None = None
    ) -> None:
        if not sys.platform.startswith("linux"):
            raise ConfigError("env.isolate: got process, which needs Linux; allowed here: none")
        python = None if python is None else check_interpreter(python)
        self.template: IsolatedEpisode | None = None
        self._templated = False
        self._keeping, self._opening = threading.Lock(), threading.Lock()
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        with theirs:
            command, environ = server_command(python, catalog.entry_point("env", path), theirs.fileno())
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True, env=environ
            )
        self._finalizer = weakref.finalize(self, _end, self._socket, self._process)
        paths = list(sys.path) if python is None else None
        try:
            answer = self._ask((path, dict(args), dict(options), paths, os.getpid()))
        except EnvironmentFault as error:
            if python is None:
                raise
            raise ConfigError(f"env.python: {python} cannot serve {path}: {error}; its own words are above") from error
        if answer.get("faults"):
            key = "env.isolate=process" if python is None else f"env.python={python}"
            raise ConfigError([f"{key}: {fault}" for fault in answer["faults"]])
        self.facts: dict[str, Any] | None = answer.get("facts")

    def ask(self, what: str, *arguments: Any) -> Any:
        """Return the answer of the environment's class to `tasks` or `demonstrate`; raises what it raised there."""
        answer = self._ask((what, *arguments))
        if "faults" in answer:
            raise ConfigError(answer["faults"])
        if "fault" in answer:
            raise EnvironmentFault(answer["fault"])
        return answer["value"]

    def fork(self, theirs: socket.socket) -> int:
        """Return the process id of a new episode that has this end of a socket pair; raises EnvironmentFault."""
        answer = self._ask(("open",), theirs)
        if "fault" in answer:
            raise EnvironmentFault(f"no process can be forked for an environment: {answer['fault']}")
        return int(answer["pid"])

    def keep_template(self, episode: IsolatedEpisode) -> None:
        """Keep a fork of the first episode that was reset."""
        with self._keeping:
            first, self._templated = not self._templated, True
        if first:
            with contextlib.suppress(EnvironmentFault):
                self.template = episode.fork("copy")

    def open(self, spec: EnvDescription) -> IsolatedEpisode:
        """Return a fresh environment in a process of its own; raises EnvironmentFault as `EnvSpec.open`."""
        with self._opening:
            if self.template is not None:
                try:
                    return self.template.fork("open")
                except EnvironmentFault:
                    self.template = None  # it cannot be forked any more, or opening fails below with the reason
        mine, theirs = socket.socketpair()
        with theirs:
            pid = self.fork(theirs)
        return IsolatedEpisode(spec, self, mine, pid)

    def kill(self, pid: int) -> None:
        """Kill an episode's process."""
        with contextlib.suppress(EnvironmentFault):  # where the server has ended, so have its processes
            self._ask(("kill", pid))

    def end_of(self, pid: int) -> str:
        """Return a text that says how an episode's process ended."""
        code = self._ask(("ended", pid)).get("code")
        if code is None:
            return "ended"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"

    def _ask(self, request: tuple[Any, ...], *handed: socket.socket) -> dict[str, Any]:
        with self._lock:
            try:
                send_request(self._socket, request, *handed)
                return receive_answer(self._socket)
            except (OSError, EOFError, BadMessage) as error:
                raise EnvironmentFault("the process that environments are forked from has ended") from error


class IsolatedEpisode(Episode):
    """An episode in a process of its own; see `Episode`.

    Where its process ends, or answers something that cannot be read, that is an `EnvironmentFault`.

    Args:
        spec: The environment.
        server: The server that forked its process.
        mine: The socket to its process.
        pid: Its process id; None = its first answer has it.
        opens: It opens the environment now, and answers when that is done.
    """

    def __init__(
        self,
        spec: EnvDescription,
        server: EpisodeServer,
        mine: socket.socket,
        pid: int | None = None,
        opens: bool = True,
    ) -> None:
        super().__init__(spec, None)
        self._server = server
        self._socket = mine
        self._pid = pid
        self._terminated: Any = False
        if pid is None:
            self._pid = int(self._receive("being forked")["value"])
        if opens:
            self._receive("opening it")

    @property
    def terminated(self) -> bool:
        """See `Episode.terminated`."""
        if isinstance(self._terminated, str):
            raise EnvironmentFault(self._terminated)
        return bool(self._terminated)

    def begin(self, task: Task) -> str:
        """See `Episode.begin`."""
        value = self._ask("reset", task)
        own = value["tools"]
        self.tools = self.spec.tools if own is None else ToolSet.from_json(own)
        self._server.keep_template(self)
        return str(value["observation"])

    def execute(self, action: Action) -> StepResult:
        """See `Episode.execute`."""
        bare = action if action.token_ids is None else replace(action, token_ids=None, logps=None)
        watch = self.spec.watch
        if watch is not None:
            watch.begin()
        result = StepResult(*self._ask("step", bare))
        if watch is not None and action.call is not None:
            if result.fault is None:
                watch.returned(action.call.name)
            elif result.fault not in ("unknown_tool", "bad_arguments"):
                watch.raised(action.call.name, ToolError(result.observation or ""))
        return result

    def own_verdict(self) -> Verdict:
        """See `Episode.own_verdict`."""
        try:
            return Verdict.from_json(self._ask("verdict"))
        except EnvironmentFault as error:
            return Verdict(None, None, f"{self.spec.name}.get_reward", self.spec.version, error=f"Error: {error}")

    def duplicate(self) -> Episode:
        """See `Episode.duplicate`: a fork of its process."""
        twin = self.fork("copy")
        twin._terminated = self._terminated
        return twin

    def fork(self, what: str) -> IsolatedEpisode:
        """Return an episode in a fork of its process: a `copy` of this one, or a fresh one that it is to `open`.

        Raises:
            EnvironmentFault: It cannot be forked, or does not open.
        """
        mine, theirs = socket.socketpair()
        with theirs:
            self._send(what, handed=(theirs,))
        return IsolatedEpisode(self.spec, self._server, mine, opens=what == "open")

    def _read(self, attribute: str, otherwise: Any) -> Any:
        return self._ask(attribute)

    def close(self) -> None:
        """See `Episode.close`: its process ends."""
        try:
            if hasattr(self.spec.cls, "__exit__"):
                self._ask("close")
        finally:
            self._drop()

    def __del__(self) -> None:
        self._drop()

    def _ask(self, what: str, *arguments: Any) -> Any:
        with crash_notes.noted(f"{what} of {self.spec.name}, task {self._boundary.task_id}"):
            self._send(what, *arguments)
            answer = self._receive(what)
        if "misuse" in answer:
            raise RuntimeError(answer["misuse"])
        try:
            return answer["value"]
        except KeyError as error:
            raise EnvironmentFault(f"{self.spec.name}: its process sent an answer without a value") from error

    def _send(self, what: str, *arguments: Any, handed: tuple[socket.socket, ...] = ()) -> None:
        with contextlib.suppress(OSError):  # its process has ended, which `_receive` reports
            send_request(self._socket, (what, *arguments), *handed)

    def _drop(self) -> None:
        """Let its process end."""
        self._leave()
        self._socket.close()

    def _kill(self) -> None:
        if self._pid is not None:
            self._server.kill(self._pid)

    def _receive(self, what: str) -> dict[str, Any]:
        """Return the answer to the last request; a call that ran out of time has its process killed meanwhile."""
        call = present()
        if call is not None and not call.begin(self._kill):
            self._kill()
        try:
            answer = receive_answer(self._socket)
        except (OSError, EOFError) as error:
            how = "ended" if self._pid is None else self._server.end_of(self._pid)
            self._drop()
            task = self._boundary.task_id
            raise EnvironmentFault(f"{self.spec.name}: its process {how} in {what} (task {task})") from error
        except BadMessage as error:
            self._kill()
            self._drop()
            raise EnvironmentFault(f"{self.spec.name}: its process was interfered with: {error}") from error
        finally:
            if call is not None:
                call.done()
        for picture in answer.pop("pictures", ()):
            pictures.mark(picture)
        self._terminated = answer.get("terminated", False)
        if "fault" in answer:
            raise EnvironmentFault(str(answer["fault"]))
        return answer


def _end(own: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """End the server and all that it forked: it kills its session where its socket is closed."""
    own.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)
