"""The proxy: requests for answers go to the server and are kept; of the other routes two go through as they are.

Web pages, and other machines without the token, can neither spend the key nor tell outcomes.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from offline_agent import strict_json
from offline_agent.capture import anthropic, exchange
from offline_agent.capture.exchange import DIALECTS, MOST, Asked, CallLog
from offline_agent.errors import DataError

SILENCE = 10.0  # seconds that an agent waits for a stream without a sign of life
_SESSION = re.compile(r"[\w.:@+-]{1,200}")
_LOST = re.compile(rb'\{"at":"([\w-]+)')
_KEYS = ("authorization", "api-key", "x-api-key")
_SENT = re.compile(
    r"authorization|(x-)?(api-key|request-id)|user-agent|content-type|idempotency-key|(openai|anthropic)-.*"
)
_RETURNED = re.compile(
    r"content-type|retry-after.*|x-should-retry|(x-)?request-id|x-ratelimit-.*|(openai|anthropic)-.*"
)


class Proxy:
    """Keeps what an agent says to a server, each in a dialect of its own.

    A session is named in the address (`/sessions/NAME/v1`). Its outcome is posted to `/sessions/NAME/outcome`. Headers,
    and so keys, are never kept. Token ids and log-probabilities are asked for until the server refuses the question.

    Args:
        upstream: The server's address, with its version.
        log: Where calls are kept.
        key: The server's key; None = that of the agent is passed on, "" = none is sent.
        timeout: Seconds for an answer.
        say: Called with notes for the user.
        dialect: The server's (`exchange.DIALECTS`).
    """

    def __init__(
        self,
        upstream: str,
        log: CallLog,
        key: str | None = None,
        timeout: float = 600.0,
        say: Callable[[str], None] = print,
        dialect: str = "chat",
    ) -> None:
        self._upstream = upstream.rstrip("/")
        self._log = log
        self._key = key
        self._dialect = dialect
        self._ask = dialect == "chat"
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=min(timeout, 10))
        self._say = say
        self._told: set[str] = set()
        self._client: aiohttp.ClientSession | None = None
        self._beside = ThreadPoolExecutor(1, "capture")  # one: bodies are not in memory as objects side by side

    def application(self, middleware: Any) -> web.Application:
        """Return the server; the middleware checks who calls."""
        app = web.Application(client_max_size=MOST, middlewares=[middleware])
        for start in ("", "/sessions/{session}"):
            for one in DIALECTS.values():
                app.router.add_post(f"{start}/v1/{one.PATH}", self._call)
            app.router.add_post(f"{start}/v1/messages/count_tokens", self._count)
            app.router.add_get(f"{start}/v1/{{path:models}}", self._through)
            app.router.add_post(f"{start}/v1/{{path:embeddings}}", self._through)
        app.router.add_post("/sessions/{session}/outcome", self._outcome)
        app.router.add_get("/health", self._health)
        app.cleanup_ctx.append(self._opened)
        return app

    async def _opened(self, app: web.Application) -> Any:
        connector, jar = aiohttp.TCPConnector(limit=0), aiohttp.DummyCookieJar()
        async with aiohttp.ClientSession(connector=connector, timeout=self._timeout, cookie_jar=jar) as client:
            self._client = client
            yield
        self._beside.shutdown()

    async def _health(self, request: web.Request) -> web.Response:
        facts = {"upstream": self._upstream, "log": str(self._log.path), "calls": self._log.calls}
        return web.json_response({**facts, "outcomes": self._log.outcomes, "tokens": self._ask})

    async def _outcome(self, request: web.Request) -> web.Response:
        session = _session(request)
        assert session is not None  # it is in the route
        told = exchange.outcome(await request.read())
        try:
            await self._run(self._log.outcome, session, told)
        except OSError as error:
            return fault(request, 507, f"the outcome could not be written: {error}")
        return web.json_response({"session_id": session, "kept": True})

    async def _call(self, request: web.Request) -> web.StreamResponse:
        """Return the server's answer, which is kept if it is one; a stream that waits for it has signs of life."""
        session, client = _session(request), _dialect(request)
        asked = await self._run(exchange.asked, await request.read(), client, self._dialect)
        work = asyncio.ensure_future(self._answer(request, session, asked))
        done, _ = await asyncio.wait({work}, timeout=SILENCE if asked.stream else None)
        if done:
            return await work
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        with suppress(ConnectionError):  # the agent is gone; the call is kept
            await stream.prepare(request)
            while not work.done():
                await stream.write(DIALECTS[client].WAITING)
                await asyncio.wait({work}, timeout=SILENCE)
        answer = await work
        assert isinstance(answer.body, bytes)
        with suppress(ConnectionError):
            failed = answer.status != 200
            await stream.write(exchange.failed(answer.body, answer.status, client) if failed else answer.body)
        return stream

    async def _answer(self, request: web.Request, session: str | None, asked: Asked) -> web.Response:
        path = DIALECTS[self._dialect].PATH
        answer = await self._send(request, path, asked.with_tokens if self._ask else asked.body)
        if answer.status in (400, 422) and self._ask:
            answer = await self._send(request, path, asked.body)
            if answer.status == 200:
                self._ask = False
                self._say(f"{self._upstream} takes no question for token ids: calls are kept as messages alone")
        return answer if answer.status != 200 else await self._run(self._kept, request, session, asked, answer.body)

    def _kept(self, request: web.Request, session: str | None, asked: Asked, said: bytes) -> web.Response:
        try:
            whole, body, lost = exchange.answered(said, asked, self._dialect)
            self._log.call(session, asked, whole, lost)
            self._tell(asked.client, {name.decode() for name in _LOST.findall(lost)})
        except DataError as error:
            return fault(request, 502, f"the server's answer is not what {DIALECTS[self._dialect].PATH} gives: {error}")
        except OSError as error:  # an agent that goes on without a log would be lost work
            return fault(request, 507, f"the call could not be written to {self._log.path}: {error}")
        return web.Response(body=body, content_type="text/event-stream" if asked.stream else "application/json")

    def _tell(self, client: str, lost: set[str]) -> None:
        """Say once what is not translated."""
        if new := sorted(lost - self._told):
            self._told |= lost
            self._say(f"{client}: not translated, see `untranslated` in the log: {', '.join(new)}")

    async def _count(self, request: web.Request) -> web.Response:
        """Return how many tokens a request to Anthropic has, as the server counts where it is one of its dialect."""
        body = await request.read()
        if self._dialect == "anthropic":
            return await self._send(request, "messages/count_tokens", body)
        return web.json_response({"input_tokens": await self._run(exchange.estimate, body)})

    async def _through(self, request: web.Request) -> web.Response:
        body = await request.read() if request.method == "POST" else None
        return await self._send(request, request.match_info["path"], body)

    async def _send(self, request: web.Request, path: str, body: bytes | None) -> web.Response:
        assert self._client is not None
        url, headers = f"{self._upstream}/{path}", self._headers(request)
        try:
            async with self._client.request(
                request.method, url, data=body, headers=headers, allow_redirects=False
            ) as answer:
                if 300 <= answer.status < 400:
                    to = answer.headers.get("Location")
                    return fault(request, 502, f"{url} redirects to {to!r:.200}; name that as upstream")
                kept = {k.lower(): v for k, v in answer.headers.items() if _RETURNED.fullmatch(k.lower())}
                said = await answer.read()
                if answer.status >= 400 and _dialect(request) != self._dialect:
                    said = strict_json.dumps(exchange.refused(said, answer.status, _dialect(request)))
                    kept["content-type"] = "application/json"
                return web.Response(status=answer.status, body=said, headers=kept)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:  # ValueError: a header that cannot be sent
            return fault(request, 502, f"no answer from {self._upstream}: {error or type(error).__name__}")

    def _headers(self, request: web.Request) -> dict[str, str]:
        headers = {k.lower(): v for k, v in request.headers.items() if _SENT.fullmatch(k.lower())}
        server, key = DIALECTS[self._dialect], self._key
        if key is None and server.KEY not in headers and _dialect(request) != self._dialect:
            key = bearer(request)  # sent as another vendor's clients do
        if key is not None:
            headers = {k: v for k, v in headers.items() if k not in _KEYS}
        if key:
            headers[server.KEY] = key if server is anthropic else f"Bearer {key}"
        return anthropic.VERSION | headers if server is anthropic else headers

    async def _run(self, job: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._beside, job, *args)


def _dialect(request: web.Request) -> str:
    """Return the dialect that a request's address is of."""
    path = request.path.removesuffix("/count_tokens")
    return next((name for name, one in DIALECTS.items() if path.endswith(f"/v1/{one.PATH}")), "chat")


def _session(request: web.Request) -> str | None:
    """Return the session in a request's address; raises DataError where its name is not allowed."""
    session = request.match_info.get("session")
    if session is not None and not _SESSION.fullmatch(session):
        raise DataError(f"session: got {session!r:.80}, allowed: up to 200 letters, digits and . : @ + - _")
    return session


_ALLOWED = (
    "POST /v1/chat/completions, /v1/messages, /v1/messages/count_tokens, /v1/responses and /v1/embeddings, GET "
    "/v1/models, each also after /sessions/NAME, POST /sessions/NAME/outcome, and GET /health"
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def local(host: str | None) -> bool:
    """Return whether an address is of this machine alone."""
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False


def guard(token: str | None) -> Any:
    """Return the middleware that checks every request, and answers faults as the API does.

    Args:
        token: The key that callers must send; None = every program of this machine may call.
    """

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            refused = _refusal(request, token)
            return await handler(request) if refused is None else fault(request, *refused)
        except DataError as error:
            return fault(request, 400, str(error))
        except web.HTTPRequestEntityTooLarge:
            return fault(request, 413, f"the body is too long, allowed: {MOST:,} bytes")
        except web.HTTPException as error:
            return fault(request, error.status, f"got {request.method} {request.path!r:.100}, allowed: {_ALLOWED}")

    return guarded


def fault(request: web.Request, status: int, text: str) -> web.Response:
    """Return an error of capture in the dialect of a request."""
    told = DIALECTS[_dialect(request)].error(status, f"capture: {text}")
    return web.Response(status=status, body=strict_json.dumps(told), content_type="application/json")


def _refusal(request: web.Request, token: str | None) -> tuple[int, str] | None:
    """Return status and reason where a request may not be answered."""
    if token is not None and not hmac.compare_digest(bearer(request).encode(errors="replace"), token.encode()):
        return 401, "got another key, wanted the token that capture was started with (api_key=TOKEN)"
    if token is None and not local(_host(request)):  # a page's name that now leads here (DNS rebinding)
        return 403, f"Host: got {request.host!r:.100}, allowed without token=VARIABLE: 127.0.0.1, localhost"
    if "Origin" in request.headers or request.headers.get("Sec-Fetch-Site", "none") != "none":
        return 403, "the request is of a web page, which may not call this server"
    if request.method == "POST" and request.content_type != "application/json":
        return 415, f"Content-Type: got {request.content_type!r:.100}, allowed: application/json (curl --json does it)"
    return None


def bearer(request: web.Request) -> str:
    """Return the key that a request sends."""
    sent = (request.headers.get(name, "") for name in ("Authorization", "x-api-key"))
    return next(filter(None, sent), "").removeprefix("Bearer ").strip()


def _host(request: web.Request) -> str | None:
    try:
        return URL(f"http://{request.host}").host
    except ValueError:
        return None
