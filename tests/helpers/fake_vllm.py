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
        lora: Whether it takes adapters while it runs.
        adapters: What it has loaded, by name; it keeps one, as vLLM does by default.
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
        self.deaf = self.keeps_cache = self.lora = False
        self.adapters: dict[str, Any] = {}
        self.broken: dict[str, tuple[int, Any] | Exception] = {}
        self.during: Callable[[str], None] = lambda text: None
        self.changing = threading.Lock()

    def start_anew(self) -> None:
        """Be another process: the first weights, under the first name."""
        self.value, self.version, self.paused, self.cache, self.adapters = 0.0, "default", False, {}, {}

    def read_adapter(self, folder: Path) -> Any:
        """Return an adapter's weights."""
        return json.loads((folder / "adapter_config.json").read_text())["value"]

    def load(self, folder: Path) -> None:
        """Take the weights of a checkpoint."""
        self.value = json.loads((folder / "config.json").read_text())["value"]

    def _route(self, path: str, body: dict, count: int) -> tuple[int, Any] | None:
        name = path.partition("?")[0]
        if name in ("/chat/completions", "/completions"):
            if body["model"] in (*self.models, *self.adapters):
                return None
            return 404, {"error": {"message": f"The model `{body['model']}` does not exist.", "code": 404}}
        if name == "/v1/models":
            cards = [{"id": each, "parent": None} for each in self.models]
            return 200, {"data": cards + [{"id": each, "parent": self.models[0]} for each in self.adapters]}
        if name.endswith("load_lora_adapter"):
            return self._lora(name, body) if self.lora else (404, {"detail": "Not Found"})
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

    def _lora(self, name: str, body: dict) -> tuple[int, Any]:
        """Answer as vllm/entrypoints/openai/models/serving.py; what is loaded second drops the first."""
        if not body["lora_name"] or body["lora_name"] in self.adapters and name == "/load_lora_adapter":
            return 400, {"error": {"message": "Both 'lora_name' and 'lora_path' must be provided.", "code": 400}}
        self.routes.append(name)
        if name in self.broken:
            return self.broken[name]
        if name == "/unload_lora_adapter":
            known = self.adapters.pop(body["lora_name"], None) is not None
            return (200, b"Success: removed.") if known else (404, {"error": {"message": "cannot be found"}})
        assert not self.adapters, "the adapter that is loaded would be dropped"
        self.adapters[body["lora_name"]] = 0.0 if self.deaf else self.read_adapter(Path(body["lora_path"]))
        return 200, b"Success: added."

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
        named = self.adapters.get(body["model"], self.value)
        if path == "/completions":
            entries = [{str(token): {"logprob": logp(named, token)}} for token in body["prompt"]]
            return {"model": body["model"], "choices": [{"token_ids": [0], "prompt_logprobs": [None, *entries[1:]]}]}
        text = body["messages"][-1]["content"]
        # a prefix cache that was not reset answers from old weights, or from an adapter of the same name
        value = self.cache.setdefault(f"{body['model']} {text}", named)
        self.during(text)
        answer = {"message": {"content": f"weights {value:g}"}, "finish_reason": "stop"}
        return {"model": body["model"], "choices": [answer]}
