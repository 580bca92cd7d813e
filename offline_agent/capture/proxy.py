"""The proxy: chat completions go to the server and are kept; everything else goes through as it is."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from offline_agent.capture.call_log import CallLog
from offline_agent.capture.streaming import WAITING, event, events
from offline_agent.errors import DataError
from offline_agent.logs.episode import Fields

CHAT = "chat/completions"
_SESSION = re.compile(r"[\w.:@+-]{1,200}")
_KEY = "session:"
_HOP = {"connection", "content-encoding", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding",
        "upgrade"}  # fmt: skip
_MOST = 256 << 20  # bytes of a request
_PATIENCE = 15.0  # seconds after which a client that waits for a stream is told that it is alive


class Proxy:
    """Keeps what an agent says to a server of OpenAI's chat API.

    A session is named in the address (`/sessions/NAME/v1`) or as the key (`session:NAME`). Its outcome is posted to
    `/sessions/NAME/outcome`, or with that key to `/outcome`. Headers, and so keys, are never kept.

    Args:
        upstream: The server's address, with its version.
        log: Where calls are kept.
        key: The server's key; None = that of the agent is passed on.
        tokens: Whether token ids and log-probabilities are asked for: `auto` until the server refuses the question.
        timeout: Seconds for an answer.
        say: Called with notes for the user.
    """

    def __init__(
        self,
        upstream: str,
        log: CallLog,
        key: str | None = None,
        tokens: str = "auto",
        timeout: float = 600.0,
        say: Callable[[str], None] = print,
    ) -> None:
        self._upstream = upstream.rstrip("/")
        self._log = log
        self._key = key
        self._ask = tokens != "off"
        self._sure = tokens == "on"
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=min(timeout, 10))
        self._say = say
        self._client: aiohttp.ClientSession | None = None

    def application(self) -> web.Application:
        """Return the server."""
        app = web.Application(client_max_size=_MOST)
        for start in ("", "/sessions/{session}"):
            app.router.add_post(f"{start}/v1/{CHAT}", self._chat)
            app.router.add_post(f"{start}/outcome", self._outcome)
            app.router.add_route("*", f"{start}/v1/{{rest:.*}}", self._through)
        app.router.add_get("/health", self._health)
        app.cleanup_ctx.append(self._opened)
        return app

    async def _opened(self, app: web.Application) -> Any:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=self._timeout, auto_decompress=True) as client:
            self._client = client
            yield

    async def _health(self, request: web.Request) -> web.Response:
        facts = {"upstream": self._upstream, "log": str(self._log.path), "calls": self._log.calls}
        return web.json_response({**facts, "outcomes": self._log.outcomes, "tokens": self._ask})

    async def _outcome(self, request: web.Request) -> web.Response:
        try:
            session = _session(request)
            if session is None:
                raise DataError("which session? POST it to /sessions/NAME/outcome, or with the key session:NAME")
            told = _object(await request.read())
            fields = Fields().read({**told, "session_id": session})
            if fields["score"] is None:
                raise DataError(
                    f"got {', '.join(told) or 'nothing'}; wanted success (true or false) or reward (0 to 1), and "
                    "perhaps task_id"
                )
        except DataError as error:
            return _fault(400, str(error))
        try:
            self._log.outcome(session, told)
        except OSError as error:
            return _fault(507, f"the outcome could not be written: {error}")
        return web.json_response({"session_id": session, "kept": True})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        try:
            session, body = _session(request), _object(raw)
        except DataError as error:
            return _fault(400, str(error))
        stream = bool(body.get("stream"))
        asked = asyncio.ensure_future(self._answer(request, session, body))
        if not stream:
            status, answer, headers = await asked
            return web.Response(status=status, body=answer, headers=headers)
        done, _ = await asyncio.wait([asked], timeout=_PATIENCE)
        if done and asked.result()[0] != 200:
            status, answer, headers = asked.result()
            return web.Response(status=status, body=answer, headers=headers)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        # a client that went away does not take the answer from the log
        with contextlib.suppress(ConnectionError):
            await response.prepare(request)
            while not done:
                await response.write(WAITING)
                done, _ = await asyncio.wait([asked], timeout=_PATIENCE)
            status, answer, _ = asked.result()
            if status != 200:
                await response.write(event(_told(answer)))
            else:
                usage = (body.get("stream_options") or {}).get("include_usage", False)
                for part in events(orjson.loads(answer), usage):
                    await response.write(part)
            await response.write_eof()
        await asked
        return response

    async def _answer(
        self, request: web.Request, session: str | None, body: dict[str, Any]
    ) -> tuple[int, bytes, dict[str, str]]:
        """Return status, body and headers of the server's answer, which is kept if it is one."""
        whole = {key: value for key, value in body.items() if key not in ("stream", "stream_options")}
        more = {"return_token_ids": True, "logprobs": True} if self._ask else {}
        status, answer, headers = await self._post(request, {**whole, **more})
        if status in (400, 422) and more and not self._sure:
            status, answer, headers = await self._post(request, whole)
            if status == 200 and self._ask:
                self._ask = False
                self._say(f"{self._upstream} takes no question for token ids: calls are kept as messages alone")
        if status != 200:
            return status, answer, headers
        try:
            said = orjson.loads(answer)
            if not isinstance(said, dict) or not isinstance(said.get("choices"), list):
                raise ValueError("it has no choices")
        except ValueError as error:
            return 502, _error(f"the server's answer is no chat completion: {error}"), dict(_JSON)
        try:
            self._log.call(session, whole, said)
        except OSError as error:  # an agent that goes on without a log would be lost work
            return 507, _error(f"the call could not be written to {self._log.path}: {error}"), dict(_JSON)
        return 200, orjson.dumps(_as_asked(said, body)), dict(_JSON)

    async def _post(self, request: web.Request, body: Mapping[str, Any]) -> tuple[int, bytes, dict[str, str]]:
        assert self._client is not None
        try:
            url = f"{self._upstream}/{CHAT}"
            async with self._client.post(url, data=orjson.dumps(body), headers=self._headers(request)) as response:
                kept = {k: v for k, v in response.headers.items() if k.lower() not in _HOP}
                return response.status, await response.read(), kept
        except (aiohttp.ClientError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            return 502, _error(f"no answer from {self._upstream}: {why}"), dict(_JSON)

    async def _through(self, request: web.Request) -> web.StreamResponse:
        assert self._client is not None
        url = f"{self._upstream}/{request.match_info['rest']}"
        try:
            async with self._client.request(
                request.method, url, params=request.query, data=await request.read(), headers=self._headers(request)
            ) as answer:
                kept = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP}
                response = web.StreamResponse(status=answer.status, headers=kept)
                await response.prepare(request)
                async for part in answer.content.iter_any():
                    await response.write(part)
                await response.write_eof()
                return response
        except (aiohttp.ClientError, TimeoutError) as error:
            return _fault(502, f"no answer from {self._upstream}: {error or type(error).__name__}")

    def _headers(self, request: web.Request) -> dict[str, str]:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in (*_HOP, "accept-encoding")}
        if self._key is not None:
            headers = {k: v for k, v in headers.items() if k.lower() != "authorization"}
            headers["Authorization"] = f"Bearer {self._key}"
        elif _of_key(request) is not None:  # the name of a session is no key
            headers = {k: v for k, v in headers.items() if k.lower() != "authorization"}
        return headers


_JSON = {"Content-Type": "application/json"}


def _session(request: web.Request) -> str | None:
    """Return the session of a request; raises DataError where its name has characters that are not allowed."""
    session = request.match_info.get("session") or _of_key(request)
    if session is not None and not _SESSION.fullmatch(session):
        raise DataError(f"session: got {session!r:.80}, allowed: up to 200 letters, digits and . : @ + - _")
    return session


def _of_key(request: web.Request) -> str | None:
    given = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
    return given.removeprefix(_KEY) if given.startswith(_KEY) else None


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(raw)
    except ValueError as error:
        raise DataError(f"the body is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"the body is a JSON {type(value).__name__}, not an object")
    return value


def _as_asked(answer: dict[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer without what was asked for the log alone."""
    own = dict(answer)
    if not body.get("return_token_ids"):
        own = {key: value for key, value in own.items() if key != "prompt_token_ids"}
        own["choices"] = [{k: v for k, v in choice.items() if k != "token_ids"} for choice in own["choices"]]
    if not body.get("logprobs"):
        own["choices"] = [{**choice, "logprobs": None} for choice in own["choices"]]
    return own


def _told(answer: bytes) -> dict[str, Any]:
    """Return the error that a body tells."""
    try:
        said = orjson.loads(answer)
    except ValueError:
        said = None
    return said if isinstance(said, dict) else {"error": {"message": answer.decode(errors="replace")[:2000]}}


def _error(text: str) -> bytes:
    return orjson.dumps({"error": {"message": f"capture: {text}", "type": "capture_error", "code": None}})


def _fault(status: int, text: str) -> web.Response:
    return web.Response(status=status, body=_error(text), content_type="application/json")
