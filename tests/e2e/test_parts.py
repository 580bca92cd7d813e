"""Agents of several parts by commands: the online stage reads the rows that it wrote, and a killed run goes on."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from offline_agent.policies.base import DEFAULT_MODEL
from offline_agent.rendering.columns import starts_of
from offline_agent.rendering.renderer import Renderer
from offline_agent.store.columns import known
from offline_agent.training.data.rows import Selection, load_trajectories
from tests.helpers import forked


def refine(run_dir: Path) -> list[str]:
    keys = [
        "env=parts:shop", "env.turns=4", "env.delegate=true", f"model.path={DEFAULT_MODEL}", "rounds=1", "tasks.n=4",
        "rollouts.tasks=2", "rollouts.size=4", "rollouts.reward=score", "threads=1", "tracking.uri=null",
    ]  # fmt: skip
    return [sys.executable, "-m", "offline_agent.pipelines.refine_grpo", *keys, f"run_dir={run_dir}"]


def rows(run_dir: Path) -> list[dict[str, Any]]:
    return sorted(map(known, pq.read_table(run_dir / "trajectories").to_pylist()), key=str)


def test_the_online_stage_learns_from_several_parts_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    done = forked.run(refine(whole))
    assert done.returncode == 0, done.stderr
    lines = map(json.loads, (whole / "events" / "0000.jsonl").read_text().splitlines())
    (update,) = (one for one in lines if "mismatch" in one)
    # the trainer's log-probabilities after each row's prompt are the sampler's
    assert update["mismatch"] < 1e-4
    written = rows(whole)
    assert sum(bool(starts_of(row, "sequence")) for row in written) > 4 and len(written) == 8
    files, rules = [str(whole / "trajectories" / "0000.parquet")], Selection(verified=False)
    read, _ = load_trajectories([], files, Renderer.load(DEFAULT_MODEL), max_length=4096, rules=rules)
    ids = {(tuple(row["input_ids"]), starts_of(row, "sequence")) for row in written}
    assert {(one.input_ids, one.starts) for one in read} == ids
    process = forked.Process(refine(killed))
    log = killed / "events" / "rollouts.jsonl"
    while process.poll() is None:
        if log.exists() and log.read_bytes().count(b"\n") >= 3:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.002)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    again = forked.run(refine(killed))
    assert again.returncode == 0, again.stderr
    assert rows(killed) == written
