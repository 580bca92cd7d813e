"""Connections to MCP servers, over stdio or HTTP, in either era of the protocol; all share one event loop."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import shlex
import sys
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from offline_agent.arguments.foreign import self_contained
from offline_agent.errors import ConfigError, EnvironmentFault, ends_the_run

SHOWN = "/workspace"
"""The name that the policy sees for an episode's folder, so that observations do not depend on where it lies."""
FOLDER, _PYTHON = "{folder}", "{python}"
_PATIENCE = 5.0  # seconds for a server to end
_TOLD_TO_THE_POLICY = (-32602, -32601)  # bad parameters, no such tool (JSON-RPC)


@dataclass(frozen=True)
class Server:
    """Place and limits of a server.

    Attributes:
        place: Its command, or its address.
        timeout: Seconds that it may take to start, and to answer.
        variables: Names of the environment variables that it is given beside those every program needs.
        handshake: It knows the older protocol alone, which begins with a handshake, and does not answer the newer one.
    """

    place: str
    timeout: float = 60.0
    variables: tuple[str, ...] = ()
    handshake: bool = False

    @property
    def is_address(self) -> bool:
        """Whether it runs already, and is reached over HTTP."""
        return self.place.startswith(("http://", "https://"))

    def client(self, folder: Path, words: IO[str]) -> Any:
        """Return a client, not yet connected; stderr of the server goes to `words`.

        Raises:
            ConfigError: Its command cannot be read.
        """
        from mcp import Client
        from mcp.client.stdio import StdioServerParameters, stdio_client

        mode = "legacy" if self.handshake else "auto"
        options: dict[str, Any] = {"read_timeout_seconds": self.timeout, "mode": mode}
        if self.is_address:
            return Client(self.place, **options)
        program, *rest = self._command(folder)
        given = {name: os.environ[name] for name in self.variables if name in os.environ}
        where = Path.cwd() if FOLDER in self.place else folder
        parameters = StdioServerParameters(command=program, args=rest, cwd=where, env=given)
        return Client(stdio_client(parameters, errlog=words), **options)

    def _command(self, folder: Path) -> list[str]:
        try:
            words = [word.replace(_PYTHON, sys.executable) for word in shlex.split(self.place)]
        except ValueError as error:
            raise ConfigError(f"env: mcp:{self.place} is no command: {error}") from error
        if not words:
            raise ConfigError(f"env: mcp:{self.place} is no command")
        if FOLDER in self.place:
            return [word.replace(FOLDER, str(folder)) for word in words]
        return [str(Path(word).resolve()) if "/" in word and Path(word).exists() else word for word in words]


def listed(server: Server, folder: Path) -> list[dict[str, Any]]:
    """Return the schemas of a server's tools, in its order.

    Args:
        server: The server; it is started for this, and ended.
        folder: Its folder.

    Raises:
        ConfigError: It does not start, or does not answer.
    """
    import anyio

    with tempfile.TemporaryFile("w+") as words:

        async def ask() -> list[Any]:
            found: list[Any] = []
            with anyio.fail_after(server.timeout):
                async with server.client(folder, words) as client:
                    page = await client.list_tools()
                    found += page.tools
                    while page.next_cursor:
                        page = await client.list_tools(cursor=page.next_cursor)
                        found += page.tools
            return found

        try:
            tools = anyio.run(ask)
        except ConfigError:
            raise
        except BaseException as error:
            if ends_the_run(error):
                raise
            raise ConfigError(f"env: mcp:{server.place} does not answer: {_why(error, words)}") from error
    return [
        {"type": "function", "function": {"name": tool.name, "description": tool.description or tool.name,
                                          "parameters": self_contained(tool.input_schema)}} for tool in tools
    ]  # fmt: skip


class Connection:
    """A connection to a server, which is started for it where it has a command.

    Args:
        server: The server.
        folder: The folder that it works in.

    Raises:
        EnvironmentFault: The server does not start.
    """

    def __init__(self, server: Server, folder: Path) -> None:
        self._server, self._folder = server, folder
        self._words = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed in `close`)
        self._loop = _running_loop()
        self._end = asyncio.Event()
        self._client: Future[Any] = Future()
        client = server.client(folder, self._words)
        self._life = asyncio.run_coroutine_threadsafe(self._live(client), self._loop)
        try:
            self._known = self._client.result(server.timeout)
        except Exception as error:
            fault = f"mcp:{server.place} does not start: {_why(error, self._words)}"
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
            seconds = self._server.timeout
            asked = self._known.call_tool(tool, _told(arguments, self._folder), read_timeout_seconds=seconds)
            result = asyncio.run_coroutine_threadsafe(asked, self._loop).result(2 * seconds)
        except MCPError as error:
            if error.code in _TOLD_TO_THE_POLICY:
                return True, hidden(str(error), self._folder)
            raise EnvironmentFault(f"mcp:{self._server.place}: {tool}: {_why(error, self._words)}") from error
        except Exception as error:
            raise EnvironmentFault(f"mcp:{self._server.place}: {tool}: {_why(error, self._words)}") from error
        parts = [_shown(part) for part in result.content]
        if not parts and result.structured_content is not None:
            parts = [json.dumps(result.structured_content, ensure_ascii=False)]
        return bool(result.is_error), hidden("\n".join(parts), self._folder)

    def close(self) -> None:
        """End the connection, and the server where it was started for it."""
        with contextlib.suppress(Exception):  # it may have ended already, and the loop with the interpreter
            self._loop.call_soon_threadsafe(self._end.set)
            self._life.result(_PATIENCE)
        self._words.close()


class Kept:
    """A server with a folder of its own, to which the folder of an episode is moved for the time of a call.

    Servers are kept between calls (`Kept.call`): as many as calls are made at once.

    Args:
        server: The server.

    Raises:
        EnvironmentFault: It does not start.
    """

    _idle: dict[Server, list[Kept]] = {}
    _lock = threading.Lock()

    def __init__(self, server: Server) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="mcp-")
        self._folder = Path(self._home.name) / "folder"
        self._folder.mkdir()
        self._connection = Connection(server, self._folder)

    @classmethod
    def call(cls, server: Server, place: Path, tool: str, arguments: Mapping[str, Any]) -> tuple[bool, str]:
        """Return as `Connection.call`, from a kept server; one that failed is not kept."""
        with cls._lock:
            waiting = cls._idle.setdefault(server, [])
            kept = waiting.pop() if waiting else None
        kept = cls(server) if kept is None else kept
        try:
            answer = kept._call(place, tool, arguments)
        except EnvironmentFault:
            kept.close()
            raise
        with cls._lock:
            waiting.append(kept)
        return answer

    def _call(self, place: Path, tool: str, arguments: Mapping[str, Any]) -> tuple[bool, str]:
        os.rename(place, self._folder)  # an empty folder is replaced
        try:
            return self._connection.call(tool, arguments)
        finally:
            os.rename(self._folder, place)
            self._folder.mkdir()

    def close(self) -> None:
        """End the server."""
        self._connection.close()
        self._home.cleanup()

    @classmethod
    def close_all(cls) -> None:
        """End the servers that are kept."""
        with cls._lock:
            kept = [one for waiting in cls._idle.values() for one in waiting]
            cls._idle.clear()
        for one in kept:
            one.close()


def hidden(text: str, place: Path) -> str:
    """Return a text with the folder's path replaced by its shown name."""
    return text.replace(str(place.resolve()), SHOWN).replace(str(place), SHOWN)


def _shown(part: Any) -> str:
    """Return a part of a result as the policy sees it: texts whole, links by name and URI, other kinds named."""
    inside = getattr(part, "resource", part)
    if getattr(inside, "text", None) is not None:
        return str(inside.text)
    if part.type == "resource_link":
        return f"{part.name}: {part.uri}"
    told = (part.type, str(getattr(inside, "uri", "")), getattr(inside, "mime_type", None) or "")
    return f"[{' '.join(filter(None, told))}]"


def _told(value: Any, place: Path) -> Any:
    """Return arguments with the folder's shown name replaced by its path."""
    if isinstance(value, str):
        return value.replace(SHOWN, str(place))
    if isinstance(value, Mapping):
        return {name: _told(one, place) for name, one in value.items()}
    if isinstance(value, list):
        return [_told(one, place) for one in value]
    return value


def _why(error: BaseException, words: IO[str]) -> str:
    """Return why a server failed: the innermost error, and its last words."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    last: list[str] = []
    with contextlib.suppress(ValueError):  # closed already
        words.seek(0)
        last = [line for line in words.read().splitlines() if line.strip()][-3:]
    told = str(error) or "it took too long, see env.timeout"  # a TimeoutError says nothing
    return f"{type(error).__name__}: {told}" + (f"; it said: {' | '.join(last)}" if last else "")


_starting = threading.Lock()
_loops: list[asyncio.AbstractEventLoop] = []


def _running_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all connections; its thread begins with the first, and ends with the process."""
    with _starting:
        if not _loops:
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="mcp", daemon=True).start()
            _loops.append(loop)
            atexit.register(Kept.close_all)
        return _loops[0]
