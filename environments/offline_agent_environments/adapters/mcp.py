"""The tools of an MCP server as an environment: `env=mcp:COMMAND` (stdio) or `env=mcp:URL` (HTTP).

A server has tools, and neither tasks nor a verdict: `setup`, `verify` and `tasks` are functions of the user. Each
episode has a server and a fresh folder of its own, `{folder}` in the command; without that word the server runs in the
folder. A snapshot is a copy of the folder with another server; the trial of copies finds out whether the server keeps
state elsewhere, and then states are replayed. Servers that keep nothing but what is in the folder (`stateless`) are
kept between calls: an episode's folder is moved to the server's for the time of a call.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from offline_agent import catalog, parameters
from offline_agent.envs.base import twin
from offline_agent.errors import ConfigError, EnvironmentFault, ToolError
from offline_agent_environments.adapters import adapted, refused_names
from offline_agent_environments.adapters.mcp_servers import FOLDER, Connection, Kept, Server, hidden, listed


def adapt(rest: str, args: Mapping[str, Any]) -> type:
    """Return the class of a server's tools; see `envs.base.environment_class`."""
    import mcp  # noqa: F401  (is it installed?)

    server = _server(rest, args)
    known = _known(server, args.get("folder"))
    handles = args.get("handles") or []
    tools = [_without(known[name], handles) for name in _chosen(rest, list(known), args.get("tools"))]
    members: dict[str, Any] = {
        "name": "mcp", "_place_of_server": rest, "replay_only": server.is_address,
        "_takes": {name: [one for one in handles if one in _fields(tool)] for name, tool in known.items()},
    }  # fmt: skip
    if args.get("stateless"):
        members["fingerprint"] = property(_fingerprint)
    if args.get("verify") is not None:
        members["get_reward"] = _get_reward
    if args.get("tasks") is not None:
        members["tasks"] = classmethod(_tasks)
    return adapted(_Mcp, tools, **members)


@functools.cache  # a command loads its environment more than once
def _known(server: Server, template: str | None) -> dict[str, dict[str, Any]]:
    """Return the server's tools by name."""
    with tempfile.TemporaryDirectory(prefix="mcp-") as place:
        _fill(Path(place), template)
        return {tool["function"]["name"]: tool for tool in listed(server, Path(place))}


def _server(place: str, args: Mapping[str, Any]) -> Server:
    timeout, variables = args.get("timeout", 60.0), args.get("variables") or []
    return Server(place, float(timeout), tuple(variables), bool(args.get("handshake", False)))


def _chosen(rest: str, known: list[str], offered: Any) -> list[str]:
    """Return the names of the tools that are offered."""
    if offered is not None and (missing := set(offered) - set(known)):
        raise ConfigError(f"env.tools: got {', '.join(sorted(missing))}, allowed: {', '.join(known)}")
    names = [name for name in known if offered is None or name in offered]
    if not names:
        raise ConfigError(f"env: the server mcp:{rest} has no tools")
    if taken := refused_names(_Mcp, names):
        raise ConfigError(
            f"env: tools called {', '.join(sorted(taken))} cannot be adapted, the contract has these names; "
            f"leave them out: env.tools={[name for name in names if name not in taken]}"
        )
    return names


class _Mcp:
    """One server; `adapt` makes the classes.

    Args:
        setup: `module:function` of (task, folder, call), or some of them: makes the start of a task, and returns the
            first observation, or that and a dict of handles. Without it the observation is the task's `instruction`.
        verify: `module:function` of (task, folder, call), or some of them: the reward in [0, 1], or a `Verdict`;
            `call(tool, **arguments)` returns the server's text.
        tasks: `module:function` of (split): yields tasks, dicts of JSON values; else name tasks.file.
        folder: A folder that each episode gets a copy of; the server runs in it.
        tools: The tools that are offered; None = all.
        handles: Names of parameters that `setup` gives: added to each call, and not shown to the policy.
        stateless: The server keeps nothing between calls but what is in `{folder}`, whose files it opens by name.
        prompt: The system prompt.
        timeout: Seconds that the server may take to start and to answer.
        variables: Names of environment variables that the server is given, such as a key of its own.
        handshake: The server knows the older protocol alone, and does not answer the newer one.
        demonstrate: See `envs.base.environment_class`.
    """

    _place_of_server: ClassVar[str]
    _tool_schemas: ClassVar[list[dict[str, Any]]]
    _takes: ClassVar[dict[str, list[str]]]
    one_thread = False
    system_prompt = ""

    def __init__(
        self,
        setup: str | None = None,
        verify: str | None = None,
        tasks: str | None = None,
        folder: str | None = None,
        tools: list[str] | None = None,
        handles: list[str] | None = None,
        stateless: bool = False,
        prompt: str | None = None,
        timeout: float = 60.0,
        variables: list[str] | None = None,
        handshake: bool = False,
        demonstrate: str | None = None,
    ) -> None:
        if stateless and FOLDER not in self._place_of_server:
            raise ConfigError(f"env.stateless: it needs {FOLDER} in the command, by which the server names its files")
        self._server = _server(
            self._place_of_server, {"timeout": timeout, "variables": variables, "handshake": handshake}
        )
        self._stateless, self._template = stateless, folder
        self._setup = None if setup is None else catalog.load("env.setup", setup)
        self._verify = None if verify is None else catalog.load("env.verify", verify)
        if prompt is not None:
            self.system_prompt = prompt
        self._task: dict[str, Any] = {}
        self._handles: dict[str, Any] = {}
        self._place: Path | None = None
        self._connection: Connection | None = None
        self.terminated = False

    def reset(self, **task: Any) -> str:
        """Begin a task in a fresh folder with a fresh server."""
        self._end()
        self._task, self._handles, self.terminated = task, {}, False
        self._place = Path(tempfile.mkdtemp(prefix="mcp-"))
        _fill(self._place, self._template)
        said = task.get("instruction")
        if self._setup is not None:
            said = self._asked(self._setup)
            if isinstance(said, tuple):
                said, self._handles = said
        if said is None:
            raise EnvironmentFault(
                "env.setup: a task without an `instruction` needs a function that returns the first observation"
            )
        return self._hidden(str(said))

    def _asked(self, function: Callable[..., Any]) -> Any:
        """Return what a function of the user answers."""
        given = {"task": copy.deepcopy(self._task), "folder": self._place, "call": self._for_user}
        return function(**parameters.accepted(function, given))

    def _for_user(self, tool: str, **arguments: Any) -> str:
        failed, text = self._answer(tool, arguments)
        if failed:
            raise EnvironmentFault(f"{tool}: {text}")
        return text

    def _take(self, tool: str, arguments: Mapping[str, Any]) -> str:
        failed, text = self._answer(tool, arguments)
        if failed:
            raise ToolError(self._hidden(text))
        return self._hidden(text)

    def _answer(self, tool: str, arguments: Mapping[str, Any]) -> tuple[bool, str]:
        assert self._place is not None  # `reset` came before
        own = {name: self._handles[name] for name in self._takes.get(tool, ()) if name in self._handles}
        given = {**own, **arguments}
        if self._stateless:
            return Kept.call(self._server, self._place, tool, given)
        if self._connection is None:
            self._connection = Connection(self._server, self._place)
        return self._connection.call(tool, given)

    def _hidden(self, text: str) -> str:
        assert self._place is not None
        for name, value in self._handles.items():
            text = text.replace(str(value), f"<{name}>")
        return hidden(text, self._place)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Mcp:
        other = twin(self)
        other._task, other._handles, other._connection = dict(self._task), dict(self._handles), None
        if self._place is not None:
            other._place = Path(tempfile.mkdtemp(prefix="mcp-"))
            shutil.copytree(self._place, other._place, symlinks=True, dirs_exist_ok=True)
        return other

    def __enter__(self) -> _Mcp:
        return self

    def __exit__(self, *_: Any) -> None:
        self._end()

    def _end(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        place, self._place = self._place, None
        if place is not None:
            shutil.rmtree(place, ignore_errors=True)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be ending
            self._end()


def _tasks(cls: type[_Mcp], split: str, tasks: str) -> Iterator[dict[str, Any]]:
    """Yield the tasks of the user's function."""
    yield from catalog.load("env.tasks", tasks)(split)


def _get_reward(self: _Mcp) -> Any:
    """Return what the user's function says of the present state."""
    assert self._verify is not None
    return self._asked(self._verify)


def _fingerprint(self: _Mcp) -> str:
    """Return a hash of the folder: names, kinds and contents."""
    seen, place = hashlib.sha256(), self._place
    if place is None:
        return ""  # not reset yet
    for path in sorted(place.rglob("*")):
        seen.update(f"{path.relative_to(place)}\0{path.is_symlink()}{path.is_dir()}\0".encode())
        if path.is_file() and not path.is_symlink():
            seen.update(f"{path.stat().st_size}\0".encode() + path.read_bytes())
    return seen.hexdigest()


def _fields(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = tool["function"]["parameters"].get("properties") or {}
    return fields


def _without(tool: Mapping[str, Any], handles: list[str]) -> dict[str, Any]:
    """Return a tool's schema without some parameters."""
    changed = copy.deepcopy(dict(tool))
    shape = changed["function"]["parameters"]
    for name in handles:
        shape.get("properties", {}).pop(name, None)
        if name in shape.get("required", ()):
            shape["required"].remove(name)
    return changed


def _fill(folder: Path, template: str | None) -> None:
    if template is None:
        return
    if not Path(template).is_dir():
        raise ConfigError(f"env.folder: there is no folder {template!r}")
    shutil.copytree(template, folder, symlinks=True, dirs_exist_ok=True)
