"""The embedded shop as a site: a local server of search, result, product and receipt pages, one session a visitor."""

from __future__ import annotations

import http.cookies
import http.server
import os
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from offline_agent.envs.shop.catalogue import RESULTS_PER_PAGE, Product, catalogue
from offline_agent.envs.shop.goals import Goal

HOST = "shop.test"
"""The site's name; the browser alone knows the port that it stands for."""
ORIGIN = f"http://{HOST}"
_COOKIE = "visit"
_LONGEST = 10_000  # bytes of a form


@dataclass
class Visit:
    """One visitor's session.

    Attributes:
        goal: The request.
        seen: Numbers of the products whose pages were opened, in order.
        bought: The product that was bought.
        chosen: Option name → the value it was bought with.
    """

    goal: Goal
    seen: list[int] = field(default_factory=list)
    bought: Product | None = None
    chosen: dict[str, str] = field(default_factory=dict)


class Site:
    """The server of a process, and its sessions. It listens on this machine alone."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._visits: dict[str, Visit] = {}
        site = self

        class Handler(_Handler):
            visits = site._visits

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="shop", daemon=True).start()

    @property
    def address(self) -> str:
        """Its host and port."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    def visit(self, goal: Goal) -> tuple[str, Visit]:
        """Begin a session; return its key, which the visitor's cookie holds, and the session."""
        key, visit = secrets.token_hex(16), Visit(goal)
        self._visits[key] = visit
        return key, visit

    def leave(self, key: str) -> None:
        """End a session."""
        self._visits.pop(key, None)


def cookie(key: str) -> dict[str, str]:
    """Return the cookie of a session in Playwright's form."""
    return {"name": _COOKIE, "value": key, "domain": HOST, "path": "/"}


_site: Site | None = None
_starting = threading.Lock()


def site() -> Site:
    """Return this process's site; it is started where none runs."""
    global _site
    with _starting:
        if _site is None or _site.process != os.getpid():
            _site = Site()
        return _site


def product_address(number: int, query: str, page: int) -> str:
    """Return the address of a product's page as a result page links to it."""
    return f"/product/{number}?{urlencode({'q': query, 'page': page})}"


def results_address(query: str, page: int) -> str:
    """Return the address of a page of results; the first is 1."""
    return f"/search?{urlencode({'q': query, 'page': page})}"


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request; every page is a function of its address and the session."""

    visits: Mapping[str, Visit] = {}
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer with a page."""
        visit = self._visit()
        parts = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if visit is None:
            self._send(403, "<p>Your visit is over.</p>")
        elif parts.path == "/":
            self._send(200, _form(""))
        elif parts.path == "/search":
            self._send(200, _results(visit, asked.get("q", ""), _whole(asked.get("page"), 1)))
        elif (item := _product(parts.path)) is not None:
            visit.seen.append(item.number)
            self._send(200, _product_page(item, asked.get("q", ""), _whole(asked.get("page"), 1)))
        else:
            self._send(404, "<p>There is no such page.</p>")

    def do_POST(self) -> None:
        """Buy."""
        visit = self._visit()
        length = min(_whole(self.headers.get("Content-Length"), 0), _LONGEST)
        body = self.rfile.read(length).decode("utf-8", "replace")
        form = {name: values[0] for name, values in parse_qs(body).items()}
        item = _product(f"/product/{form.pop('product', '')}")
        if visit is None or item is None or urlsplit(self.path).path != "/buy":
            self._send(404, "<p>There is no such page.</p>")
            return
        if visit.bought is None:
            visit.bought = item
            visit.chosen = {name: form[name] for name in item.options if form.get(name) in item.options[name]}
        self._send(200, f"<p>Thank you. You bought: {escape(item.title)}</p>")

    def log_message(self, *_: Any) -> None:
        """Keep silent."""

    def _visit(self) -> Visit | None:
        if self.headers.get("Host", "").split(":")[0] != HOST:
            return None  # a page of another site that was led here
        found = http.cookies.SimpleCookie(self.headers.get("Cookie", "")).get(_COOKIE)
        return None if found is None else self.visits.get(found.value)

    def _send(self, status: int, body: str) -> None:
        head = '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Shop</title></head>'
        data = f"{head}<body>{body}</body></html>".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Security-Policy", "default-src 'none'; form-action 'self'; frame-ancestors 'none'")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(data)


def _whole(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 7 else otherwise


def _product(path: str) -> Product | None:
    number = _whole(path.removeprefix("/product/"), -1) if path.startswith("/product/") else -1
    products = catalogue().products
    return products[number] if 0 <= number < len(products) else None


def _form(query: str) -> str:
    return (
        '<form action="/search"><input name="q" aria-label="Search" autocomplete="off" value="'
        f'{escape(query, quote=True)}"><button>Search</button></form>'
    )


def _results(visit: Visit, query: str, page: int) -> str:
    hits = catalogue().search(query)
    pages = -(-len(hits) // RESULTS_PER_PAGE)
    if not hits:
        return _form(query) + "<p>no results</p>"
    page = min(max(page, 1), pages)
    rows = []
    for number in hits[(page - 1) * RESULTS_PER_PAGE : page * RESULTS_PER_PAGE]:
        item = catalogue().products[number]
        seen = " seen" if number in visit.seen else ""
        link = escape(product_address(number, query, page), quote=True)
        rows.append(f'<li><a href="{link}">{escape(item.title)} ${item.price}{seen}</a></li>')
    turns = [("Previous page", page - 1)] if page > 1 else []
    turns += [("Next page", page + 1)] if page < pages else []
    links = [f'<p><a href="{escape(results_address(query, at), quote=True)}">{told}</a></p>' for told, at in turns]
    return f"{_form(query)}<p>page {page}/{pages}</p><ol>{''.join(rows)}</ol>{''.join(links)}"


def _product_page(item: Product, query: str, page: int) -> str:
    lists = []
    for name, values in item.options.items():
        options = "".join(f"<option>{escape(value)}</option>" for value in ("", *values))
        lists.append(f'<p><select name="{escape(name)}" aria-label="{escape(name)}">{options}</select></p>')
    back = f'<p><a href="{escape(results_address(query, page), quote=True)}">Back to results</a></p>' if query else ""
    return (
        f"{back}<h1>{escape(item.title)} ${item.price}</h1><p>is: {', '.join(map(escape, item.attributes))}</p>"
        f'<form method="post" action="/buy"><input type="hidden" name="product" value="{item.number}">'
        f"{''.join(lists)}<button>Buy</button></form>"
    )
