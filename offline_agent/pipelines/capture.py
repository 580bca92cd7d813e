"""Capture of an agent's model calls: `python -m offline_agent.pipelines.capture upstream=URL`.

Starts a local server of OpenAI's chat completions and Responses and of Anthropic's Messages that passes every call on
and keeps it, with token ids and log-probabilities where the server has them (vLLM), as a log that `import_logs` reads.
The agent needs another base URL and nothing else:

  base_url=http://127.0.0.1:8100/sessions/NAME/v1             clients of OpenAI, Codex (model_providers)
  ANTHROPIC_BASE_URL=http://127.0.0.1:8100/sessions/NAME      clients of Anthropic, Claude Code

The server speaks chat completions, or what dialect= names; calls in another dialect are translated (docs/logs.md).

When the episode is over, tell how it ended:

  curl --json '{"success": true, "task_id": "TASK"}' http://127.0.0.1:8100/sessions/NAME/outcome

Headers are never kept, so no key is. It answers programs of this machine alone; with host=ADDRESS and
token=VARIABLE those of others that send that key. Ctrl-C ends it; what was kept stays.

Exit status: 0 ended, 1 it could not listen or write, 2 the request was wrong.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from offline_agent.capture.exchange import CallLog
from offline_agent.config.documentation import key_table
from offline_agent.config.loading import keys, load
from offline_agent.errors import ConfigError, DataError
from offline_agent.outgoing import masked
from offline_agent.runner.arguments import tool
from offline_agent.runner.next_steps import command
from offline_agent.runner.terminal import say
from offline_agent.sections import Section, key


class CaptureConfig(Section):
    """Keys of `capture`."""

    upstream: str = key("", "the server's address with its version, such as http://localhost:8000/v1")
    dialect: Literal["chat", "anthropic", "responses"] = key(
        "chat", "what the server speaks: OpenAI's chat completions, Anthropic's Messages, or OpenAI's Responses"
    )
    log: str = key("captured", "the folder of the log; it is made, and files of earlier captures stay")
    host: str = key("127.0.0.1", "the address that is listened on; one that other machines reach needs token")
    port: int = key(8100, "its port; 0 = any that is free", ge=0, le=65535)
    upstream_key: str | None = key(
        None, "name of the environment variable with the server's key; null = the key that the agent sends is passed on"
    )
    token: str | None = key(None, "name of the environment variable with the key that agents must send")
    timeout: float = key(600.0, "seconds that the server may take for an answer", gt=0)


def main(arguments: Sequence[str]) -> int:
    """Serve until a signal ends it; returns the exit status."""
    return tool("capture", f"{__doc__}\n{key_table(keys(CaptureConfig))}", arguments, _capture)


def _capture(arguments: Sequence[str]) -> None:
    config, key, token = _checked(arguments)
    log = CallLog(Path(config.log))
    try:
        asyncio.run(_serve(config, key, token, log))
    except OSError as error:
        raise DataError(
            f"{config.host}:{config.port} cannot be listened on: {error}. Name another port, port=PORT"
        ) from error
    finally:
        log.close()
    say(f"{log.calls:,} calls and {log.outcomes:,} outcomes are in {log.path}")
    if log.calls:
        say(f"Next:\n  {command('import_logs', [f'source={config.log}', 'run_dir=runs/logs', 'tokenizer=MODEL'])}")


def _checked(arguments: Sequence[str]) -> tuple[CaptureConfig, str | None, str | None]:
    """Return the request, the server's key and the token; raises ConfigError."""
    from offline_agent.capture.proxy import local

    config, faults = load(CaptureConfig, overrides=arguments), []
    try:
        address = urlsplit(config.upstream)
        whole = address.scheme in ("http", "https") and bool(address.hostname)
        whole = whole and not (address.username or address.password or address.query or address.fragment)
    except ValueError:
        whole = False
    if not whole:
        faults.append(
            f"upstream: got {masked(config.upstream)!r}, allowed: the address of a server of a model's API with its "
            "version and nothing else, such as upstream=http://localhost:8000/v1; its key is upstream_key=VARIABLE"
        )
    secrets: list[str | None] = []
    for name, variable in (("upstream_key", config.upstream_key), ("token", config.token)):
        secrets.append(os.environ.get(variable, "").strip() if variable is not None else None)
        if secrets[-1] == "":
            faults.append(
                f"{name}: got {variable!r}, but there is no such environment variable, or it is empty; it names the "
                "variable that holds the key"
            )
    if config.token is None and not local(config.host):
        faults.append(
            f"host: got {config.host!r}, which other machines reach, so that anyone could spend the server's key; "
            "allowed: 127.0.0.1, or token=VARIABLE, the variable with the key that agents must send"
        )
    if faults:
        raise ConfigError(faults)
    return config, secrets[0], secrets[1]


async def _serve(config: CaptureConfig, key: str | None, token: str | None, log: CallLog) -> None:
    from aiohttp import web

    from offline_agent.capture.proxy import Proxy, guard

    sent = "" if key is None and token is not None else key  # the token is not for the server
    proxy = Proxy(config.upstream, log, sent, config.timeout, lambda text: say(f"capture: {text}"), config.dialect)
    runner = web.AppRunner(proxy.application(guard(token)), access_log=None, handler_cancellation=False)
    await runner.setup()
    stop = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    try:
        site = web.TCPSite(runner, config.host, config.port)
        await site.start()
        port = runner.addresses[0][1]
        say(f"capture: http://{config.host}:{port}/sessions/NAME/v1 → {masked(config.upstream)}; log: {log.path}")
        await stop.wait()
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
