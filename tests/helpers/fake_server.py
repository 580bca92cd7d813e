"""A small real HTTP server that speaks the protocol, and misbehaves on request."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from offline_agent.records import Action, ToolCall
from offline_agent.rendering.parsing import call_text

TEXTS = (b"Success: added.", b"Success: removed.")  # of vLLM's routes for adapters: no JSON
Answer = tuple[int, Any] | None
"""A status and a body (JSON unless it is bytes); None = answer as a good server does."""


class FakeServer:
    """Requests that the server got, and how it answers.

    Attributes:
        misbehave: From (path, body, how many posts before) to an answer; None = behave.
        seen: (path, body) of every POST.
        extra: Headers of every answer.
        most: The most POSTs that were in work at once.
        running: What kills it and starts it again, where it is served.
    """

    running: Running

    def __init__(self, complete: Callable[[str, dict], dict], models: tuple[str, ...] = ("tiny",)) -> None:
        self.complete = complete
        self.models = models
        self.misbehave: Callable[[str, dict, int], Answer] = lambda path, body, count: None
        self.seen: list[tuple[str, dict]] = []
        self.headers: list[dict[str, str]] = []
        self.extra: dict[str, str] = {}
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


class Running:
    """A served fake, which can be killed, requests in work included, and started again at the same address."""

    def __init__(self, fake: FakeServer) -> None:
        self.fake = fake
        self.port = 0
        self._server: ThreadingHTTPServer | None = None
        self._connections: set[socket.socket] = set()

    def start(self) -> None:
        fake, life = self.fake, threading.Event()
        connections = self._connections = set()

        class Handler(BaseHTTPRequestHandler):
            def setup(self) -> None:
                super().setup()
                connections.add(self.connection)

            def finish(self) -> None:
                connections.discard(self.connection)
                super().finish()

            def do_GET(self) -> None:
                models = {"data": [{"id": name} for name in fake.models]}
                self.answer(*(fake.misbehave(self.path, {}, -1) or (200, models)))

            def do_POST(self) -> None:
                fake.headers.append({name.lower(): value for name, value in self.headers.items()})
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.answer(*fake.post(self.path.removeprefix("/v1"), body))

            def answer(self, status: int, body: Any) -> None:
                if life.is_set():
                    raise ConnectionResetError("killed")
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Content-Type", "text/plain" if body in TEXTS else "application/json")
                for name, value in fake.extra.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                """Keep quiet."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *args: Any) -> None:
                """Keep quiet: connections are broken on purpose."""

        self._server, self._life = Server(("127.0.0.1", self.port), Handler), life
        self.port = self._server.server_address[1]
        fake.url = f"http://127.0.0.1:{self.port}/v1"
        poll = {"poll_interval": 0.02}
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs=poll, daemon=True)
        self._thread.start()

    def kill(self) -> None:
        """Break every connection, and take no more; a second time it does nothing."""
        server, self._server = self._server, None
        if server is not None:
            self._life.set()
            server.shutdown()
            server.server_close()
            for connection in list(self._connections):
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._thread.join()


@contextmanager
def serving(fake: FakeServer) -> Iterator[FakeServer]:
    fake.running = running = Running(fake)
    running.start()
    try:
        yield fake
    finally:
        running.kill()


@contextmanager
def serving_all(*fakes: FakeServer) -> Iterator[list[FakeServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(serving(fake)) for fake in fakes]


def looks(rng: random.Random) -> tuple[str, ToolCall]:
    return f"I look {rng.randrange(10**6)}.", ToolCall("search", {"query": f"shoes {rng.randrange(100)}"})


def seeded_model(
    renderer: Any, bias: float = 0.0, turns: Callable[[random.Random], tuple[str, ToolCall]] = looks
) -> Callable[[str, dict], dict]:
    """Return what answers as a model would: turns that depend on prompt and seed alone, log-probs on position and id.

    Args:
        renderer: The model's.
        bias: Taken off every log-prob: another model.
        turns: Draws a turn.
    """

    def logp(position: int, token: int) -> float:
        return -((position * 7 + token * 3) % 11) / 10 - bias

    def turn(body: dict) -> tuple[str, ToolCall]:
        seed = 0 if body["temperature"] == 0 else body["seed"]
        return turns(random.Random(json.dumps([body.get("prompt"), body.get("messages"), seed])))

    def complete(path: str, body: dict) -> dict:
        if body.get("prompt_logprobs") is not None:
            entries = [{str(t): {"logprob": logp(i, t)}} for i, t in enumerate(body["prompt"])]
            return {"choices": [{"token_ids": [0], "prompt_logprobs": [None, *entries[1:]]}]}
        thought, call = turn(body)
        if path == "/chat/completions":
            function = {"name": call.name, "arguments": json.dumps(dict(call.arguments))}
            message = {"content": thought, "tool_calls": [{"id": "a", "type": "function", "function": function}]}
            usage = {"prompt_tokens": 50, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 40}}
            return {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": usage}
        prompt = body["prompt"]
        ids = list(renderer.encode_action(Action(call_text(thought, call), thought, call)))
        reason = "stop" if len(ids) <= body["max_tokens"] else "length"
        ids = ids[: body["max_tokens"]]
        logps = [logp(len(prompt) + index, token) for index, token in enumerate(ids)]
        text = renderer.decode(ids[:-1] if reason == "stop" else ids)
        choice = {"text": text, "token_ids": ids, "logprobs": {"token_logprobs": logps}, "finish_reason": reason}
        return {"choices": [choice], "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}}

    return complete


def holding(event: threading.Event, word: str) -> Callable[[str, dict, int], Answer]:
    """Return a `misbehave` that keeps POSTs with `word` in them waiting for the event."""

    def wait(path: str, body: dict, count: int) -> Answer:
        if count >= 0 and word in str(body):
            event.wait(30)
        return None

    return wait
