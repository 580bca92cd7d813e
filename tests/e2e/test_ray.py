"""Commands on a real Ray of two raylets: workers, a raylet, the driver are killed, nothing is lost or done twice."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from offline_agent.store.columns import PAIR_TABLES
from tests.helpers import ray as ray_kit
from tests.helpers.ray import Started, TwoRaylets, digests, run

ray_kit.require_ray()

KEYS = [
    "env=tests.helpers.ray:SlowShop", "env.seconds=0.03", "policy=noisy", "tasks.n=8", "search.simulations=12",
    "tracking.uri=null", "limits.workers=2", "pairs.kinds=[step,trajectory]",
]  # fmt: skip
PLAYED = [
    "env=tests.helpers.ray:SlowShop", "env.seconds=0.01", "policy=noisy", "tasks.n=6", "attempts=3", "resamples=200",
    "tracking.uri=null", "limits.workers=2", "test_time.algorithm=mcts", "test_time.simulations=8",
]  # fmt: skip
ALL = ("trees", *PAIR_TABLES, "filtered", "trajectories")


@pytest.fixture(scope="module")
def raylets() -> Iterator[TwoRaylets]:
    made = TwoRaylets()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    done = run("build_prefs", run_dir, *KEYS)
    assert done.returncode == 0, done.stderr
    return run_dir


def spread(raylets: TwoRaylets, *keys: str) -> list[str]:
    return ["launcher=ray", f"ray.address={raylets.address}", "ray.workers=2", *keys]


def records(one: Started) -> list[dict[str, Any]]:
    """The records of all shards."""
    files = sorted(one.run_dir.glob("shards/*/events/0000.jsonl"))
    lines = [line for file in files for line in file.read_text().splitlines(keepends=True)[1:]]
    return [json.loads(line) for line in lines if line.endswith("\n")]


def nothing_doubled(one: Started) -> None:
    last: Counter[str] = Counter()
    for record in records(one):
        assert record["t"] == last[record["tree"]], record["tree"]
        last[record["tree"]] += 1
    assert len(last) == 8


def test_a_ray_of_its_own_makes_the_local_tables(whole: Path, tmp_path: Path) -> None:
    done = run("build_prefs", tmp_path / "run", *KEYS, "launcher=ray", "ray.workers=2")
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "run", *ALL) == digests(whole, *ALL)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["shards"]["count"] == 2


def test_a_worker_a_raylet_and_the_driver_are_killed(whole: Path, raylets: TwoRaylets, tmp_path: Path) -> None:
    one = Started("build_prefs", tmp_path / "run", *KEYS, *spread(raylets))
    one.until(lambda: len(records(one)) > 10, "it had begun")
    one.until(raylets.workers, "a worker was at work")[0].send_signal(signal.SIGKILL)
    one.until(lambda: raylets.workers(second=True), "the second raylet had work")
    raylets.kill_second()
    try:
        before = len(records(one))
        one.until(lambda: len(records(one)) > before + 5, "it went on")
        one.process.send_signal(signal.SIGKILL)
        one.end()
    finally:
        raylets.mend()
    again = Started("build_prefs", tmp_path / "run", *KEYS, *spread(raylets))
    assert again.end() == 0, again.said()
    assert digests(tmp_path / "run", *ALL) == digests(whole, *ALL)
    nothing_doubled(one)


def test_an_evaluation_plays_what_one_process_plays(raylets: TwoRaylets, tmp_path: Path) -> None:
    for name, more in (("here", []), ("there", spread(raylets))):
        done = run("evaluate", tmp_path / name, *PLAYED, *more)
        assert done.returncode == 0, done.stderr
    ours, theirs = (pq.read_table(tmp_path / name / "attempts").to_pylist() for name in ("there", "here"))
    assert ours == theirs and len(ours) == 6 * (3 + 1 + 1)
    summary = json.loads((tmp_path / "there" / "summary.json").read_text())
    assert summary["this_session"]["candidate"]["requests"] == 0  # all of them were played in the shards
    assert digests(tmp_path / "there", "trajectories") == digests(tmp_path / "here", "trajectories")


def test_a_task_that_kills_its_process_fails_its_shard_alone(raylets: TwoRaylets, tmp_path: Path) -> None:
    keys = [key.replace("SlowShop", "PoisonShop") for key in KEYS]
    done = run("build_prefs", tmp_path / "run", *keys, *spread(raylets, "ray.deaths=1"))
    assert done.returncode == 1
    assert "1 of 2 shards failed: 1; the first: " in done.stderr and "the process of 1 ended on" in done.stderr
    log = (tmp_path / "run" / "shards" / "0001.log").read_text()
    assert log.count("was killed by SIGKILL") == 2, "it was tried again once"
    assert len(digests(tmp_path / "run" / "shards" / "0000", "trees")) == 4


def test_no_room_no_answer_and_no_ray(tmp_path: Path) -> None:
    done = run("build_prefs", tmp_path / "run", *KEYS, "launcher=ray", "ray.gpus=1")
    assert done.returncode == 1 and "1 GPUs on one machine" in done.stderr
    done = run("build_prefs", tmp_path / "other", *KEYS, "launcher=ray", "ray.address=127.0.0.1:1")
    assert done.returncode == 2 and not (tmp_path / "other").exists()
    assert "ray.address: nothing answers at 127.0.0.1:1" in done.stderr and "ray start --head" in done.stderr
    script = (
        "import sys; sys.modules['ray'] = None\n"
        "from offline_agent.pipelines.entry import main\n"
        "from offline_agent.pipelines.build_prefs import COMMAND\n"
        f"sys.exit(main(COMMAND, ['launcher=ray', 'policy=noisy', 'run_dir={tmp_path / 'run'}']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=ray_kit.ENV)
    assert done.returncode == 2 and "launcher=ray needs Ray, which is not installed here" in done.stderr
