"""Requests of a search over several servers: the router of this package against vLLM's and LiteLLM's.

Run `python benchmarks/routers.py`. Simulated searches send histories that extend one another to three servers with a
prefix cache each (without a limit, in blocks of 64 characters). A request takes 20 ms and 0.1 ms for each 10 characters
that are not cached; a server answers four at once. Columns: the share of all characters that were cached, the load of
the busiest server relative to the mean, and seconds. vLLM's router (`vllm-router`) and LiteLLM's (`litellm`) are
installed from PyPI into an environment of their own, or `--rival` names the Python of one that has them.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import venv
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

RIVALS = ("vllm-router==0.1.17", "litellm==1.106.2")
SERVERS, TREES, TOGETHER, ROUNDS, LEAVES = 3, 36, 12, 10, 3
BLOCK = 64
TOOLS = "".join(f"tool {i}: it looks up an entry of the catalog and returns its lines. " for i in range(12))

Send = Callable[[str, list[dict[str, str]]], None]
"""Sends a request: the name of its tree, and the messages."""


class Server(ThreadingHTTPServer):
    """A server with a prefix cache."""

    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: set[int] = set()
        self.cached = self.asked = self.requests = 0
        self.lock, self.slots = threading.Lock(), threading.Semaphore(4)
        self.url = f"http://127.0.0.1:{self.server_port}"

    def prefill(self, text: str) -> int:
        """Return the number of characters that are not cached, and cache them."""
        with self.lock:
            known, growing, still = 0, 0, True
            for at in range(0, len(text), BLOCK):
                growing = hash((growing, text[at : at + BLOCK]))
                still &= growing in self.seen
                known += BLOCK * still
                self.seen.add(growing)
            known = min(known, len(text))
            self.cached, self.asked, self.requests = self.cached + known, self.asked + len(text), self.requests + 1
            return len(text) - known


class Handler(BaseHTTPRequestHandler):
    """Speaks as much of the OpenAI protocol as routers ask for."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        """Answer with the list of models."""
        self._answer({"object": "list", "data": [{"id": "m", "object": "model"}]})

    def do_POST(self) -> None:
        """Answer a completion after the time that its prompt and tokens take."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "messages" in body:
            with self.server.slots:
                new = self.server.prefill("\n".join(message["content"] for message in body["messages"]))
                time.sleep(0.02 + new * 1e-5)
        message = {"role": "assistant", "content": "ok"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        self._answer({"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice],
                      "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}})  # fmt: skip

    def _answer(self, data: Any) -> None:
        text = json.dumps(data).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def traffic(send: Send) -> None:
    """Search `TREES` trees, `TOGETHER` at once, with `LEAVES` requests of a tree at once."""

    def tree(number: int) -> None:
        rng = random.Random(number)
        start = [{"role": "system", "content": TOOLS}, {"role": "user", "content": f"Task {number}: " + "x" * 200}]
        histories = [start]
        with ThreadPoolExecutor(LEAVES) as leaves:
            for turn in range(ROUNDS):
                chosen = [rng.choice(histories[-6:]) for _ in range(LEAVES)]
                list(leaves.map(lambda history: send(f"task-{number}", history), chosen))
                histories += [
                    [*history, {"role": "assistant", "content": f"I call tool {rng.random()} at turn {turn}"},
                     {"role": "user", "content": f"{rng.random()}: " + "an answer of the tool " * 12}]
                    for history in chosen
                ]  # fmt: skip

    with ThreadPoolExecutor(TOGETHER) as pool:
        list(pool.map(tree, range(TREES)))


def post(url: str, messages: list[dict[str, str]], headers: dict[str, str] | None = None) -> None:
    """Send one request."""
    body = json.dumps({"model": "m", "messages": messages}).encode()
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", body, {"Content-Type": "application/json", **(headers or {})}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


def ours(urls: list[str]) -> Send:
    """Return requests by the router of `policy=server`."""
    from offline_agent.policies.server.router import Router

    router, lock = Router(urls, most=32), threading.Lock()

    def send(key: str, messages: list[dict[str, str]]) -> None:
        with lock:
            url = router.choose(key)
            assert url is not None
            router.states[url].in_flight += 1
        post(url, messages)
        with lock:
            router.states[url].in_flight -= 1

    return send


def litellm(urls: list[str], **options: Any) -> Send:
    """Return requests by LiteLLM's router; runs in the environment that has it."""
    from litellm import Router  # type: ignore[import-not-found]

    models = [
        {"model_name": "m", "litellm_params": {"model": "openai/m", "api_base": f"{url}/v1", "api_key": "none"}}
        for url in urls
    ]
    router = Router(model_list=models, **options)
    return lambda key, messages: router.completion(
        "m", messages=messages, metadata={"session_id": key, "user_api_key_hash": key}, user=key
    )


@contextmanager
def vllm_router(python: str, urls: list[str], policy: str) -> Iterator[Send]:
    """Start vLLM's router and return requests by it; the tree's name is given as the session."""
    with tempfile.TemporaryFile() as log:
        port = _free_port()
        command = [str(Path(python).parent / "vllm-router"), "--worker-urls", *urls, "--policy", policy, "--host",
                   "127.0.0.1", "--port", str(port), "--prometheus-port", str(_free_port())]  # fmt: skip
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            for _ in range(300):
                try:
                    post(f"http://127.0.0.1:{port}", [{"role": "user", "content": ""}])
                    break
                except OSError:
                    time.sleep(0.1)
            else:
                log.seek(0)
                raise SystemExit(f"vllm-router did not start:\n{log.read().decode()[-2000:]}")
            yield lambda key, messages: post(
                f"http://127.0.0.1:{port}", messages, {"x-session-id": key, "x-user-id": key}
            )
        finally:
            process.terminate()
            process.wait()


def _free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def servers() -> Iterator[list[Server]]:
    """Start the servers."""
    started = [Server() for _ in range(SERVERS)]
    for server in started:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield started
    finally:
        for server in started:
            server.shutdown()
            server.server_close()


def measure(name: str, run: Callable[[list[str]], None]) -> dict[str, Any]:
    """Run the traffic and return a row of the table."""
    with servers() as all_servers:
        started = time.perf_counter()
        run([server.url for server in all_servers])
        wall = time.perf_counter() - started
        requests = [server.requests for server in all_servers]
        row = {
            "router": name,
            "characters cached": sum(s.cached for s in all_servers) / sum(s.asked for s in all_servers),
            "busiest server / mean": max(requests) * SERVERS / sum(requests),
            "seconds": wall,
            "requests": sum(requests),
        }
    print(row, flush=True)
    return row


LITELLM = {
    "simple-shuffle (default)": {},
    "least-busy": {"routing_strategy": "least-busy"},
    "prompt_caching check": {"optional_pre_call_checks": ["prompt_caching"]},
    "session_affinity check": {"optional_pre_call_checks": ["session_affinity"]},
    "deployment_affinity check": {"optional_pre_call_checks": ["deployment_affinity"]},
}
VLLM = ("round_robin", "cache_aware", "consistent_hash", "sticky_least_loaded")


def main() -> None:
    """Measure and write the table."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rival", help="Python of an environment with vllm-router and litellm")
    arguments.add_argument("--litellm", nargs=2, help=argparse.SUPPRESS)
    arguments.add_argument("--out", type=Path)
    given = arguments.parse_args()
    if given.litellm:
        traffic(litellm(given.litellm[0].split(","), **json.loads(given.litellm[1])))
        return
    from _common import write_result

    with tempfile.TemporaryDirectory() as folder:
        python = given.rival
        if python is None:
            venv.create(folder, with_pip=True)
            python = str(Path(folder) / "bin" / "python")
            subprocess.run([python, "-m", "pip", "install", "--quiet", *RIVALS], check=True)

        def by_litellm(options: dict[str, Any]) -> Callable[[list[str]], None]:
            command = [python, __file__, "--litellm"]

            def run(urls: list[str]) -> None:
                quiet = subprocess.DEVNULL
                subprocess.run([*command, ",".join(urls), json.dumps(options)], check=True, stdout=quiet, stderr=quiet)

            return run

        def by_vllm(policy: str) -> Callable[[list[str]], None]:
            def run(urls: list[str]) -> None:
                with vllm_router(python, urls, policy) as send:
                    traffic(send)

            return run

        rows = [measure("this package's", lambda urls: traffic(ours(urls)))]
        rows += [measure(f"vllm-router, {policy}", by_vllm(policy)) for policy in VLLM]
        rows += [measure(f"LiteLLM, {name}", by_litellm(options)) for name, options in LITELLM.items()]
    facts = {"servers": SERVERS, "trees": TREES, "trees at once": TOGETHER, "requests of a tree at once": LEAVES,
             "rivals": list(RIVALS)}  # fmt: skip
    write_result("routers", rows, facts, given.out)


if __name__ == "__main__":
    sys.exit(main())
