"""Searches and evaluations on a real Ray of two raylets: workers, a raylet, the driver are killed, nothing is lost."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from offline_agent.store.columns import PAIR_TABLES
from tests.helpers import ray as ray_kit
from tests.helpers.ray import POISON, Started, TwoRaylets, digests, run

ray_kit.require_ray()

KEYS = [
    "env=tests.helpers.ray:SlowShop", "env.seconds=0.03", "policy=noisy", "tasks.n=8", "search.simulations=12",
    "tracking.uri=null", "limits.workers=2", "pairs.kinds=[step,trajectory]",
]  # fmt: skip
PLAYED = [
    "env=tests.helpers.ray:SlowShop", "env.seconds=0.03", "policy=noisy", "tasks.n=6", "attempts=3", "resamples=200",
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


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("played") / "run"
    done = run("evaluate", run_dir, *PLAYED)
    assert done.returncode == 0, done.stderr
    return run_dir


def spread(raylets: TwoRaylets, *keys: str) -> list[str]:
    return ["launcher=ray", f"ray.address={raylets.address}", "ray.workers=2", *keys]


def summary(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "summary.json").read_text())


def nothing_doubled(one: Started) -> None:
    """Every simulation of every tree is in the log once, in order."""
    last: Counter[str] = Counter()
    for record in one.records():
        assert record["t"] == last[record["tree"]], record["tree"]
        last[record["tree"]] += 1
    assert len(last) == 8


def test_a_ray_of_its_own_finds_the_local_trees(whole: Path, tmp_path: Path) -> None:
    done = run("build_prefs", tmp_path / "run", *KEYS, "launcher=ray", "ray.workers=2")
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "run", *ALL) == digests(whole, *ALL)
    ours, theirs = summary(tmp_path / "run"), summary(whole)
    for name in ("requests", "calls_executed", "states_copied", "generated_tokens", "environment_faults"):
        assert ours["this_session"][name] == theirs["this_session"][name], name
    workers = ours["this_session"]["ray"]["workers"]
    assert sum(worker["done"] for worker in workers) == 8 and len(workers) == 2
    assert sum(worker["simulations"] for worker in workers) == ours["simulations"]


def test_a_worker_is_killed_midway(whole: Path, raylets: TwoRaylets, tmp_path: Path) -> None:
    one = Started("build_prefs", tmp_path / "run", *KEYS, *spread(raylets))
    one.until(lambda: len(one.records()) > 20, "it had begun")
    one.until(raylets.workers, "a worker was at work")[0].send_signal(signal.SIGKILL)
    assert one.end() == 0, one.said()
    assert "died: " in one.said()
    assert digests(tmp_path / "run", *ALL) == digests(whole, *ALL)
    nothing_doubled(one)
    session = summary(tmp_path / "run")["this_session"]["ray"]
    assert sum(worker["deaths"] for worker in session["workers"]) == 1 and session["tasks_handed_again"] >= 1


def test_a_raylet_is_killed_midway(whole: Path, raylets: TwoRaylets, tmp_path: Path) -> None:
    one = Started("build_prefs", tmp_path / "run", *KEYS, *spread(raylets))
    one.until(lambda: len(one.records()) > 10, "it had begun")
    one.until(lambda: raylets.workers(second=True), "the second raylet had work")
    raylets.kill_second()
    try:
        assert one.end() == 0, one.said()
    finally:
        raylets.mend()
    assert "died: " in one.said()
    assert digests(tmp_path / "run", *ALL) == digests(whole, *ALL)
    nothing_doubled(one)


def test_the_driver_is_killed_and_the_run_goes_on_here_or_there(
    whole: Path, raylets: TwoRaylets, tmp_path: Path
) -> None:
    one = Started("build_prefs", tmp_path / "run", *KEYS, *spread(raylets))
    one.until(lambda: len(one.records()) > 20, "it had begun")
    one.process.send_signal(signal.SIGKILL)
    one.end()
    before = len(one.records())
    again = Started("build_prefs", tmp_path / "run", *KEYS, *spread(raylets))
    again.until(lambda: len(again.records()) > before + 10, "it went on")
    again.process.send_signal(signal.SIGTERM)
    assert again.end() == 1 and "stopped by SIGTERM. To go on: " in again.said()
    done = run("build_prefs", tmp_path / "run", *KEYS)
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "run", *ALL) == digests(whole, *ALL)
    nothing_doubled(one)


def test_an_evaluation_with_a_worker_killed_midway(played: Path, raylets: TwoRaylets, tmp_path: Path) -> None:
    one = Started("evaluate", tmp_path / "run", *PLAYED, *spread(raylets))
    one.until(lambda: len(one.records()) > 4, "it had begun")
    one.until(raylets.workers, "a worker was at work")[0].send_signal(signal.SIGKILL)
    assert one.end() == 0, one.said()
    ours, theirs = (pq.read_table(path / "attempts").to_pylist() for path in (tmp_path / "run", played))
    assert ours == theirs and len(ours) == 6 * (3 + 1 + 1)
    assert digests(tmp_path / "run", "trajectories") == digests(played, "trajectories")
    keys = [tuple(record["attempt"]) for record in one.records() if "attempt" in record]
    assert len(keys) == len(set(keys)) == len(ours)
    assert summary(tmp_path / "run")["modes"] == summary(played)["modes"]
    assert summary(tmp_path / "run")["this_session"]["candidate"]["ray"]["tasks_handed_again"] >= 1


def test_a_task_that_kills_every_worker_is_given_up(raylets: TwoRaylets, tmp_path: Path) -> None:
    keys = [key.replace("SlowShop", "PoisonShop") for key in KEYS]
    done = run("build_prefs", tmp_path / "run", *keys, *spread(raylets, "ray.deaths=2"))
    assert done.returncode == 0, done.stderr
    refused = [json.loads(line) for line in (tmp_path / "run" / "quarantine.jsonl").read_text().splitlines()]
    (tree,) = [line for line in refused if line["kind"] == "tree"]
    assert tree["name"] == POISON and "2 workers died while they had nothing else" in tree["reason"]
    local = run("build_prefs", tmp_path / "local", *keys)
    assert local.returncode == 0, local.stderr
    ours, theirs = digests(tmp_path / "run", "trees"), digests(tmp_path / "local", "trees")
    assert {name for name in ours if ours[name] != theirs[name]} == {f"trees/{POISON}.json.gz"}


def test_a_model_in_every_worker(raylets: TwoRaylets, tmp_path: Path) -> None:
    keys = ["env=shop", "policy=hf", "tasks.n=3", "search.simulations=4", "search.max_steps=4", "tracking.uri=null"]
    for name, more in (("here", []), ("there", spread(raylets))):
        done = run("build_prefs", tmp_path / name, *keys, *more)
        assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "there", "trees") == digests(tmp_path / "here", "trees")
    ours, theirs = (summary(tmp_path / name)["this_session"] for name in ("there", "here"))
    assert ours["generated_tokens"] == theirs["generated_tokens"] > 0


def test_no_room_and_no_answer(raylets: TwoRaylets, tmp_path: Path) -> None:
    done = run("build_prefs", tmp_path / "run", *KEYS, *spread(raylets, "ray.gpus=1", "ray.start_seconds=2"))
    assert done.returncode == 1
    assert "no worker was ready within 2 s" in done.stderr and "1 GPUs on one machine" in done.stderr
    done = run("build_prefs", tmp_path / "other", *KEYS, "launcher=ray", "ray.address=127.0.0.1:1")
    assert done.returncode == 2 and not (tmp_path / "other").exists()
    assert "ray.address: nothing answers at 127.0.0.1:1" in done.stderr and "ray start --head" in done.stderr
