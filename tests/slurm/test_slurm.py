"""Pipelines on a real Slurm of two nodes: arrays that lose and requeue jobs, merges, training, a loop."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from offline_agent.store.columns import PAIR_TABLES
from tests.helpers import forked
from tests.helpers.slurm import HOLD, ROOT, SCRIPTS, Slurm, content, manifest, two_nodes, until

TABLES = (*PAIR_TABLES, "trajectories", "filtered")
QUIET = "tracking.uri=null"
JOBS = ["launcher=slurm", "slurm.cpus=1", "slurm.memory=100M", "slurm.poll_seconds=0.3"]
SEARCH = [
    QUIET, "audit=off", "env=tests.helpers.slurm:HeldShop", "policy=noisy", "policy.noise=0.4", "tasks.n=6",
    "search.simulations=6", "limits.workers=1", "limits.step_seconds=3600", "limits.reset_seconds=3600",
]  # fmt: skip


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with two_nodes() as conf:
        yield Slurm(conf)


def records(run: Path) -> int:
    log = run / "events" / "0000.jsonl"
    return len(log.read_bytes().splitlines()) if log.exists() else 0


def test_a_search_that_loses_one_shard_and_has_another_requeued_makes_the_same_trees(
    slurm: Slurm, tmp_path: Path
) -> None:
    local, run, hold = tmp_path / "local", tmp_path / "run", tmp_path / "hold"
    hold.touch()
    arguments = [*SEARCH, *JOBS, "slurm.shards=3", f"run_dir={run}"]
    status, out, err = slurm.run("build_prefs", *arguments, "--submit", **{HOLD: str(hold)})
    assert status == 0, err
    kinds = dict(line.split() for line in out.splitlines())
    assert set(kinds) == {"shards", "merge"}
    array, merge = kinds["shards"], kinds["merge"]
    assert slurm.jobs()[merge] == "PENDING"  # it waits for the shards
    slurm.done("build_prefs", *SEARCH, f"run_dir={local}")

    shards = [run / "shards" / f"{number:04}" for number in range(3)]
    until(lambda: all(records(shard) > 3 for shard in shards[:2]), "the first two shards search")
    assert "under way" in slurm.done("status", f"run_dir={run}")
    slurm.ask("scancel", f"{array}_0")
    slurm.ask("scancel", "--signal=USR1", f"{array}_1")
    until(lambda: slurm.jobs()[f"{array}_1"] == "PENDING", "the second shard is requeued")
    hold.unlink()
    until(lambda: len(manifest(shards[1]).get("resumed", ())) == 1, "the second shard goes on")
    until(lambda: not {"PENDING", "RUNNING", "COMPLETING"} & set(slurm.jobs().values()), "all jobs end")
    assert slurm.jobs()[merge] == "CANCELLED"
    log = next((run / "slurm").glob("*-shards-0001.log")).read_text()
    assert "stopped by SIGUSR1" in log and "requeued" in log and "going on with" in log

    told = slurm.done("status", f"run_dir={run}")
    assert "3: 2 done, 1 lost" in told and "shard 0  lost" in told and "CANCELLED" in told and "To go on: " in told
    status, out, err = slurm.run("build_prefs", "--merge", "--config", str(run / "slurm" / "merge.yaml"))
    assert (status, out) == (1, "") and "1 of 3 shards are not done: 0; nothing was merged" in err
    assert not any((run / table).exists() for table in (*TABLES, "summary.json"))

    before = {shard: manifest(shard)["ended"] for shard in shards[1:]}
    status, out, err = slurm.run("build_prefs", *arguments)
    assert status == 0, err
    assert "submitting again what failed or was lost: 0" in err and "build_prefs: noisy in" in out
    assert {shard: manifest(shard)["ended"] for shard in shards[1:]} == before  # they were not run again
    whole = content(run, "trees", *TABLES)
    assert len(whole) == 6 + 4 and whole == content(local, "trees", *TABLES)
    assert (run / "quarantine.jsonl").read_bytes() == (local / "quarantine.jsonl").read_bytes()
    assert json.loads((run / "summary.json").read_text())["shards"]["count"] == 3

    slurm.done("build_prefs", "--merge", "--config", str(run / "slurm" / "merge.yaml"))
    assert content(run, "trees", *TABLES) == whole  # a merge can be repeated
    told = slurm.done("status", f"run_dir={run}")
    assert "3: 3 done" in told and "6 of 6 searched" in told and "To go on" not in told


def test_a_search_whose_time_is_up_is_requeued_and_makes_the_same_trees(slurm: Slurm, tmp_path: Path) -> None:
    local, run, hold = tmp_path / "local", tmp_path / "run", tmp_path / "hold"
    hold.touch()
    arguments = [*SEARCH, *JOBS, "slurm.shards=1", "slurm.time=1", "slurm.signal_seconds=50", f"run_dir={run}"]
    status, out, err = slurm.run("build_prefs", *arguments, "--submit", **{HOLD: str(hold)})
    assert status == 0, err
    slurm.done("build_prefs", *SEARCH, f"run_dir={local}")
    shard = run / "shards" / "0000"
    until(lambda: manifest(shard).get("resumed"), "the shard is told that its time is up, and goes on")
    hold.unlink()
    until(lambda: manifest(run).get("status") == "done", "the shard and the merge end")
    log = next((run / "slurm").glob("*-shards-0000.log")).read_text()
    assert "stopped by SIGUSR1" in log and "requeued" in log and "going on with" in log
    whole = content(run, "trees", *TABLES)
    assert len(whole) == 6 + 4 and whole == content(local, "trees", *TABLES)


def test_a_job_that_is_told_before_it_listens_is_requeued(slurm: Slurm, tmp_path: Path) -> None:
    paths = os.pathsep.join([str(SCRIPTS / "told_at_once"), str(ROOT)])
    keys = [QUIET, "policy=noisy", "tasks.n=2", "attempts=1", *JOBS, "slurm.shards=1", f"run_dir={tmp_path / 'run'}"]
    status, out, err = slurm.run("evaluate", *keys, PYTHONPATH=paths)
    assert status == 0, out + err
    logs = [log.read_text() for log in (tmp_path / "run" / "slurm").glob("*.log")]
    assert len(logs) == 2 and all("stopped by a signal: requeued" in log for log in logs)


def test_training_on_two_nodes_is_preempted_and_learns_what_one_process_learns(slurm: Slurm, tmp_path: Path) -> None:
    """Alone catches what a job of two nodes loses when it is requeued; its weights are sharded over them."""
    keys = [QUIET, "tasks.n=8", "batch.rows=4", "batch.tokens=400", "optimizer.epochs=3", "checkpoints.every=1"]
    run, alone = tmp_path / "run", tmp_path / "alone"
    jobs = [*JOBS, "slurm.nodes=2", "slurm.partition=spare", "slurm.sharded=true", f"run_dir={run}"]
    paths = os.pathsep.join([str(SCRIPTS / "shards_on_a_cpu"), str(ROOT)])
    status, out, err = slurm.run("train_sft", *keys, *jobs, "--submit", PYTHONPATH=paths)
    assert status == 0, err
    kind, job = out.split()
    assert kind == "job"
    until(lambda: len(list((run / "checkpoints").glob("checkpoint-*"))) > 0, "a checkpoint is written")
    whole = ["--nodes=2", "--exclusive", "--mem=100M", f"--output={tmp_path / 'urgent.log'}", "--wrap=sleep 3600"]
    urgent = slurm.ask("sbatch", "--parsable", *whole).strip()
    until(lambda: slurm.jobs()[urgent] == "RUNNING", "the urgent job has both nodes")
    assert slurm.jobs()[job] == "PENDING"
    slurm.done("train_sft", *keys, f"run_dir={alone}")
    slurm.ask("scancel", urgent)
    until(lambda: manifest(run).get("status") == "done", "the job goes on and ends")
    log = next((run / "slurm").glob("*.log")).read_text()
    assert "stopped by SIGTERM" in log and "requeued" in log and len(list((run / "slurm").glob("*.sh"))) == 1
    assert len(manifest(run)["resumed"]) == 2  # the job after the submission, and the job once more
    curves = [[json.loads(line) for line in (path / "events/0000.jsonl").open()][1:] for path in (run, alone)]
    losses = [[record["loss"] for record in curve] for curve in curves]
    assert len(losses[0]) == 6 and losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert json.loads((run / "summary.json").read_text())["training"]["resumed_at"] >= 1
    assert not list(run.glob(".stopped-*")) and (run / "model" / "config.json").is_file()
    ours, theirs = (load_file(path / "model" / "model.safetensors") for path in (run, alone))
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(weights, theirs[name], atol=1e-4) for name, weights in ours.items())


def test_a_loop_is_a_job_that_submits_its_stages(slurm: Slurm, tmp_path: Path) -> None:
    keys = [
        QUIET, "tasks.n=3", "search.simulations=4", "search.max_steps=8", "held_out.n=2", "held_out.attempts=1",
        "sft.optimizer.max_updates=1", "dpo.enabled=false", "sft.batch.rows=4", "threads=1",
    ]  # fmt: skip
    run = tmp_path / "run"
    jobs = [*JOBS, "slurm.shards=1", "slurm.gpus=0", f"slurm.python={forked.python()}"]
    jobs += ["slurm.train_gpus=0", "slurm.train_cpus=1", "slurm.train_memory=100M"]
    example = ["bash", str(ROOT / "examples" / "slurm_iteration.sh"), str(run), *keys, *jobs]
    path = forked.path()
    done = subprocess.run(example, cwd=ROOT, env={**slurm.env, "PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    out = done.stdout
    assert out.startswith("job ") and len(out.split()) == 2
    until(lambda: manifest(run / "iteration-0" / "evaluate_incumbent").get("command"), "the first stage begins")
    assert "iteration-0/evaluate_incumbent" in slurm.done("status", f"run_dir={run}")
    until(lambda: slurm.jobs()[out.split()[1]] not in ("PENDING", "RUNNING", "COMPLETING"), "the controller ends")
    log = next((run / "slurm").glob("*.log")).read_text()
    assert manifest(run)["status"] == "done", log
    stages = [path.parent for path in (run / "iteration-0").glob("*/manifest.json")]
    assert {stage.name for stage in stages} == {"evaluate_incumbent", "build_prefs", "train_sft", "evaluate"}
    for stage in stages:
        assert manifest(stage)["status"] == "done" and list((stage / "slurm").glob("*.sh")), stage
        if stage.name != "train_sft":
            assert len(list((stage / "shards").glob("*/manifest.json"))) == 1
    assert pq.read_table(run / "iteration-0" / "evaluate_incumbent" / "attempts").num_rows > 0
    assert (run / "model" / "config.json").is_file()
