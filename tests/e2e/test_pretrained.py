"""A pretrained model in a GGUF file, from the warm start to GRPO, by the README's commands.

The weights are SmolLM2-135M's where `make model` put them, else a tiny random model's in the same format.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from offline_agent.pipelines import export
from offline_agent.policies.hf.gguf import cache
from tests.helpers import gguf_files
from tests.helpers.bandit import call

ENV = ("env=countdown", "env.n=2")
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def test_from_the_warm_start_to_grpo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, episodes, rate, epochs = cache() / "SmolLM2-135M-Instruct", 24, "2e-4", 1
    if not model.is_dir():
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        model, episodes, rate, epochs = gguf_files.llama(tmp_path / "tiny.gguf", TEMPLATE, 64), 200, "5e-3", 12
    monkeypatch.chdir(tmp_path)
    train = ("threads=1", "batch.rows=8", f"optimizer.learning_rate={rate}", "checkpoints.every=1000")
    call(
        "train_sft", *ENV, f"model.path={model}", "model.chat_template=compact", f"tasks.n={episodes}", *train,
        f"optimizer.epochs={epochs}", "run_dir=warm",
    )  # fmt: skip
    play = (*ENV, "policy.temperature=1", "limits.workers=1")
    call("build_prefs", *play, "policy.model=warm/model", "tasks.n=8", "search.simulations=6", "run_dir=search")
    assert pq.read_table("search/filtered").num_rows and pq.read_table("search/preferences").num_rows
    data = ("data.runs=[search]", *train, "optimizer.epochs=1")
    call("train_sft", "model.path=warm/model", *data, "run_dir=sft")
    call("train_dpo", "model.path=sft/model", *data, "run_dir=dpo")
    call("evaluate", *play, "policy.model=dpo/model", "tasks.n=4", "attempts=2", "greedy=false", "run_dir=eval")
    assert export.main(["run_dir=search", "format=trl", "out=trl"]) == 0
    call(
        "refine_grpo", *ENV, "model.path=dpo/model", "rounds=1", "rollouts.tasks=2", "rollouts.size=4", "tasks.n=8",
        "threads=1", "run_dir=grpo",
    )  # fmt: skip
    assert pq.read_table("eval/attempts").num_rows == 16
    assert (Path("grpo") / "model" / "config.json").is_file()
