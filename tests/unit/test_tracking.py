from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from offline_agent.tracking import NullTracker, flatten, open_tracker


def _track(uri: str | None, said: list[str], run_id: str = "r1", **more: Any) -> Any:
    params = {"seed": 0, "search": {"n": 3, "critic": None}, "long": "x" * 9000}
    tags = {"env": "shop"}
    return open_tracker(uri, "project", "a run", run_id=run_id, params=params, tags=tags, say=said.append, **more)


def test_without_a_uri_nothing_is_tracked() -> None:
    said: list[str] = []
    tracker = _track(None, said)
    assert isinstance(tracker, NullTracker)
    tracker.child("c").metrics({"x": 1.0})
    tracker.close()
    assert said == []


def test_nested_keys_are_joined() -> None:
    assert dict(flatten({"a": {"b": 1, "c": {"d": None}}, "e": "x", "f": [1, "y"], "g": {}})) == {
        "a.b": "1", "a.c.d": "null", "e": "x", "f": '[1, "y"]', "g": "{}",
    }  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """One run with a child, begun, ended, and gone on with; making MLflow's tables takes seconds."""
    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{folder}/sub/mlflow.db"
    said: list[str] = []
    tracker = _track(uri, said)
    tracker.metrics({"loss": 2, "unknown": None}, step=1)
    tracker.metrics({f"m{number}": 1.0 for number in range(1200)}, step=2)
    (folder / "rows.txt").write_text("rows")
    tracker.artifact(folder / "rows.txt", "samples")
    child = tracker.child("inner", {"k": 1})
    child.metrics({"reward": 0.5}, step=1)
    child.close()
    tracker.close("FAILED")
    again = _track(uri, said)
    again.metrics({"loss": 1}, step=2)
    again.tags({"late": "yes"})
    again.close()
    return folder, said


def _client(folder: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{folder}/sub/mlflow.db")


def test_a_run_is_in_mlflow_once_though_it_was_resumed(store: tuple[Path, list[str]]) -> None:
    folder, said = store
    assert said == []
    client = _client(folder)
    experiment = client.get_experiment_by_name("project")
    runs = client.search_runs([experiment.experiment_id])
    inner, run = sorted(runs, key=lambda run: run.info.run_name != "inner")
    assert len(runs) == 2 and run.info.status == "FINISHED"
    assert run.data.params["search.n"] == "3" and len(run.data.params["long"]) == 6000
    assert run.data.tags["env"] == "shop" and run.data.tags["late"] == "yes"
    assert run.data.metrics["loss"] == 1 and run.data.metrics["m1199"] == 1 and "unknown" not in run.data.metrics
    assert [point.step for point in client.get_metric_history(run.info.run_id, "loss")] == [1, 2]
    assert [file.path for file in client.list_artifacts(run.info.run_id, "samples")] == ["samples/rows.txt"]
    assert inner.data.tags["mlflow.parentRunId"] == run.info.run_id and inner.data.metrics == {"reward": 0.5}
    assert sorted(entry.name for entry in (folder / "sub").iterdir()) == ["mlflow.db", "mlruns"]


def test_a_job_that_is_killed_leaves_no_run_that_seems_to_go_on(store: tuple[Path, list[str]]) -> None:
    folder, _ = store
    script = (
        "import os, time\nfrom offline_agent.tracking import open_tracker\n"
        f"t = open_tracker('sqlite:///{folder}/sub/mlflow.db', 'project', 'killed',\n"
        "                 run_id='k', params={}, tags={}, say=print)\n"
        "t.metrics({'x': 1.0})\ntime.sleep(0.5)\nprint(t._link._process.pid, flush=True)\nos.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    worker = int(done.stdout)
    for _ in range(600):
        if not Path(f"/proc/{worker}").exists() or "Z" in Path(f"/proc/{worker}/stat").read_text().split()[2]:
            break
        __import__("time").sleep(0.1)
    client = _client(folder)
    experiment = client.get_experiment_by_name("project")
    (run,) = client.search_runs([experiment.experiment_id], "attributes.run_name = 'killed'")
    assert run.info.status == "KILLED" and run.data.metrics == {"x": 1.0}


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", "sqlite:////proc/none/mlflow.db", "nonsense://x"])
def test_unreachable_tracking_is_said_once_and_the_job_goes_on(uri: str) -> None:
    said: list[str] = []
    tracker = _track(uri, said)
    for step in range(50):
        tracker.metrics({"x": 1.0}, step)
    tracker.child("c").close()
    tracker.close()
    assert len(said) == 1 and "tracking.uri" in said[0] and "the job goes on" in said[0]


def test_a_server_that_never_answers_does_not_hold_the_job_up() -> None:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        said: list[str] = []
        tracker = _track(f"http://127.0.0.1:{listener.getsockname()[1]}", said, timeout=3.0)
        tracker.close()
    assert len(said) == 1


def test_a_tracking_process_that_dies_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    said: list[str] = []
    tracker = _track("sqlite:///x.db", said)
    tracker.metrics({"x": 1.0})
    tracker.close()
    assert len(said) == 1 and "did not start" in said[0]
    monkeypatch.setattr(sys, "executable", "/bin/false")
    said.clear()
    tracker = _track("sqlite:///x.db", said)
    tracker.metrics({"x": 1.0})
    tracker.close()
    assert len(said) == 1 and not os.path.exists("x.db")
