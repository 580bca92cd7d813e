"""A small real HTTP server that speaks the protocol, and misbehaves on request."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Any] | None
"""A status and a body (JSON unless it is bytes); None = answer as a good server does."""


class FakeServer:
    """What the server saw, and how it shall answer.

    Attributes:
        misbehave: From (path, body, how many posts before) to an answer; None = behave.
        seen: (path, body) of every POST.
        most: The most POSTs that were in work at once.
    """

    def __init__(self, complete: Callable[[str, dict], dict], models: tuple[str, ...] = ("tiny",)) -> None:
        self.complete = complete
        self.models = models
        self.misbehave: Callable[[str, dict, int], Answer] = lambda path, body, count: None
        self.seen: list[tuple[str, dict]] = []
        self.headers: list[dict[str, str]] = []
        self.most = self.now = 0
        self.lock = threading.Lock()
        self.url = ""

    def post(self, path: str, body: dict) -> tuple[int, Any]:
        with self.lock:
            count = len(self.seen)
            self.seen.append((path, body))
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            return self.misbehave(path, body, count) or (200, self.complete(path, body))
        finally:
            with self.lock:
                self.now -= 1


@contextmanager
def serving(fake: FakeServer) -> Iterator[FakeServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = fake.misbehave(self.path, {}, -1) or (200, {"data": [{"id": name} for name in fake.models]})
            self.answer(status, body)

        def do_POST(self) -> None:
            fake.headers.append({name.lower(): value for name, value in self.headers.items()})
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.answer(*fake.post(self.path.removeprefix("/v1"), body))

        def answer(self, status: int, body: Any) -> None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def holding(event: threading.Event, word: str) -> Callable[[str, dict, int], Answer]:
    """Return a `misbehave` that keeps POSTs with `word` in them waiting for the event."""

    def wait(path: str, body: dict, count: int) -> Answer:
        if count >= 0 and word in str(body):
            event.wait(30)
        return None

    return wait
