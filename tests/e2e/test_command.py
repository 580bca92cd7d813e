from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from offline_agent.store.files import write_json
from tests.helpers import forked

ROOT = Path(__file__).resolve().parents[2]
PIPELINE = ROOT / "tests" / "helpers" / "tiny_pipeline.py"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def _start(folder: Path, *arguments: str) -> forked.Process:
    return forked.Process([sys.executable, str(PIPELINE), *arguments], cwd=folder, env=ENVIRONMENT)


def _call(folder: Path, *arguments: str) -> tuple[int, str, str]:
    process = _start(folder, *arguments)
    out, err = process.communicate()
    return process.returncode, out, err


def _bytes(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_help_lists_keys_and_sections_and_writes_nothing(tmp_path: Path) -> None:
    status, out, err = _call(tmp_path, "--help", "count=nonsense")
    assert (status, err) == (0, "") and not list(tmp_path.iterdir())
    for word in ("run_dir", "seed", "tracking", "launcher", "env", "count", "--print-config"):
        assert re.search(rf"^ *{re.escape(word)}\b|^{re.escape(word)} ", out, re.M), word
    assert re.search(r"^count +integer >= 1 +3 +how far to count$", out, re.M)
    status, out, err = _call(tmp_path, "--help", "tracking")
    assert (status, err) == (0, "") and "tracking.uri" in out and "count" not in out
    status, out, err = _call(tmp_path, "--help", "trackin")
    assert (status, out) == (2, "") and "Did you mean 'tracking'?" in err


LIGHT = ["build_prefs", "import_logs", "rejudge", "train_sft", "train_dpo", "evaluate", "iterate", "refine_grpo"]
HEAVY = {"torch", "transformers", "mlflow", "datasets", "trl", "openai", "pyarrow", "networkx"}


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import importlib, sys; sys.argv[1:] = ['--help']\n"
        f"for name in {['tests.helpers.tiny_pipeline', *(f'offline_agent.pipelines.{name}' for name in LIGHT)]}:\n"
        "    module = importlib.import_module(name)\n"
        "    assert module.main(module.COMMAND) == 0\n"
        f"    heavy = {HEAVY} | ({{'numpy'}} if name.startswith('tests.') else set())\n"
        "    if found := heavy & set(sys.modules): sys.exit(f'{name} imported: {found}')"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_fault_at_once_status_2_nothing_written(tmp_path: Path) -> None:
    status, out, err = _call(tmp_path, "--confg", "cuont=3", "count=0")
    assert (status, out) == (2, "") and "--confg: unknown option" in err and "Did you mean '--config'?" in err
    status, out, err = _call(tmp_path, "cuont=3", "count=0", "seed=x", "launcher=rai")
    assert (status, out) == (2, "") and "4 faults" in err
    for line in (
        "cuont: unknown key. Did you mean 'count'?",
        "count: got 0, allowed: integer >= 1.",
        "seed: got 'x', allowed: integer >= 0 and <= 9223372036854775807.",
        "launcher: got 'rai', allowed: local | ray | slurm.",
    ):
        assert line in err
    status, _, err = _call(tmp_path, "env.wrong=1", "env.worse=2")
    assert status == 2 and "env.wrong" in err and "env.worse" in err
    assert not list(tmp_path.iterdir())


def test_the_printed_configuration_is_the_resolved_one(tmp_path: Path) -> None:
    status, out, _ = _call(tmp_path, "--print-config", "count=5", "env=other")
    assert status == 0 and not list(tmp_path.iterdir())
    assert yaml.safe_load(out)["count"] == 5
    (tmp_path / "c.yaml").write_text(out)
    assert _call(tmp_path, "--config", "c.yaml", "--print-config")[1] == out
    assert _call(tmp_path, "--config=c.yaml", "--print-config")[1] == out


def test_a_run_writes_its_directory_and_says_where(tmp_path: Path) -> None:
    status, out, err = _call(tmp_path, "tracking.uri=null")
    assert status == 0, err
    (run,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"tiny-\d{8}-\d{6}", run.name)
    assert out == f"counted 3, written to runs/{run.name}\nreport: runs/{run.name}/report.html\n"
    assert f"writing to runs/{run.name}" in err
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["status"] == "done" and manifest["config"]["run_dir"] == f"runs/{run.name}"
    assert manifest["seeds"] == {"run": 0} and manifest["hashes"]["task_set"] == "abc"
    assert json.loads((run / "summary.json").read_text())["counted"] == 3
    assert sorted(path.name for path in run.iterdir() if path.name[0] != ".") == [
        "events", "manifest.json", "quarantine.jsonl", "report.html", "summary.json", "trees",
    ]  # fmt: skip
    status, out, err = _call(tmp_path, "tracking.uri=null")
    assert status == 0 and len(list((tmp_path / "runs").iterdir())) == 2  # a new name each time


def test_the_same_command_goes_on_and_another_is_refused(tmp_path: Path) -> None:
    assert _call(tmp_path, "run_dir=r", "tracking.uri=null")[0] == 0
    status, _, err = _call(tmp_path, "run_dir=r", "tracking.uri=null")
    assert status == 0 and "going on with r" in err
    before = _bytes(tmp_path / "r")
    status, out, err = _call(tmp_path, "run_dir=r", "count=4", "seed=1")
    assert (status, out) == (2, "") and "count: the run has 3, asked for 4" in err and "seed: the run has 0" in err
    after = {path: path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file()}
    assert {p: b for p, b in after.items() if p.name != ".lock"} == {
        p: b for p, b in before.items() if p.name != ".lock"
    }


@pytest.mark.parametrize(
    ("fail", "says"),
    [("data", "a/file: broken, mend it"), ("bug", "ZeroDivisionError: a bug"), ("config", "too late")],
)
def test_a_failure_while_running_is_status_1_and_can_be_gone_on_from(tmp_path: Path, fail: str, says: str) -> None:
    status, out, err = _call(tmp_path, "run_dir=r", f"fail={fail}", "tracking.uri=null")
    assert (status, out) == (1, "") and says in err
    assert ("Traceback" in err) == (fail == "bug")
    assert json.loads((tmp_path / "r" / "manifest.json").read_text())["status"] == "failed"
    for _ in range(2):
        status, out, err = _call(tmp_path, "run_dir=r", f"fail={fail}", "tracking.uri=null")
    assert status == 1
    assert _call(tmp_path, "run_dir=r", f"fail={fail}", "tracking.uri=null")[0] == 0  # all counted by now


def test_run_dir_alone_goes_on_with_the_configuration_of_the_run(tmp_path: Path) -> None:
    assert _call(tmp_path, "run_dir=r", "count=5", "seed=3", "tracking.uri=null")[0] == 0
    status, out, err = _call(tmp_path, "run_dir=r")
    assert status == 0 and out.startswith("counted 5, written to r\n") and "going on with r" in err
    assert yaml.safe_load(_call(tmp_path, "run_dir=r", "--print-config")[1])["seed"] == 3
    status, _, err = _call(tmp_path, "run_dir=r", "count=6", "tracking.uri=null")
    assert status == 2 and "go on with its own configuration: python -m offline_agent.pipelines.tiny run_dir=r" in err
    manifest = tmp_path / "r" / "manifest.json"
    write_json(manifest, json.loads(manifest.read_text().replace('"seed": 3', '"seed": "***"')))
    status, _, err = _call(tmp_path, "run_dir=r")
    assert status == 2 and "without its secrets" in err


@pytest.mark.parametrize(("run_dir", "says"), [("runs/frist", "Did you mean 'first'"), ("runs/other", "other, not of")])
def test_run_dir_alone_begins_no_run(tmp_path: Path, run_dir: str, says: str) -> None:
    for name in ("first", "other"):
        assert _call(tmp_path, f"run_dir=runs/{name}", "tracking.uri=null")[0] == 0
    other = tmp_path / "runs" / "other" / "manifest.json"
    write_json(other, {**json.loads(other.read_text()), "command": "other"})
    before = _bytes(tmp_path)
    status, out, err = _call(tmp_path, f"run_dir={run_dir}")
    assert (status, out) == (2, "") and says in err and _bytes(tmp_path) == before


def test_a_run_does_not_go_on_with_another_source(tmp_path: Path) -> None:
    """Alone catches a run that judges one half of its tasks with one verifier, the other half with the next."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "env.py").write_text(
        "class Env:\n    def get_reward(self):\n        from .rules import judge\n"
    )
    (tmp_path / "mine" / "rules.py").write_text("def judge(value):\n    return value == 1\n")
    asked = ("run_dir=r", "env=mine.env:Env", "tracking.uri=null")
    assert _call(tmp_path, *asked)[0] == 0 and _call(tmp_path, *asked)[0] == 0
    (tmp_path / "mine" / "rules.py").write_text("def judge(value):\n    return value >= 1\n")
    for given in (asked, asked[:1]):
        status, _, err = _call(tmp_path, *given)
        assert status == 2 and "the source of mine.env:Env changed (mine/rules.py) since" in err


def test_a_broken_run_directory_is_status_1(tmp_path: Path) -> None:
    assert _call(tmp_path, "run_dir=r", "tracking.uri=null")[0] == 0
    (tmp_path / "r" / "manifest.json").write_text("{")
    status, _, err = _call(tmp_path, "run_dir=r", "tracking.uri=null")
    assert status == 1 and "manifest.json: not readable as JSON" in err and "Traceback" not in err


def test_a_second_run_into_one_directory_is_refused(tmp_path: Path) -> None:
    first = _start(tmp_path, "run_dir=r", "pause=30", "tracking.uri=null")
    try:
        while not (tmp_path / "r" / "manifest.json").exists() and first.poll() is None:
            time.sleep(0.05)
        status, _, err = _call(tmp_path, "run_dir=r", "pause=30", "tracking.uri=null")
        assert status == 2 and f"in use by process {first.pid}" in err
    finally:
        first.kill()
        first.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    process = _start(tmp_path, "run_dir=r", "pause=30", "tracking.uri=null")
    while not (tmp_path / "r" / "events" / "0000.jsonl").exists() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(0.2)
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 1 and number.name in err and "run_dir=r" in err and "Traceback" not in err
    assert json.loads((tmp_path / "r" / "manifest.json").read_text())["status"] == "failed"


def test_killed_again_and_again_it_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    arguments = ("count=40", "pause=0.01", "tracking.uri=null")
    assert _call(tmp_path, "run_dir=whole", *arguments)[0] == 0
    chance = random.Random(5)
    for _ in range(6):
        process = _start(tmp_path, "run_dir=killed", *arguments)
        while not (tmp_path / "killed" / "manifest.json").exists() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.5))
        process.kill()
        process.communicate()
    status, _, err = _call(tmp_path, "run_dir=killed", *arguments)
    assert status == 0, err
    for folder in ("events", "trees"):
        whole = {path.name: path.read_bytes() for path in (tmp_path / "whole" / folder).iterdir()}
        killed = {path.name: path.read_bytes() for path in (tmp_path / "killed" / folder).iterdir()}
        assert set(whole) >= set(killed) and all(whole[name] == killed[name] for name in killed)
    assert (tmp_path / "whole/events/0000.jsonl").read_bytes() == (tmp_path / "killed/events/0000.jsonl").read_bytes()


def test_tracking_holds_the_run(tmp_path: Path) -> None:
    status, _, err = _call(tmp_path, "run_dir=r", "count=3")
    assert status == 0 and "does not work" not in err, err
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("offline_agent").experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == "tiny r"
    assert run.data.params["count"] == "3" and run.data.params["env.name"] == "shop"
    assert run.data.metrics["by/parity/odd"] == 1 and run.data.tags["pipeline"] == "tiny"
    names = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert names == {"manifest.json", "report.html", "summary.json"}
