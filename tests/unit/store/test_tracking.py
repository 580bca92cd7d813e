from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offline_agent.errors import Interruption
from offline_agent.store import mlflow_worker as worker
from offline_agent.store import tracking
from offline_agent.store.tracking import TrackedRun, flatten, open_tracker
from tests.helpers import forked

ROOT = Path(__file__).parents[3]


def _track(uri: str | None, said: list[str], run_id: str = "r1", parent: str | None = None) -> Any:
    params = {"seed": 0, "search": {"n": 3, "critic": None}, "long": "x" * 9000}
    run = TrackedRun("a run", run_id, params, {"env": "shop"}, parent)
    return open_tracker(uri, "project", run, said.append)


@pytest.fixture(autouse=True)
def unannounced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the announcement of a wait, which depends on the load of the machine; fork what imports MLflow."""
    monkeypatch.setattr(tracking, "_QUIETLY", 1e9)
    monkeypatch.setattr(sys, "executable", str(forked.python()))


def test_without_a_uri_nothing_is_tracked() -> None:
    said: list[str] = []
    tracker = _track(None, said)
    tracker.metrics({"loss": 1})
    tracker.close()
    assert said == []


def test_nested_keys_are_joined() -> None:
    assert dict(flatten({"a": {"b": 1, "c": {"d": None}}, "e": "x", "f": [1, "y"], "g": {}})) == {
        "a.b": "1", "a.c.d": "null", "e": "x", "f": '[1, "y"]', "g": "{}",
    }  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """One run with a run below it, begun, ended, and gone on with; making MLflow's tables takes seconds."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(tracking, "_QUIETLY", 1e9)
        monkeypatch.setattr(sys, "executable", str(forked.python()))
        yield _stored(tmp_path_factory)


def _stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{folder}/sub/mlflow.db"
    said: list[str] = []
    early = _track(uri, said, "r0", parent="r1")
    early.close()
    tracker = _track(uri, said)
    tracker.metrics({"loss": 2, "unknown": None}, step=1)
    tracker.metrics({"reasons/fewer than # rollouts (50%)": 3, "//no/../path/": 4})  # MLflow refuses such names
    tracker.metrics({f"m{number}": 1.0 for number in range(1200)}, step=2)
    (folder / "rows.txt").write_text("rows")
    tracker.artifact(folder / "rows.txt", "samples")
    tracker.close("FAILED")
    inner = _track(uri, said, "r2", parent="r1")
    inner.close()
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
    by_key = {run.data.tags["offline_agent.run_id"]: run for run in runs}
    early, run, inner = (by_key[key] for key in ("r0", "r1", "r2"))
    assert len(runs) == 3 and run.info.status == "FINISHED"
    assert run.data.params["search.n"] == "3" and len(run.data.params["long"]) == 6000
    assert run.data.tags["env"] == "shop" and run.data.tags["late"] == "yes"
    assert run.data.metrics["loss"] == 1 and run.data.metrics["m1199"] == 1 and "unknown" not in run.data.metrics
    assert run.data.metrics["reasons/fewer than _ rollouts _50__"] == 3 and run.data.metrics["no/_/path"] == 4
    assert [point.step for point in client.get_metric_history(run.info.run_id, "loss")] == [1, 2]
    assert [file.path for file in client.list_artifacts(run.info.run_id, "samples")] == ["samples/rows.txt"]
    # one reached MLflow before the run above it, as where both start at once
    assert early.data.tags["mlflow.parentRunId"] == inner.data.tags["mlflow.parentRunId"] == run.info.run_id
    shown = sorted(entry.name for entry in (folder / "sub").iterdir() if not entry.name.startswith("."))
    assert shown == ["mlflow.db", "mlruns"] and not list((folder / "sub").glob(".*.tmp*"))


def test_a_job_that_is_killed_leaves_no_run_that_seems_to_go_on(store: tuple[Path, list[str]]) -> None:
    folder, _ = store
    script = (
        "import os, time\nfrom offline_agent.store.tracking import TrackedRun, open_tracker\n"
        "run = TrackedRun('killed', 'k', {}, {})\n"
        f"t = open_tracker('sqlite:///{folder}/sub/mlflow.db', 'project', run, print)\n"
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


@pytest.mark.parametrize("uri", ["sqlite:////proc/none/mlflow.db", "nonsense://x"])
def test_a_store_that_cannot_be_opened_is_one_answer(uri: str) -> None:
    opening = {"op": "open", "uri": uri, "experiment": "project"}
    lines = [json.dumps(one) + "\n" for one in (opening, *[{"op": "metrics"}] * 9)]
    answers = io.StringIO()
    assert worker.serve(io.StringIO("".join(lines)), answers) == 0
    assert answers.getvalue().count("\n") == 1 and ": " in answers.getvalue()


def test_a_server_that_never_answers_does_not_hold_the_job_up(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr(tracking, "_AT_MOST", 3.0)

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        said: list[str] = []
        tracker = _track(f"http://127.0.0.1:{listener.getsockname()[1]}", said)
        tracker.close()
    assert "still busy" in said[-1] and len(said) <= 2


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


BUSY = """#!{python}
import sys, time
begun = time.monotonic()
while time.process_time() < 2.0 or time.monotonic() - begun < 3.0:
    pass
"""


def _busy(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    program = folder / "busy"
    program.write_text(BUSY.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


def test_a_tracking_process_that_works_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _busy(monkeypatch, tmp_path)
    monkeypatch.setattr(tracking, "_QUIETLY", 0.5)
    said: list[str] = []
    _track("sqlite:///x.db", said).close()
    assert len(said) == 1 and "waiting for MLflow" in said[0] and "Ctrl-C" in said[0]


def test_a_signal_leaves_the_wait_for_mlflow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def leave(number: int, frame: object) -> None:
        raise Interruption("left")

    _busy(monkeypatch, tmp_path)
    said: list[str] = []
    tracker = _track("sqlite:///x.db", said)
    before = signal.signal(signal.SIGALRM, leave)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(Interruption):
            tracker.close()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert tracker._link._process.poll() is not None
    assert len(said) == 1 and "not everything was sent" in said[0]


THREE = """
import io, json, os, sys
import mlflow.store.tracking.sqlalchemy_store
from offline_agent.store.mlflow_worker import serve
folder, (told, go) = sys.argv[1], os.pipe()
opening = {"op": "open", "uri": f"sqlite:///{folder}/mlflow.db", "experiment": "project"}
for number in map(str, range(3)):
    if os.fork() == 0:
        run = [{"op": "start", "name": f"run {number}", "params": {"n": number}, "tags": {}, "at": 1}]
        run += [{"op": "metrics", "values": {"x": float(step)}, "step": step, "at": 1} for step in range(3)]
        run += [{"op": "end", "status": "FINISHED", "at": 2}]
        lines = [json.dumps(one) + "\\n" for one in (opening, *({**one, "key": number} for one in run))]
        os.close(go)
        os.read(told, 1)
        serve(io.StringIO("".join(lines)), sys.stdout)
        sys.exit()
os.close(go)
for number in range(3):
    os.wait()
"""


def test_three_runs_that_begin_at_once_on_a_fresh_store_are_all_in_it(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", THREE, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("project").experiment_id])
    assert sorted(run.info.run_name for run in runs) == [f"run {number}" for number in range(3)]
    assert {run.info.status for run in runs} == {"FINISHED"} and {run.data.metrics["x"] for run in runs} == {2.0}


def test_a_process_that_is_killed_while_it_makes_the_store_leaves_none(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom mlflow.store.db import utils\n"
        "from offline_agent.store.mlflow_worker import create\n"
        "utils._upgrade_db = lambda engine: os.kill(os.getpid(), 9)\n"  # tables are made, migrations are not
        "create(Path(sys.argv[1]))"
    )
    file = tmp_path / "mlflow.db"
    done = subprocess.run([sys.executable, "-c", code, str(file)], env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == -9 and not file.exists() and list(tmp_path.glob(".mlflow.db.tmp*"))
    worker.create(file)
    assert file.exists() and not list(tmp_path.glob(".mlflow.db.tmp*"))
