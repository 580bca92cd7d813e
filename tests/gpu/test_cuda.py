"""Paths that only a GPU takes. Each fails on a wrong device, a wrong number format or a kernel that is not exact.

They are skipped where there is no GPU. `python benchmarks/gpu.py` runs them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from offline_agent.envs.base import EnvSpec
from offline_agent.policies.base import DEFAULT_MODEL, Proposals, ProposeRequest
from offline_agent.policies.hf.architecture import distance
from offline_agent.policies.hf.policy import HFPolicy
from offline_agent.records import Context
from offline_agent.training.prefix_sharing.head import alone, forest
from offline_agent.training.prefix_sharing.log_probabilities import Scorer
from offline_agent.training.prefix_sharing.trie import pack

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]
ROOT = Path(__file__).parents[2]


def model(dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config, dtype=dtype).to("cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", ["flex", "blocks"])
def test_shared_prefixes_are_exact_on_a_gpu_with_gradients(dtype: torch.dtype, way: str) -> None:
    lm = model(dtype)
    scorer = Scorer(lm, way=way)
    assert scorer.shares, scorer.reason
    sequences = forest(512)
    packed = pack(sequences).to("cuda")
    found = scorer(lm, packed).logps
    with torch.no_grad():
        far, allowed = distance(lm, found.detach(), alone(lm, sequences, packed))
    assert far <= allowed
    found.sum().backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in lm.parameters() if p.grad is not None)


def histories(count: int) -> list[Context]:
    spec, out = EnvSpec.load("shop"), []
    for task, _ in zip(spec.tasks("train"), range(count), strict=False):
        episode = spec.open()
        out.append(Context(task, spec.system_prompt, episode.tools.schemas, episode.reset(task)))
    return out


def test_the_policy_answers_from_a_gpu_as_from_a_cpu_in_float32() -> None:
    ask = [ProposeRequest(one, (1, 2), 0.0) for one in histories(8)]
    answers = []
    for device in ("cpu", "cuda"):
        policy = HFPolicy(DEFAULT_MODEL, device=device, dtype="float32")
        answers.append(policy.propose(ask))
        assert policy.identity["device"] == device
        policy.close()
    same = [
        one.text == two.text
        for left, right in zip(*answers, strict=True)
        if isinstance(left, Proposals) and isinstance(right, Proposals)
        for one, two in zip(left.actions, right.actions, strict=True)
    ]
    assert len(same) == 16 and sum(same) >= 15  # one may be a tie that rounding decides


def test_the_chain_runs_on_a_gpu(tmp_path: Path) -> None:
    def run(pipeline: str, *keys: str) -> dict[str, Any]:
        line = [sys.executable, "-m", f"offline_agent.pipelines.{pipeline}", *keys, "tracking.uri=null"]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return dict(json.loads((tmp_path / keys[0].rpartition("/")[2] / "summary.json").read_text()))

    data, tuned, better = (f"run_dir={tmp_path / name}" for name in ("data", "sft", "dpo"))
    run("build_prefs", data, "tasks.n=8", "search.simulations=16")
    runs = f"data.runs=[{tmp_path / 'data'}]"
    assert run("train_sft", tuned, runs, "optimizer.max_updates=3")["updates"] == 3
    start = f"model.path={tmp_path / 'sft' / 'model'}"
    assert run("train_dpo", better, runs, start, "optimizer.max_updates=3")["updates"] == 3
