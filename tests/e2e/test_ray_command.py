"""A whole pipeline on a node of a Ray cluster: its output and status, its end when it is stopped or its worker dies."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.helpers import ray as ray_kit
from tests.helpers.ray import Started, TwoRaylets, run

ray_kit.require_ray()

KEYS = [
    "tracking.uri=null", "threads=1", "tasks.n=8", "scratch.layers=1", "scratch.hidden_size=16", "scratch.heads=2",
    "scratch.key_value_heads=1", "scratch.vocabulary=500", "demonstrations.noise=[0.0,0.3]",
    "demonstrations.per_task=2", "batch.rows=4", "optimizer.epochs=20", "checkpoints.every=3",
]  # fmt: skip


@pytest.fixture(scope="module")
def raylets() -> Iterator[TwoRaylets]:
    made = TwoRaylets()
    yield made
    made.stop()


def curve(one: Started) -> list[tuple[int, float]]:
    return [(record["update"], record["loss"]) for record in one.records()]


def test_a_training_is_stopped_its_worker_killed_and_it_ends_as_here(raylets: TwoRaylets, tmp_path: Path) -> None:
    here = Started("train_sft", tmp_path / "here", *KEYS)
    assert here.end() == 0, here.said()
    keys = [*KEYS, "launcher=ray", f"ray.address={raylets.address}"]
    there = Started("train_sft", tmp_path / "there", *keys)
    there.until(lambda: len(curve(there)) > 4, "it had begun")
    there.process.send_signal(signal.SIGTERM)
    assert there.end() == 1
    assert "stopped by SIGTERM. To go on: " in there.said(), "the node's own word"
    assert f"run the same command again with run_dir={tmp_path / 'there'} to go on" in there.said()
    before = len(curve(there))
    assert 4 < before < len(curve(here))
    there = Started("train_sft", tmp_path / "there", *keys)
    there.until(lambda: len(curve(there)) > before + 3, "it went on")
    (worker,) = there.until(raylets.workers, "its worker was at work")
    (child,) = [one for one in worker.children() if "train_sft" in " ".join(one.cmdline())]
    worker.send_signal(signal.SIGKILL)
    psutil.wait_procs([child], timeout=ray_kit.PATIENCE)
    assert not child.is_running(), "it outlived its worker, and two would write"
    assert there.end() == 0, there.said()
    assert "worker 0 on " in there.said() and "died: " in there.said() and "going on with" in there.said()
    assert curve(there) == curve(here)
    assert "Written to" in there.said() or str(tmp_path / "there") in there.said().splitlines()[-1]
    manifest = json.loads((tmp_path / "there" / "manifest.json").read_text())
    assert manifest["status"] == "done"
    other = run("train_sft", tmp_path / "there", *keys, "optimizer.epochs=21")
    assert other.returncode == 2 and "optimizer.epochs" in other.stderr, other.stderr


def test_without_ray_the_request_is_wrong(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['ray'] = None\n"
        "from offline_agent.pipelines.entry import main\n"
        "from offline_agent.pipelines.build_prefs import COMMAND\n"
        f"sys.exit(main(COMMAND, ['launcher=ray', 'policy=noisy', 'run_dir={tmp_path / 'run'}']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=ray_kit.ENV)
    assert done.returncode == 2 and not (tmp_path / "run").exists()
    assert "launcher=ray needs Ray, which is not installed here" in done.stderr and "offline-agent[ray]" in done.stderr
