"""Messages between a run and the processes of its environments, and environments of another interpreter.

A message is a length and a body, over Unix sockets.

A request to an environment's process is pickled, with its records. An answer is JSON, so nothing that an environment
can send is ever unpickled.

An environment of another interpreter (`env.python=PATH`) is a class here that stands for one that cannot be imported.
That interpreter runs the server of `isolation.server` with this package alone beside its own libraries, so the
requirements of an environment and of training cannot clash. It needs Python 3.11 or newer and nothing installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import random
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from json import dumps  # by name: an environment may replace `json.dumps` in its process
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.envs.tools import ToolSet
from offline_agent.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from offline_agent.envs.description import EnvDescription


_HEADER = struct.Struct("!Q")
_MOST = 1 << 28  # most bytes of a message
_MOST_FDS = 4


class BadMessage(Exception):
    """Bytes that are no message: something else wrote to the socket."""


def send_request(to: socket.socket, request: tuple[Any, ...], *handed: socket.socket) -> None:
    """Send a request, and sockets that go with it; raises OSError where the other side is closed."""
    _send(to, pickle.dumps(request, pickle.HIGHEST_PROTOCOL), *handed)


def receive_request(source: socket.socket) -> tuple[Any, list[socket.socket]]:
    """Return the next request and the sockets that came with it; raises EOFError where the other side closed."""
    data, handed = _receive(source)
    return pickle.loads(data), handed


def send_answer(to: socket.socket, answer: dict[str, Any]) -> None:
    """Send an answer; raises TypeError or ValueError where it is no JSON, OSError where the other side is closed."""
    _send(to, dumps(answer).encode("ascii"))


def receive_answer(source: socket.socket) -> dict[str, Any]:
    """Return the next answer.

    Raises:
        EOFError: The other side closed, or ended.
        BadMessage: It sent something else.
    """
    data, handed = _receive(source)
    for one in handed:
        one.close()
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadMessage("it sent something that is no JSON") from error
    if not isinstance(answer, dict):
        raise BadMessage(f"it sent a JSON {type(answer).__name__}, not an object")
    return answer


def _send(to: socket.socket, body: bytes, *handed: socket.socket) -> None:
    data = _HEADER.pack(len(body)) + body
    if handed:
        sent = socket.send_fds(to, [data], [one.fileno() for one in handed])
        data = data[sent:]
    if data:
        to.sendall(data)


def _receive(source: socket.socket) -> tuple[bytes, list[socket.socket]]:
    data, fds, _, _ = socket.recv_fds(source, _HEADER.size, _MOST_FDS)
    handed = [socket.socket(fileno=fd) for fd in fds]
    (length,) = _HEADER.unpack(_filled(source, bytearray(data), _HEADER.size))
    if length > _MOST:
        raise BadMessage(f"it announced a message of {length} bytes")
    return bytes(_filled(source, bytearray(), length)), handed


def _filled(source: socket.socket, buffer: bytearray, size: int) -> bytearray:
    while len(buffer) < size:
        data = source.recv(min(size - len(buffer), 1 << 20))
        if not data:
            raise EOFError
        buffer += data
    return buffer


_PACKAGE = Path(__file__).resolve().parents[3]
OLDEST = (3, 11)
_AT_ONCE = 100  # tasks of a request
_FLAGS = ("name", "version", "replay_only", "max_steps", "deterministic_verifier", "system_prompt", "runs_code")
_HERE = "env.python runs it elsewhere"


def check_interpreter(python: str) -> str:
    """Return the path of a Python interpreter, its `~` expanded; the file may be a link into another installation.

    Raises:
        ConfigError: It is no interpreter, does not start, or is too old.
    """
    path = os.path.expanduser(python)
    if os.path.isdir(path):
        raise ConfigError(
            f"env.python: {python!r} is a folder; name the interpreter in it, {python.rstrip('/')}/bin/python"
        )
    question = "import sys; print(*sys.version_info[:2])"
    try:
        done = subprocess.run([path, "-c", question], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise ConfigError(f"env.python: got {python!r}, which is no Python interpreter: {error}") from error
    parts = done.stdout.split()
    if done.returncode or len(parts) != 2 or not all(map(str.isdecimal, parts)):
        last = done.stderr.strip().splitlines()[-1:] or [f"asked for its version, it said {done.stdout[:100]!r}"]
        raise ConfigError(f"env.python: got {python!r}, which is no Python interpreter that starts: {last[0]}")
    version = tuple(map(int, parts))
    if version < OLDEST:
        found, oldest = (".".join(map(str, one)) for one in (version, OLDEST))
        raise ConfigError(f"env.python: {python!r} is Python {found}, allowed: {oldest} or newer")
    return path


def facts_of(spec: EnvDescription) -> dict[str, Any]:
    """Return what the other side has to know of an environment, as JSON."""
    import inspect

    from offline_agent.envs.tools.schema import tool_functions

    cls = spec.cls
    reset = inspect.signature(cls.reset).parameters  # type: ignore[attr-defined]
    reason = getattr(cls, "hindsight", None)
    return {
        **{flag: getattr(spec, flag) for flag in _FLAGS},
        "module": cls.__module__,
        "class": cls.__qualname__,
        "irreversible": sorted(spec.irreversible),
        "restarts": sorted(spec.restarts),
        "tools": spec.tools.to_json(),
        "methods": {name: inspect.getdoc(tool) for name, tool in tool_functions(cls).items()},
        "turn_rewards": spec.turn_rewards,
        "fingerprints": spec.fingerprints,
        "named": "task_id" in reset or any(one.kind is one.VAR_KEYWORD for one in reset.values()),
        "has": [name for name in _OPTIONAL if getattr(cls, name, None) is not None],
        "hindsight": reason if isinstance(reason, str) else None,
    }


def demonstrated(spec: EnvDescription, task: Any, messages: Any, state: Any, noise: float) -> dict[str, Any]:
    """Return the expert's message, and the state of the random generator after it."""
    assert spec.demonstrate is not None
    rng = random.Random()
    rng.setstate((state[0], tuple(state[1]), state[2]))
    message = spec.demonstrate(task, messages, rng, noise)
    return {"message": message, "rng": rng.getstate()}


def stand_in(facts: Mapping[str, Any], ask: Callable[..., Any]) -> type:
    """Return a class with the contract of the environment that a server has; only its class-level parts can be used.

    Args:
        facts: What `facts_of` returned there.
        ask: `EpisodeServer.ask`.
    """
    members: dict[str, Any] = {flag: facts[flag] for flag in _FLAGS}
    members |= {name: frozenset(facts[name]) for name in ("irreversible", "restarts")}
    members |= {"__module__": facts["module"], "__qualname__": facts["class"], "_ask": staticmethod(ask)}
    members["reset"] = _elsewhere("reset") if facts["named"] else _reset
    members |= {name: _elsewhere(name, text) for name, text in facts["methods"].items()}
    members |= {name: _OPTIONAL[name] for name in facts["has"]}
    if facts["hindsight"] is not None:
        members["hindsight"] = facts["hindsight"]
    if facts["turn_rewards"]:
        members["turn_reward"] = None
    made = type(facts["class"].rpartition(".")[2], (), members)
    made._tool_schemas = ToolSet.from_json(facts["tools"]).schemas  # type: ignore[attr-defined]
    return made


def _reset(self: Any) -> str:
    raise RuntimeError(_HERE)


def _elsewhere(name: str, text: str | None = None) -> Any:
    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        raise RuntimeError(_HERE)

    method.__name__, method.__doc__ = name, text
    return method


def _tasks(cls: Any, split: str) -> Iterator[dict[str, Any]]:
    first = 0
    while True:
        entries: Sequence[Any] = cls._ask("tasks", split, first, _AT_ONCE)
        yield from entries
        first += len(entries)
        if len(entries) < _AT_ONCE:
            return


def _demonstrate(cls: Any, task: Any, messages: Any, rng: random.Random, noise: float) -> Any:
    answer = cls._ask("demonstrate", task, messages, rng.getstate(), noise)
    version, numbers, gauss = answer["rng"]
    rng.setstate((version, tuple(numbers), gauss))
    return answer["message"]


_OPTIONAL: dict[str, Any] = {
    "tasks": classmethod(_tasks), "demonstrate": classmethod(_demonstrate), "get_reward": _elsewhere("get_reward"),
    "__exit__": _elsewhere("__exit__"), "achieved_goal": None,
}  # fmt: skip
"""Members of a class that only some environments have."""


def server_command(python: str | None, point: EntryPoint | None, channel: int) -> tuple[list[str], dict[str, str]]:
    """Return the command line of a server and its variables.

    Args:
        python: The interpreter; None = this one. Another does not look for modules where this one does.
        point: The entry point of the environment; None = it has none.
        channel: The descriptor of its socket to the run.
    """
    if python is not None:
        environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        return [python, "-c", _bootstrap(point), str(channel)], environ
    paths = os.pathsep.join(filter(None, [str(_PACKAGE), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "offline_agent.envs.isolation.server", str(channel)]
    return command, {**os.environ, "PYTHONPATH": paths}


def _bootstrap(point: EntryPoint | None) -> str:
    """Return a program that imports this package from where it lies, and serves.

    Args:
        point: The entry point of the environment, whose package is imported from where it lies too; None = it has none.
            Other packages beside them are not found.
    """
    names = ["offline_agent", *([] if point is None else [point.module.partition(".")[0]])]
    files = {name: getattr(importlib.util.find_spec(name), "origin", None) for name in names}
    given = "" if point is None else f"catalog.GIVEN.append(EntryPoint{(point.name, point.value, point.group)!r})\n"
    return (
        "import importlib.util, sys\n"
        "from importlib.metadata import EntryPoint\n"
        "class Finder:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        f"        file = {files!r}.get(name)\n"
        "        return file and importlib.util.spec_from_file_location(name, file)\n"
        "sys.meta_path.insert(0, Finder)\n"
        f"from offline_agent import catalog\n{given}"
        "from offline_agent.envs.isolation.server import main\n"
        "main()\n"
    )
