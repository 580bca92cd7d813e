"""A model whose chat template drops the thoughts of answered turns, from the warm start to GRPO, by commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from offline_agent.rendering.columns import starts_of
from offline_agent.rendering.renderer import Renderer
from offline_agent.store.columns import known
from tests.helpers import rendering as kit
from tests.helpers.bandit import call

ENV = """
class Asked:
    \"\"\"A bandit that is asked first: a turn of words, the user's answer, then a pull.\"\"\"

    system_prompt = "Pull."
    max_steps = 2

    @classmethod
    def tasks(cls, split):
        start = {"train": 0, "validation": 1000, "test": 2000}[split]
        return ({"machine": start + n} for n in range(200))

    def reset(self, machine: int) -> str:
        self._right, self.terminated = False, False
        return f"Machine {machine}."

    def left(self) -> str:
        \"\"\"Pull the left arm.\"\"\"
        self.terminated = True
        return "Nothing."

    def right(self) -> str:
        \"\"\"Pull the right arm.\"\"\"
        self._right = self.terminated = True
        return "It pays."

    def _reply(self, text):
        return "Go on."

    def get_reward(self) -> float:
        return float(self._right)

    @classmethod
    def demonstrate(cls, task, messages, rng, noise):
        said = "<think>\\\\n" + rng.choice(("one", "two")) + "\\\\n</think>\\\\n\\\\n"
        if messages[-1]["content"] != "Go on.":
            return {"role": "assistant", "content": said + "Which?"}
        arm = rng.choice(("left", "right")) if rng.random() < noise else "right"
        calls = [{"type": "function", "function": {"name": arm, "arguments": {}}}]
        return {"role": "assistant", "content": said + "So.", "tool_calls": calls}
""".replace("\\\\n", "\\n")


def save(folder: Path) -> Path:
    """Write a tiny random model with Qwen 3's own chat template."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    text = kit.context_text(Renderer(kit.of_trl("qwen3")), kit.root("Machine 1.", "Pull."))
    tokenizer = kit.of_trl("qwen3", *[text, "Machine Which? So. Go on. Pull the right left arm. two one"] * 3)
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=1024, pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )).save_pretrained(folder)  # fmt: skip
    tokenizer.save_pretrained(folder)
    return folder


def rows(run_dir: Path, table: str) -> list[dict[str, Any]]:
    return list(map(known, pq.read_table(run_dir / table).to_pylist()))


def records(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "events" / "0000.jsonl").read_text().splitlines()]


def test_from_the_warm_start_to_grpo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("asked.py").write_text(ENV)
    env, train = "env=asked.py:Asked", ("threads=1", "checkpoints.every=1000", "optimizer.schedule=constant")
    call(
        "train_sft", env, f"model.path={save(tmp_path / 'base')}", "tasks.n=48", "demonstrations.noise=[1.0]",
        "demonstrations.only_successes=false", "optimizer.epochs=10", "optimizer.learning_rate=5e-3", "batch.rows=8",
        *train, "run_dir=warm",
    )  # fmt: skip
    assert all(starts_of(row, "sequence") for row in rows(Path("warm"), "demonstrations"))
    call(
        "build_prefs", env, "policy.model=warm/model", "policy.temperature=1", "tasks.n=8", "search.simulations=16",
        "limits.workers=1", "run_dir=search",
    )  # fmt: skip
    found, renderer = rows(Path("search"), "filtered"), Renderer.load(tmp_path / "warm" / "model")
    pairs = [row for name in ("preferences", "multiturn_preferences") for row in rows(Path("search"), name)]
    assert not renderer.appends and found and {row["kind"] for row in pairs} >= {"step", "trajectory"}
    assert any(starts_of(row, "sequence") for row in found) and any(starts_of(row, "chosen") for row in pairs)
    data = ("data.runs=[search]", "optimizer.learning_rate=1e-3", *train)
    call("train_sft", "model.path=warm/model", *data, "optimizer.epochs=1", "run_dir=sft")
    kinds = "data.kinds=[step,trajectory]"
    call("train_dpo", "model.path=warm/model", *data, kinds, "optimizer.epochs=2", "run_dir=dpo")
    reference = json.loads(Path("dpo/summary.json").read_text())["training"]["reference"]
    assert reference["computed"] == 0 and reference["difference"] < 1e-3  # what the sampler reported is right
    call("evaluate", env, "policy.model=dpo/model", "tasks.n=8", "attempts=2", "run_dir=eval")
    call(
        "refine_grpo", env, "model.path=warm/model", "rollouts.size=4", "rollouts.tasks=4", "rounds=1", "tasks.n=8",
        "threads=1", "run_dir=grpo",
    )  # fmt: skip
    learnt = [record for record in records(Path("grpo")) if "mismatch" in record]
    assert learnt and all(record["mismatch"] < 1e-3 for record in learnt)
