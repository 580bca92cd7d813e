"""A fake vLLM with a real model in it, for runs that sample from a server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.helpers.fake_vllm import FakeVLLM


class ModelServer(FakeVLLM):
    """A fake vLLM with a real model in it, sampled from one request at a time.

    Attributes:
        sampling: Called with the number of samples so far, before each.
    """

    def __init__(self, start: Path) -> None:
        super().__init__()
        self.start = start
        self.complete = self.answer
        self.sampling: Callable[[int], None] = lambda count: None
        self.samples = 0
        self.busy = threading.Lock()
        self.model = AutoModelForCausalLM.from_pretrained(start).eval()

    def load(self, folder: Path) -> None:
        self.model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)  # tied ones are left out

    def read_adapter(self, folder: Path) -> Any:
        return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(self.start), folder).eval()

    def start_anew(self) -> None:
        super().start_anew()
        self.load(self.start)

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert path == "/completions" and not self.paused
        ids, model = body["prompt"], self.adapters.get(body["model"], self.model)
        if isinstance(ids, str):
            ids = AutoTokenizer.from_pretrained(self.start)(ids, add_special_tokens=False)["input_ids"]
            return {"choices": [{"token_ids": [0], "prompt_token_ids": ids}]}
        if body.get("prompt_logprobs") is not None:
            found = self.logps(model, ids)[0]
            entries = [{str(t): {"logprob": float(row[t])}} for t, row in zip(ids[1:], found, strict=False)]
            return {"choices": [{"token_ids": [0], "prompt_logprobs": [None, *entries]}]}
        with self.busy:
            self.samples += 1
            count = self.samples
        self.sampling(count)
        with self.busy:
            return self.sample(model, ids, body)

    @torch.no_grad()
    def logps(self, model: Any, ids: list[int]) -> torch.Tensor:
        return torch.log_softmax(model(input_ids=torch.tensor([ids])).logits.float(), -1)

    @torch.no_grad()
    def sample(self, model: Any, prompt: list[int], body: dict[str, Any]) -> dict[str, Any]:
        draws, out, logps = torch.Generator().manual_seed(body.get("seed") or 0), list[int](), list[float]()
        heat, cache, fresh = body["temperature"], None, prompt
        while len(out) < body["max_tokens"] and (not out or out[-1] not in body["stop_token_ids"]):
            done = model(input_ids=torch.tensor([fresh]), past_key_values=cache, use_cache=True)
            row, cache = torch.log_softmax(done.logits[0, -1].float(), -1), done.past_key_values
            out.append(int(torch.multinomial((row / heat).softmax(-1), 1, generator=draws) if heat else row.argmax()))
            logps.append(float(row[out[-1]]))
            fresh = out[-1:]
        reason = "stop" if out[-1] in body["stop_token_ids"] else "length"
        choice = {"token_ids": out, "logprobs": {"token_logprobs": logps}, "finish_reason": reason}
        return {"choices": [choice], "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(out)}}
