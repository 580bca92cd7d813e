"""The keys of `capture`."""

from __future__ import annotations

from typing import Literal

from offline_agent.sections import Section, key


class CaptureConfig(Section):
    """Keys of `capture`."""

    upstream: str = key("", "the server's address with its version, such as http://localhost:8000/v1")
    log: str = key("captured", "the folder of the log; it is made, and files of earlier captures stay")
    host: str = key("127.0.0.1", "the address that is listened on; one that other machines reach needs token")
    port: int = key(8100, "its port; 0 = any that is free", ge=0, le=65535)
    upstream_key: str | None = key(
        None, "name of the environment variable with the server's key; null = the key that the agent sends is passed on"
    )
    token: str | None = key(
        None, "name of the environment variable with the key that agents must send; the session is then in the address"
    )
    tokens: Literal["auto", "on", "off"] = key(
        "auto", "ask the server for token ids and log-probabilities (vLLM has them); auto = as long as it takes the "
        "question",
    )  # fmt: skip
    timeout: float = key(600.0, "seconds that the server may take for an answer", gt=0)
