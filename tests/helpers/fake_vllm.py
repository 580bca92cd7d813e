"""The routes of a vLLM server in its development mode, and how it fails; weights are a number, kept in a folder."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.helpers.fake_server import FakeServer

SHAPES = {"a.weight": [2, 3], "b.weight": [4]}


def checkpoint(folder: Path, value: float, shapes: dict[str, list[int]] | None = None) -> Path:
    """Write a folder as `save_pretrained` does, with `value` where the fake finds it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"value": value}))
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in (shapes or SHAPES).items():
        size = 4
        for n in shape:
            size *= n
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
    return folder


def logp(value: float, token: int) -> float:
    """Return what the fake's weights say of a token."""
    return -(value + token % 7) / 10


class FakeVLLM(FakeServer):
    """A server whose answers tell the weights they are from.

    Attributes:
        value: Its weights.
        version: Their name.
        extension: Whether it has our worker extension.
        routes: The control routes it was asked for, in order, but `/weight_info`.
        deaf: Take no notice of new weights.
        keeps_cache: Refuse to reset the prefix cache.
        broken: From a route to what it answers instead; an exception breaks the connection.
        during: Called with the text of a request while it is being answered.
    """

    def __init__(self, development: bool = True, extension: bool = True) -> None:
        super().__init__(self._answer)
        self.misbehave = self._route
        self.development = development
        self.extension = extension
        self.value = 0.0
        self.version = "default"
        self.paused = False
        self.routes: list[str] = []
        self.cache: dict[str, float] = {}
        self.deaf = self.keeps_cache = False
        self.broken: dict[str, tuple[int, Any] | Exception] = {}
        self.during: Callable[[str], None] = lambda text: None
        self.changing = threading.Lock()

    def start_anew(self) -> None:
        """Be another process: the first weights, under the first name."""
        self.value, self.version, self.paused, self.cache = 0.0, "default", False, {}

    def load(self, folder: Path) -> None:
        """Take the weights of a checkpoint."""
        self.value = json.loads((folder / "config.json").read_text())["value"]

    def _route(self, path: str, body: dict, count: int) -> tuple[int, Any] | None:
        name = path.partition("?")[0]
        if name in ("/chat/completions", "/completions", "/v1/models"):
            return None
        if name == "/metrics":
            return self.broken.get(name) or (200, b'vllm:prefix_cache_queries_total{engine="0"} 12.0\n# HELP x\n'
                b'vllm:prefix_cache_queries_total{engine="1"} 8.0\nvllm:prefix_cache_hits_total{engine="0"} 5.0\n'
                b'vllm:external_prefix_cache_hits_total{engine="0"} 99.0\n')  # fmt: skip
        if not self.development:
            return 404, {"detail": "Not Found"}
        with self.changing:
            if name != "/weight_info":
                self.routes.append(name)
            wrong = self.broken.get(body.get("method", name), self.broken.get(name))
            if isinstance(wrong, Exception):
                raise wrong
            return wrong or self._control(name, body)

    def _control(self, name: str, body: dict) -> tuple[int, Any]:
        if name == "/is_paused":
            return 200, {"is_paused": self.paused}
        if name == "/weight_info":
            return 200, {"weight_version": self.version}
        if name in ("/pause", "/resume"):
            self.paused = name == "/pause"
            return 200, {"status": "ok"}
        assert self.paused, f"{name} while requests may be answered"
        if name == "/update_weight_version":
            self.version = body["new_version"]
            return 200, {"success": True}
        if name == "/reset_prefix_cache":
            if not self.keeps_cache:
                self.cache = {}
            return 200, {"success": not self.keeps_cache}
        assert name == "/collective_rpc", name
        if body["method"] == "take_checkpoint" and not self.extension:
            said = "Worker failed with error ''Worker' object has no attribute 'take_checkpoint''"
            return 500, {"error": {"message": said}}
        self.routes.append(body["method"])
        folder = body["kwargs"]["folder" if body["method"] == "take_checkpoint" else "weights_path"]
        if not self.deaf:
            self.load(Path(folder))
        return 200, {"results": [None]}

    def _answer(self, path: str, body: dict) -> dict:
        if path == "/completions":
            entries = [{str(token): {"logprob": logp(self.value, token)}} for token in body["prompt"]]
            return {"choices": [{"token_ids": [0], "prompt_logprobs": [None, *entries[1:]]}]}
        text = body["messages"][-1]["content"]
        value = self.cache.setdefault(text, self.value)  # a prefix cache that was not reset answers from old weights
        self.during(text)
        return {"choices": [{"message": {"content": f"weights {value:g}"}, "finish_reason": "stop"}]}
