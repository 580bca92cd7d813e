"""Access to the proxy: web pages, and other machines without the token, can neither spend the key nor tell outcomes."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import Any

from aiohttp import web
from yarl import URL

from offline_agent.capture.exchange import MOST, error_body
from offline_agent.errors import DataError

_ALLOWED = (
    "POST /v1/chat/completions, POST /v1/embeddings, GET /v1/models and POST /outcome, each also after /sessions/NAME, "
    "and GET /health"
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
            return await handler(request) if refused is None else fault(*refused)
        except DataError as error:
            return fault(400, str(error))
        except web.HTTPRequestEntityTooLarge:
            return fault(413, f"the body is too long, allowed: {MOST:,} bytes")
        except web.HTTPException as error:
            return fault(error.status, f"got {request.method} {request.path!r:.100}, allowed: {_ALLOWED}")

    return guarded


def fault(status: int, text: str) -> web.Response:
    """Return an error in the API's form."""
    return web.Response(status=status, body=error_body(text), content_type="application/json")


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
    return request.headers.get("Authorization", "").removeprefix("Bearer ").strip()


def _host(request: web.Request) -> str | None:
    try:
        return URL(f"http://{request.host}").host
    except ValueError:
        return None
