"""Time that `capture` adds to a call: the same requests to a server directly, and through the proxy.

Run `python benchmarks/capture.py`. The server answers at once, with token ids and log-probabilities as vLLM does, so
the way alone is measured. Calls alternate between both ways.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from _common import RESULTS, write_result
from aiohttp import web

TURN = 100  # tokens of an answer


def answer(prompt: int) -> bytes:
    """Return an answer to a prompt of so many tokens."""
    content = [{"token": "word", "logprob": -0.25, "bytes": None, "top_logprobs": []}] * TURN
    choice = {"index": 0, "message": {"role": "assistant", "content": "word " * TURN}, "finish_reason": "stop",
              "token_ids": list(range(TURN)), "logprobs": {"content": content}}  # fmt: skip
    return json.dumps({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice],
                       "prompt_token_ids": list(range(prompt))}).encode()  # fmt: skip


async def serve(prompts: list[int]) -> tuple[web.AppRunner, int]:
    """Start the server; return it and its port."""
    known = {prompt: answer(prompt) for prompt in prompts}

    async def chat(request: web.Request) -> web.Response:
        body = await request.json()
        return web.Response(body=known[body["seed"]], content_type="application/json")

    app = web.Application(client_max_size=1 << 28)
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, runner.addresses[0][1]


async def timed(client: aiohttp.ClientSession, url: str, body: bytes) -> float:
    """Return the milliseconds of a call."""
    start = time.perf_counter()
    async with client.post(url, data=body, headers={"Content-Type": "application/json"}) as response:
        await response.read()
        assert response.status == 200
    return 1000 * (time.perf_counter() - start)


async def measure(prompt: int, at_once: int, calls: int, direct: str, through: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the milliseconds of each call, directly and through the proxy."""
    messages = [{"role": "user", "content": "word " * prompt}]
    body = json.dumps({"model": "m", "messages": messages, "seed": prompt}).encode()
    out: tuple[list[float], list[float]] = ([], [])
    async with aiohttp.ClientSession() as client:
        for _ in range(calls // at_once):
            for url, times in zip((direct, through), out, strict=True):
                times += await asyncio.gather(*(timed(client, url, body) for _ in range(at_once)))
    return np.array(out[0]), np.array(out[1])


async def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=400, help="calls of each way")
    calls = parser.parse_args().calls
    prompts = [500, 4000, 16000]
    server, port = await serve(prompts)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        direct = f"http://127.0.0.1:{port}/v1"
        command = [sys.executable, "-m", "offline_agent.pipelines.capture", f"upstream={direct}", "port=0",
                   f"log={folder}/log"]  # fmt: skip
        proxy = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
        assert proxy.stderr is not None
        base = (await asyncio.to_thread(proxy.stderr.readline)).split()[1].replace("NAME", "s")
        try:
            for prompt in prompts:
                for at_once in (1, 16):
                    one, two = await measure(prompt, at_once, calls, f"{direct}/chat/completions",
                                             f"{base}/chat/completions")  # fmt: skip
                    rows.append({
                        "prompt, tokens": f"{prompt:,}", "calls at once": at_once,
                        "direct, ms": f"{np.median(one):.2f}", "through capture, ms": f"{np.median(two):.2f}",
                        "added, ms": f"{(np.median(two) - np.median(one)) / at_once:.2f}",
                        "99 %": f"{(np.quantile(two, 0.99) - np.quantile(one, 0.99)) / at_once:.2f}",
                    })  # fmt: skip
            size = sum(file.stat().st_size for file in Path(f"{folder}/log").iterdir())
        finally:
            proxy.terminate()
            proxy.wait()
            await server.cleanup()
    facts = {"calls a row": calls, "turn": f"{TURN} tokens", "log, MB": round(size / 1e6),
             "added": "median of a call, divided by the calls at once"}  # fmt: skip
    write_result("capture", rows, facts, RESULTS / "capture.json")


if __name__ == "__main__":
    asyncio.run(main())
