"""The tools of an MCP server as an environment: `env=mcp:COMMAND` (stdio) or `env=mcp:URL` (HTTP).

A server has tools, and neither tasks nor a verdict: `setup`, `verify` and `tasks` are functions of the user. Each episode
has a server and a fresh folder of its own, `{folder}` in the command; without that word the server runs in the folder. A
snapshot is a copy of the folder with another server; the trial of copies finds out whether the server keeps state
elsewhere, and then states are replayed. Servers that keep nothing but what is in the folder (`stateless`) are started
once for each thread: an episode's folder is moved to the server's for the time of a call.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import IO, Any, ClassVar

from offline_agent import catalog
from offline_agent.envs.base import Environment
from offline_agent.errors import ConfigError, EnvironmentFault, ToolError, ends_the_run

SHOWN = "/workspace"
"""The name that the policy sees for an episode's folder, so that observations do not depend on where it lies."""
_FOLDER = "{folder}"
_PATIENCE = 5.0  # seconds for a server to end


def adapt(rest: str, args: Mapping[str, Any]) -> type:
    """Return the class of a server's tools; see `adapters.environment_class`."""
    import mcp  # noqa: F401  (is it installed?)

    offered = args.get("tools")
    with tempfile.TemporaryDirectory(prefix="mcp-") as place:
        folder = Path(place)
        _fill(folder, args.get("folder"))
        listed = _listed(rest, folder, float(args.get("timeout", 60.0)))
    known = {tool["function"]["name"]: tool for tool in listed}
    if offered is not None and (missing := set(offered) - set(known)):
        raise ConfigError(f"env.tools: got {', '.join(sorted(missing))}, allowed: {', '.join(known)}")
    tools = [tool for name, tool in known.items() if offered is None or name in offered]
    if not tools:
        raise ConfigError(f"env: the server {rest} has no tools")
    own = {"reset", "tasks", "get_reward", "terminated", "name"} & {tool["function"]["name"] for tool in tools}
    if own:
        raise ConfigError(f"env: tools called {', '.join(sorted(own))} cannot be adapted; leave them out with env.tools")
    return type(
        "McpEnvironment", (_Mcp,),
        {"name": "mcp", "_server": rest, "_tool_schemas": tools, "replay_only": _is_address(rest), "__module__": __name__,
         **{tool["function"]["name"]: _method(tool["function"]["name"]) for tool in tools}},
    )  # fmt: skip


class _Mcp(Environment):
    """One server; `adapt` makes the classes.

    Args:
        setup: `module:function` of (task, folder): makes the start of a task, and returns the first observation. Without it
            that is the task's `instruction`.
        verify: `module:function` of (task, folder, call): the reward in [0, 1]; `call(tool, **arguments)` asks the server.
        tasks: `module:function` of (split): yields tasks, dicts of JSON values; else name tasks.file.
        folder: A folder that each episode gets a copy of; the server runs in it.
        tools: The tools that are offered; None = all.
        stateless: The server keeps nothing between calls but what is in `{folder}`, whose files it opens by name.
        prompt: The system prompt.
        timeout: Seconds that the server may take to start and to answer.
    """

    _server: ClassVar[str]
    _tool_schemas: ClassVar[list[dict[str, Any]]]
    one_thread = False

    def __init__(
        self,
        setup: str | None = None,
        verify: str | None = None,
        tasks: str | None = None,
        folder: str | None = None,
        tools: list[str] | None = None,
        stateless: bool = False,
        prompt: str | None = None,
        timeout: float = 60.0,
    ) -> None:
        if stateless and _FOLDER not in self._server:
            raise ConfigError(f"env.stateless: it needs {_FOLDER} in the command, by which the server names its files")
        self._stateless = stateless
        self._setup = None if setup is None else catalog.load("env.setup", setup)
        self._verify = None if verify is None else catalog.load("env.verify", verify)
        self._template, self._timeout = folder, timeout
        if prompt is not None:
            self.system_prompt = prompt  # type: ignore[misc]
        self._task: dict[str, Any] = {}
        self._place: Path | None = None
        self._connection: _Connection | None = None
        self.terminated = False

    @classmethod
    def tasks(cls, split: str, tasks: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the tasks of the user's function."""
        if tasks is None:
            raise ConfigError(
                "env.tasks: a server has no tasks; name a function of (split) that yields dicts, "
                "env.tasks=module:function, or a file, tasks.file=FILE"
            )
        yield from catalog.load("env.tasks", tasks)(split)

    def reset(self, **task: Any) -> str:
        """Begin a task in a fresh folder with a fresh server."""
        self._end()
        self._task, self.terminated = task, False
        self._place = Path(tempfile.mkdtemp(prefix="mcp-"))
        _fill(self._place, self._template)
        said = task.get("instruction")
        if self._setup is not None:
            said = self._setup(**catalog.accepted(self._setup, {"task": task, "folder": self._place}))
        if said is None:
            raise EnvironmentFault(
                "env.setup: a task without an `instruction` needs a function that returns the first observation"
            )
        return _hidden(str(said), self._place)

    def get_reward(self) -> float | None:
        """Return what the user's function says of the present state."""
        if self._verify is None:
            return None
        given = {"task": self._task, "folder": self._place, "call": lambda tool, **arguments: self._call(tool, arguments)}
        reward: float | None = self._verify(**catalog.accepted(self._verify, given))
        return reward

    def _call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        assert self._place is not None  # `reset` came before
        if self._stateless:
            failed, text = _shared(self._server, self._timeout).call(tool, arguments, self._place)
        else:
            if self._connection is None:
                self._connection = _Connection(self._server, self._place, self._timeout)
            failed, text = self._connection.call(tool, arguments)
        if failed:
            raise ToolError(text)
        return text

    def __deepcopy__(self, memo: dict[int, Any]) -> _Mcp:
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._task, twin._connection = dict(self._task), None
        if self._place is not None:
            twin._place = Path(tempfile.mkdtemp(prefix="mcp-"))
            shutil.copytree(self._place, twin._place, symlinks=True, dirs_exist_ok=True)
        return twin

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


def _method(name: str) -> Callable[..., str]:
    def tool(self: _Mcp, **arguments: Any) -> str:
        return self._call(name, arguments)

    tool.__name__ = name
    return tool


def _is_address(server: str) -> bool:
    return server.startswith(("http://", "https://"))


def _fill(folder: Path, template: str | None) -> None:
    if template is None:
        return
    if not Path(template).is_dir():
        raise ConfigError(f"env.folder: there is no folder {template!r}")
    shutil.copytree(template, folder, symlinks=True, dirs_exist_ok=True)


def _hidden(text: str, place: Path) -> str:
    """Return a text with the folder's path replaced by its shown name."""
    return text.replace(str(place.resolve()), SHOWN).replace(str(place), SHOWN)


def _told(value: Any, place: Path) -> Any:
    """Return arguments with the folder's shown name replaced by its path."""
    if isinstance(value, str):
        return value.replace(SHOWN, str(place))
    if isinstance(value, Mapping):
        return {name: _told(one, place) for name, one in value.items()}
    if isinstance(value, list):
        return [_told(one, place) for one in value]
    return value


def _opened(server: str, folder: Path, timeout: float, words: IO[str]) -> Any:
    """Return a client of a server, not yet connected; what it says on stderr goes to `words`."""
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    if _is_address(server):
        return Client(server, read_timeout_seconds=timeout)
    try:
        program, *rest = [word.replace(_FOLDER, str(folder)) for word in shlex.split(server)]
    except ValueError as error:
        raise ConfigError(f"env: mcp:{server} is no command: {error}") from error
    where = Path.cwd() if _FOLDER in server else folder
    parameters = StdioServerParameters(command=program, args=rest, cwd=where)
    return Client(stdio_client(parameters, errlog=words), read_timeout_seconds=timeout)


def _why(error: BaseException, words: IO[str]) -> str:
    """Return why a server failed: the innermost error, and its last words."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    words.seek(0)
    last = [line for line in words.read().splitlines() if line.strip()][-3:]
    return f"{type(error).__name__}: {error}" + (f"; it said: {' | '.join(last)}" if last else "")


def _listed(server: str, folder: Path, timeout: float) -> list[dict[str, Any]]:
    """Return the schemas of a server's tools."""
    import anyio

    with tempfile.TemporaryFile("w+") as words:

        async def ask() -> Any:
            with anyio.fail_after(timeout):
                async with _opened(server, folder, timeout, words) as client:
                    return [tool async for tool in _pages(client)]

        try:
            tools = anyio.run(ask)
        except ConfigError:
            raise
        except BaseException as error:
            if ends_the_run(error):
                raise
            raise ConfigError(f"env: mcp:{server} does not answer: {_why(error, words)}") from error
    return [
        {"type": "function", "function": {"name": tool.name, "description": tool.description or tool.name,
                                          "parameters": dict(tool.input_schema)}} for tool in tools
    ]  # fmt: skip


async def _pages(client: Any) -> Any:
    cursor = None
    while True:
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            yield tool
        cursor = page.next_cursor
        if not cursor:
            return


class _Connection:
    """A connection to a server; its event loop is shared by all connections.

    Args:
        server: Command or address.
        folder: The episode's.
        timeout: Seconds for an answer.

    Raises:
        EnvironmentFault: The server does not start.
    """

    def __init__(self, server: str, folder: Path, timeout: float) -> None:
        self._server, self._folder = server, folder
        self._words = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed in `close`)
        self._loop = _running_loop()
        self._end = asyncio.Event()
        self._client: Future[Any] = Future()
        client = _opened(server, folder, timeout, self._words)
        self._life = asyncio.run_coroutine_threadsafe(self._live(client), self._loop)
        try:
            self._known = self._client.result(timeout)
        except Exception as error:
            fault = f"mcp:{server} does not start: {_why(error, self._words)}"
            self.close()
            raise EnvironmentFault(fault) from error

    async def _live(self, client: Any) -> None:
        try:
            async with client as known:  # entered and left by one task, as its library asks
                self._client.set_result(known)
                await self._end.wait()
        except BaseException as error:
            if not self._client.done():
                self._client.set_exception(error)

    def call(self, tool: str, arguments: Mapping[str, Any]) -> tuple[bool, str]:
        """Return whether a call failed, and its text.

        Raises:
            EnvironmentFault: The server ended, or did not answer in time.
        """
        from mcp import MCPError

        try:
            asked = self._known.call_tool(tool, _told(arguments, self._folder))
            result = asyncio.run_coroutine_threadsafe(asked, self._loop).result()
        except MCPError as error:
            if error.code in (-32602, -32601):  # bad parameters, no such tool: told to the policy
                return True, _hidden(str(error), self._folder)
            raise EnvironmentFault(f"mcp:{self._server}: {tool}: {_why(error, self._words)}") from error
        except Exception as error:
            raise EnvironmentFault(f"mcp:{self._server}: {tool}: {_why(error, self._words)}") from error
        parts = [getattr(part, "text", None) or f"[{part.type}]" for part in result.content]
        if not parts and result.structured_content is not None:
            parts = [json.dumps(result.structured_content, ensure_ascii=False)]
        return bool(result.is_error), _hidden("\n".join(parts), self._folder)

    def close(self) -> None:
        """End the connection, and the server where it was started for it."""
        self._loop.call_soon_threadsafe(self._end.set)
        with contextlib.suppress(Exception):  # it may have ended already
            self._life.result(_PATIENCE)
        self._words.close()


class _Shared:
    """A server of one thread, for the episodes whose folders are moved to its own for the time of a call."""

    def __init__(self, server: str, timeout: float) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="mcp-")
        self._folder = Path(self._home.name) / "folder"
        self._folder.mkdir()
        self._start = partial(_Connection, server, self._folder, timeout)
        self._connection = self._start()

    def call(self, tool: str, arguments: Mapping[str, Any], place: Path) -> tuple[bool, str]:
        """Return as `_Connection.call`; a server that failed is started anew for the next call."""
        os.rename(place, self._folder)  # an empty folder is replaced
        try:
            return self._connection.call(tool, arguments)
        except EnvironmentFault:
            self._connection.close()
            self._connection = self._start()
            raise
        finally:
            os.rename(self._folder, place)
            self._folder.mkdir()


_servers = threading.local()


def _shared(server: str, timeout: float) -> _Shared:
    known: dict[str, _Shared] = _servers.__dict__.setdefault("known", {})
    if server not in known:
        known[server] = _Shared(server, timeout)
    return known[server]


_lock = threading.Lock()
_loops: list[asyncio.AbstractEventLoop] = []


def _running_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all connections; its thread begins with the first, and ends with the process."""
    with _lock:
        if not _loops:
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="mcp", daemon=True).start()
            _loops.append(loop)
        return _loops[0]
