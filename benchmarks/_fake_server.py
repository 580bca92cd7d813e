"""A model server without a model: it answers chat completions for the shop, by the messages and the seed alone.

Run `python benchmarks/_fake_server.py PORT SECONDS`; every answer takes that long.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def turn(body: dict[str, Any]) -> dict[str, Any]:
    """Return a message of somebody who gets something bought now and then."""
    asked = json.dumps([body["messages"], body.get("seed")], sort_keys=True)
    rng = random.Random(hashlib.blake2b(asked.encode(), digest_size=8).digest())
    name = rng.choice(["search", "search", "open", "open", "choose", "buy"])
    arguments: dict[str, dict[str, Any]] = {
        "search": {"query": rng.choice(["quiet toaster", "white lamp", "small kettle"])},
        "open": {"rank": rng.randint(1, 4)},
        "choose": {"value": rng.choice(["white", "rustic", "large"])},
    }
    function = {"name": name, "arguments": json.dumps(arguments.get(name, {}))}
    call = {"id": "call_0", "type": "function", "function": function}
    return {"role": "assistant", "content": rng.choice(["", "So.", "I go on."]), "tool_calls": [call]}


class Handler(BaseHTTPRequestHandler):
    """Speaks as much of the protocol as is asked."""

    protocol_version = "HTTP/1.1"
    seconds = 0.0

    def do_GET(self) -> None:
        self._answer({"data": [{"id": "fake"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(self.seconds)
        message = turn(body)
        size = sum(len(str(one.get("content"))) for one in body["messages"]) // 4
        usage = {"prompt_tokens": size, "completion_tokens": 12}
        self._answer({"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": usage})

    def _answer(self, data: Any) -> None:
        text = json.dumps(data).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: Any) -> None:
        """Keep quiet."""


def main() -> None:
    """Serve until killed."""
    Handler.seconds = float(sys.argv[2])
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
