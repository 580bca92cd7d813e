"""Likelihood training as a user runs it: what it writes, kill -9 and resume, wrong requests, and data of every kind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from offline_agent.pipelines.entry import main
from offline_agent.pipelines.train_sft import COMMAND
from offline_agent.store.events import EventLog
from tests.helpers import forked
from tests.helpers.rows import lines, refusal, run, trajectory

ROOT = Path(__file__).parents[2]
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
ALWAYS = ["tracking.uri=null", "threads=1"]
NEW = [
    "tasks.n=8", "scratch.layers=1", "scratch.hidden_size=16", "scratch.heads=2", "scratch.key_value_heads=1",
    "scratch.vocabulary=500", "demonstrations.noise=[0.0,0.3]", "demonstrations.per_task=2", "batch.rows=4",
    "optimizer.epochs=8", "checkpoints.every=3", "optimizer.learning_rate=0.02",
]  # fmt: skip


def command(run_dir: Path, *keys: str) -> list[str]:
    return [sys.executable, "-m", "offline_agent.pipelines.train_sft", *ALWAYS, *keys, f"run_dir={run_dir}"]


def train(run_dir: Path, *keys: str) -> int:
    """Carry the command out in this process."""
    return main(COMMAND, [*ALWAYS, *keys, f"run_dir={run_dir}"])


def curve(run_dir: Path) -> list[float]:
    records = list(EventLog(run_dir / "events" / "0000.jsonl").read())
    assert [record["update"] for record in records] == list(range(1, len(records) + 1))
    return [record["loss"] for record in records]


def summary(run_dir: Path) -> Any:
    return json.loads((run_dir / "summary.json").read_text())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    done = subprocess.run(command(run_dir, *NEW), capture_output=True, text=True, env=ENV)
    assert done.returncode == 0, done.stderr
    assert "pipelines.evaluate" in done.stdout
    return run_dir


def test_a_new_model_learns_from_demonstrations(whole: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    told = summary(whole)
    assert told["data"]["source"] == "demonstrations" and told["environment"] == "shop"
    assert told["demonstrations"]["attempts"] == 16 >= told["demonstrations"]["kept"] >= 8
    assert told["training"]["loss_last"] < 0.8 * told["training"]["loss_first"]
    rows = pq.read_table(whole / "demonstrations").to_pylist()
    assert len(rows) == told["demonstrations"]["kept"] and {row["origin"] for row in rows} == {"demonstration"}
    assert told["training"]["agent_tokens"] == 8 * sum(sum(mask) for mask in _kept_masks(rows))
    assert len(curve(whole)) == told["training"]["updates"] >= 16
    tokenizer = AutoTokenizer.from_pretrained(whole / "model")
    model = AutoModelForCausalLM.from_pretrained(whole / "model")
    assert model.config.vocab_size == len(tokenizer) <= 500 and "generation" in tokenizer.chat_template
    manifest = json.loads((whole / "manifest.json").read_text())
    assert manifest["status"] == "done" and manifest["hashes"]["task_set"]


def _kept_masks(rows: list[Any]) -> list[Any]:
    """Return the masks of the distinct rows: a careful expert does a task twice in the same way."""
    return list({tuple(row["tokens_input_ids"]): row["tokens_action_mask"] for row in rows}.values())


def test_kill_9_and_resume_end_with_the_same_curve(whole: Path, tmp_path: Path) -> None:
    run_dir, events = tmp_path / "run", tmp_path / "run" / "events" / "0000.jsonl"
    size = 0.6 * (whole / "events" / "0000.jsonl").stat().st_size
    process = forked.Process(command(run_dir, *NEW), env=ENV)
    while not events.exists() or events.stat().st_size < size:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (run_dir / "model").exists()
    assert train(run_dir, *NEW) == 0
    told = summary(run_dir)
    assert told["training"]["resumed_at"] >= 3 and told["demonstrations"] == summary(whole)["demonstrations"]
    assert curve(run_dir) == pytest.approx(curve(whole), abs=1e-6)
    assert told["model"]["begun"] == summary(whole)["model"]["begun"]
    assert told["training"]["agent_tokens"] == summary(whole)["training"]["agent_tokens"]


def test_rejection_fine_tuning_with_adapters(tmp_path: Path) -> None:
    rows = [trajectory(number, words) for number in range(3) for words in ("tea", "red tea")]
    data = run(tmp_path / "data", filtered=[*rows, rows[0], refusal(0)])
    keys = [f"data.runs=[{data}]", "lora.rank=2", "batch.rows=4", "data.per_task=1", "data.negatives=false"]
    assert train(tmp_path / "run", *keys) == 0
    told = summary(tmp_path / "run")
    assert told["data"]["source"] == "runs" and "environment" not in told
    assert told["data"]["left_out"] == {"duplicates": 1, "capped": 3, "negatives": 1}
    assert (told["data"]["read"], told["data"]["kept"], told["data"]["tasks"]) == (8, 3, 3)
    assert 0 < told["model"]["trained"] < told["model"]["parameters"] / 10
    assert (tmp_path / "run" / "adapter" / "adapter_config.json").is_file()
    reasons = [json.loads(line) for line in (tmp_path / "run" / "quarantine.jsonl").read_text().splitlines()]
    assert len(reasons) == 5 and all(entry["kind"] == "row" for entry in reasons)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["data"] == told["data"]["files"] and manifest["hashes"]["data"]
    assert manifest["hashes"]["model"] == told["model"]["begun"]["model"] != told["model"]["hash"]


def test_data_that_changed_is_not_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(lines(tmp_path / "rows.jsonl", [trajectory(0)]))
    keys = [f"data.files=[{file}]", "optimizer.max_updates=1"]
    assert train(tmp_path / "run", *keys) == 0
    lines(file, [trajectory(1)])
    assert train(tmp_path / "run", *keys) == 2
    assert "the data changed since the run was begun" in capsys.readouterr().err


def test_a_row_that_fails_its_certificate_stops_the_run_before_it_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = trajectory(1)
    bad["action_mask"][3] ^= 1
    file = lines(tmp_path / "rows.jsonl", [trajectory(0), bad])
    assert train(tmp_path / "run", f"data.files=[{file}]") == 1
    assert "rows.jsonl:2 train-1/search: its sequence mask" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


FAILING = '''
class Hopeless:
    """Nobody reaches it."""

    @classmethod
    def tasks(cls, split):
        return ({"n": n} for n in range(3))

    def reset(self, n: int) -> str:
        self.terminated = False
        return "Reach it from " + "abc"[n] + "."

    def go(self) -> str:
        """Go."""
        return "not there yet"

    @classmethod
    def demonstrate(cls, task, messages, rng, noise):
        call = {"type": "function", "function": {"name": "go", "arguments": {}}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}

    def get_reward(self) -> float:
        return 0.25
'''


def test_an_expert_who_never_succeeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hopeless.py").write_text(FAILING)
    keys = [f"env={tmp_path}/hopeless.py:Hopeless", "demonstrations.max_steps=4"]
    assert train(tmp_path / "run", *keys) == 1
    told = capsys.readouterr().err
    assert "none of 3 demonstrations" in told and "not done after 4 actions (score 0.25)" in told
    assert not (tmp_path / "run" / "model").exists()
    keys += ["demonstrations.only_successes=false", "optimizer.max_updates=1"]
    assert train(tmp_path / "all", *keys) == 0
    assert summary(tmp_path / "all")["data"]["kept"] == 3


def test_a_new_model_reads_first_and_a_stop_in_between_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [*NEW, "scratch.reading=2", "optimizer.epochs=1"]
    assert train(tmp_path / "whole", *keys) == 0
    read = summary(tmp_path / "whole")["reading"]
    assert read["updates"] == 6 and read["loss_last"] < read["loss_first"]
    assert read["agent_tokens"] > 3 * summary(tmp_path / "whole")["training"]["agent_tokens"]  # observations count
    assert "read before" in capsys.readouterr().out

    from offline_agent.runner import training

    stop = training.train

    def stopped(*given: Any) -> Any:
        raise RuntimeError("stopped")

    monkeypatch.setattr(training, "train", stopped)
    assert train(tmp_path / "run", *keys) != 0
    monkeypatch.setattr(training, "train", stop)
    assert train(tmp_path / "run", *keys) == 0
    assert curve(tmp_path / "run") == pytest.approx(curve(tmp_path / "whole"), abs=1e-6)
    assert summary(tmp_path / "run")["model"]["hash"] == summary(tmp_path / "whole")["model"]["hash"]


def test_a_new_model_comes_of_a_random_search_without_expert_or_model(tmp_path: Path) -> None:
    from offline_agent.pipelines.build_prefs import COMMAND as BUILD
    from offline_agent.pipelines.evaluate import COMMAND as EVALUATE

    env = [f"env={ROOT}/examples/reach.py:Reach", *ALWAYS[:1]]
    found = [*env, "policy=random", "tasks.n=12", "search.simulations=64", f"run_dir={tmp_path / 'found'}"]
    assert main(BUILD, found) == 0
    shape = ["scratch.layers=1", "scratch.hidden_size=32", "scratch.heads=2", "scratch.key_value_heads=1"]
    assert train(tmp_path / "sft", f"data.runs=[{tmp_path / 'found'}]", *shape, "optimizer.epochs=4") == 0
    folder = tmp_path / "sft" / "model"
    rows = pq.read_table(tmp_path / "found" / "filtered").to_pylist()
    assert summary(tmp_path / "sft")["data"]["kept"] == len(rows) > 0
    assert json.loads((folder / "generation_config.json").read_text())["max_new_tokens"] >= 64
    assert main(EVALUATE, [*env, f"policy.model={folder}", "tasks.n=4", "attempts=1", "greedy=false",
                           f"run_dir={tmp_path / 'eval'}"]) == 0  # fmt: skip
    assert summary(tmp_path / "eval")["cuts"]["episodes"] == 4
    # the same texts as a file of a user's own give the same model
    table = pq.read_table(tmp_path / "found" / "filtered")
    pq.write_table(table.select(["messages", "tools", "success"]), tmp_path / "mine.parquet")
    again = [f"data.files=[{tmp_path / 'mine.parquet'}]", *shape, "optimizer.epochs=4"]
    assert train(tmp_path / "again", *again) == 0
    assert summary(tmp_path / "again")["model"]["hash"] == summary(tmp_path / "sft")["model"]["hash"]
