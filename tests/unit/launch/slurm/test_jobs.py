"""Reports on a run's jobs, and the launcher around them, with a simulated Slurm."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offline_agent.errors import ConfigError
from offline_agent.launch.shards import cut, resume_command
from offline_agent.launch.slurm import batch as slurm
from offline_agent.launch.slurm import launcher as _slurm
from offline_agent.launch.slurm.batch import BatchJob, JobState, SlurmError
from offline_agent.launch.slurm.jobs import JobStatus, look, standing
from offline_agent.pipelines import build_prefs, status
from offline_agent.pipelines.entry import main
from offline_agent.store.files import write_json

KEYS = ["tracking.uri=null", "policy=noisy", "tasks.n=4", "search.simulations=2"]
JOBS = ["launcher=slurm", "slurm.shards=2", "slurm.poll_seconds=0.01"]


class MadeUp:
    """A Slurm that keeps what was submitted, and says of it what it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.jobs: list[BatchJob] = []
        self.told: dict[str, slurm.States] = {}
        self.answers: list[Exception] = []
        monkeypatch.setattr(slurm, "check", lambda: None)
        monkeypatch.setattr(slurm, "submit", self.submit)
        monkeypatch.setattr(slurm, "states", self.states)

    def submit(self, job: BatchJob, environment: Any = None) -> str:
        self.jobs.append(job)
        number = len(self.jobs)
        self.told[job.name] = {n: JobState(f"{number}_{n}", "PENDING", "Resources") for n in job.array} or {
            None: JobState(str(number), "PENDING", "Dependency")
        }
        return str(number)

    def states(self, names: Sequence[str]) -> dict[str, slurm.States]:
        if self.answers:
            raise self.answers.pop()
        return {name: dict(self.told[name]) for name in names if name in self.told}

    def say(self, name: str, word: str, number: int | None = None) -> None:
        self.told[name][number] = JobState(self.told[name][number].id, word)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    return MadeUp(monkeypatch)


def submit(run: Path, *keys: str) -> int:
    return main(build_prefs.COMMAND, [*KEYS, *JOBS, f"run_dir={run}", *keys])


def do(job: BatchJob, run: Path) -> None:
    """Do what the jobs of a submission do."""
    for number in job.array:
        assert main(build_prefs.COMMAND, ["--shard", "--config", str(run / "shards" / f"{number:04}.yaml")]) == 0
    if not job.array:
        assert main(build_prefs.COMMAND, ["--merge", "--config", str(run / "slurm" / "merge.yaml")]) == 0


def run_dir(path: Path, status: str | None = None, error: str | None = None) -> Path:
    path.mkdir(parents=True)
    if status is not None:
        (path / "manifest.json").write_text(json.dumps({"command": "build_prefs", "status": status, "error": error}))
    return path


@pytest.mark.parametrize(
    ("status", "error", "word", "found", "why"),
    [
        ("done", None, "CANCELLED", "done", ""),  # what is done is done
        ("done", None, None, "done", ""),
        ("running", None, "RUNNING", "running", ""),
        ("running", None, "COMPLETING", "running", "completing"),
        ("failed", "Stopped: SIGUSR1", "PENDING", "pending", ""),  # requeued
        ("running", None, "CANCELLED", "lost", "CANCELLED"),
        ("running", None, "NODE_FAIL", "lost", "NODE_FAIL"),
        ("running", None, None, "lost", "Slurm knows its job no more"),  # no accounting, and long ago
        ("failed", "Stopped: SIGTERM", "CANCELLED", "lost", "CANCELLED, Stopped: SIGTERM"),
        ("failed", "Stopped: SIGUSR1", "FAILED", "lost", "FAILED, Stopped: SIGUSR1"),  # requeued too often
        ("failed", "DataError: x", "FAILED", "failed", "DataError: x"),
        ("failed", "DataError: x", None, "failed", "DataError: x"),
        (None, None, "FAILED", "failed", "its log says why"),
        (None, None, "PENDING", "pending", ""),
    ],
)
def test_the_run_directory_and_slurm_together_say_what_became_of_a_job(
    tmp_path: Path, status: str | None, error: str | None, word: str | None, found: str, why: str
) -> None:
    path = run_dir(tmp_path / "run", status, error)
    state = None if word is None else JobState("7_1", word)
    one = standing(path, "build_prefs", state, submitted=True)
    assert (one.word, one.why) == (found, why)
    assert one.active == (found in ("running", "pending"))


def test_what_was_never_submitted_is_new_and_what_is_held_says_why(tmp_path: Path) -> None:
    assert standing(tmp_path, "build_prefs", None, submitted=False) == JobStatus("new")
    held = standing(tmp_path, "build_prefs", JobState("7", "PENDING", "(launch failed requeued held)"), submitted=True)
    assert (held.word, held.why) == ("pending", "launch failed requeued held")
    assert standing(run_dir(tmp_path / "r", "running"), "x", None, True, "no answer").word == "unknown"


def test_submitting_prints_ids_and_the_same_command_finds_the_jobs(
    made_up: MadeUp, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert submit(run, "--submit") == 0
    assert capsys.readouterr().out == "shards 1\nmerge 2\n"
    array, merge = made_up.jobs
    assert array.array == (0, 1) and merge.array == () and merge.after == ("1",)
    assert submit(run, "--submit") == 0 and len(made_up.jobs) == 2  # under way: nothing is submitted twice
    assert capsys.readouterr().out == "shards 1\nmerge 2\n"


def test_only_what_is_not_done_is_submitted_again_and_the_whole_is_shown(
    made_up: MadeUp, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    assert submit(run, "--submit") == 0
    array, merge = made_up.jobs
    do(BatchJob(array.name, "", run, array.request, (1,)), run)
    made_up.say(array.name, "COMPLETED", 1)
    made_up.say(array.name, "CANCELLED", 0)
    made_up.say(merge.name, "CANCELLED")
    capsys.readouterr()

    def do_the_rest(seconds: float) -> None:
        for job in made_up.jobs[2:]:
            do(job, run)
            for number in made_up.told[job.name]:
                made_up.say(job.name, "COMPLETED", number)

    monkeypatch.setattr(_slurm, "time", SimpleNamespace(sleep=do_the_rest))
    assert submit(run) == 0
    out, err = capsys.readouterr()
    assert "submitting again what failed or was lost: 0" in err and "build_prefs: noisy in shop" in out
    assert [job.array for job in made_up.jobs[2:]] == [(0,), ()] and made_up.jobs[3].after == ("3",)


def test_waiting_goes_on_when_slurm_does_not_answer_and_ends_with_the_summary(
    made_up: MadeUp, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, looks = tmp_path / "run", 0

    def rest(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            made_up.answers = [SlurmError("no answer"), SlurmError("no answer")]
        elif looks == 4:
            for job in made_up.jobs:
                do(job, run)
                for number in made_up.told[job.name]:
                    made_up.say(job.name, "COMPLETED", number)

    monkeypatch.setattr(_slurm, "time", SimpleNamespace(sleep=rest))
    assert submit(run) == 0
    out, err = capsys.readouterr()
    assert err.count("no answer; waiting on") == 1 and "build_prefs: noisy in shop" in out
    assert json.loads((run / "summary.json").read_text())["shards"]["count"] == 2


def test_a_job_that_is_gone_without_a_trace_ends_the_waiting(
    made_up: MadeUp, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without accounting a cancelled job is soon forgotten; what waits for it must not wait for ever."""
    run = tmp_path / "run"
    monkeypatch.setattr(_slurm, "time", SimpleNamespace(sleep=lambda seconds: made_up.told.clear()))
    assert submit(run) == 1
    err = capsys.readouterr().err
    assert "2 of 2 shards are not done: 0, 1" in err and "lost: Slurm knows its job no more" in err
    assert f"--config {run}/slurm/merge.yaml" in err


def test_jobs_of_another_name_with_the_same_numbers_are_nobodys(made_up: MadeUp, tmp_path: Path) -> None:
    """A Slurm that lost its memory begins to count anew."""
    run = tmp_path / "run"
    assert submit(run, "--submit") == 0
    made_up.told = {"somebody-else": {0: JobState("1_0", "RUNNING"), 1: JobState("1_1", "COMPLETED")}}
    view = look(run, "build_prefs")
    assert view.count() == {"lost": 2}
    assert submit(run, "--submit") == 0 and [job.array for job in made_up.jobs] == [(0, 1), (), (0, 1), ()]
    assert len({job.name for job in made_up.jobs}) == 2


def test_no_slurm_is_a_wrong_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check() -> None:
        raise ConfigError("launcher: slurm, but there is none")

    monkeypatch.setattr(slurm, "check", check)
    assert submit(tmp_path / "run") == 2 and not (tmp_path / "run").exists()
    assert "launcher: slurm, but there is none" in capsys.readouterr().err


def test_how_to_go_on_names_the_secrets_that_are_not_on_the_disk(tmp_path: Path) -> None:
    assert resume_command(tmp_path, "build_prefs").endswith(f"build_prefs run_dir={tmp_path}")
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "job.yaml").write_text("a: ${oc.env:OFFLINE_AGENT_KEY}\n")
    told = resume_command(tmp_path, "train_sft")
    assert told.startswith("OFFLINE_AGENT_KEY=... python -m offline_agent.pipelines.train_sft --config ")
    assert told.endswith("job.yaml launcher=slurm")


# -- status --------------------------------------------------------------------------------------------------------


def test_status_tells_what_became_of_every_shard(
    made_up: MadeUp, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert submit(run, "--submit") == 0
    array, merge = made_up.jobs
    do(BatchJob(array.name, "", run, array.request, (1,)), run)
    capsys.readouterr()
    assert status.main([f"run_dir={run}"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[:3] == [
        f"{run}: build_prefs, under way",
        "  shards   2: 1 done, 1 pending",
        "  tasks    2 of 4 searched",
    ]
    assert out[3] == "  merge    pending (job 2)" and out[-1].startswith("The jobs go on by themselves")
    made_up.say(array.name, "NODE_FAIL", 0)
    made_up.say(merge.name, "CANCELLED")
    assert status.main([f"run_dir={run}"]) == 0
    text = capsys.readouterr().out
    assert "build_prefs, not done" in text and "1 done, 1 lost" in text and "shard 0  lost (job 1_0): NODE_FAIL" in text
    assert f"To go on: python -m offline_agent.pipelines.build_prefs --config {run}/slurm/merge.yaml" in text
    made_up.answers = [SlurmError("it is down")]
    assert status.main([f"run_dir={run}"]) == 0
    assert "Slurm could not be asked: it is down" in capsys.readouterr().out


def test_status_of_shards_that_slurm_has_not_is_that_of_their_run_directories(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = cut(tmp_path, 3, 3)
    write_json(tmp_path / "manifest.json", {"command": "build_prefs", "status": "running"})
    write_json(shards[0].path / "manifest.json", {"status": "running"})
    write_json(shards[1].path / "manifest.json", {"status": "failed", "error": "PolicyError: no answer"})
    assert status.main([f"run_dir={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert "build_prefs, begun, and not ended\n  shards   3: 1 failed, 1 begun, 1 new\n" in out
    assert "shard 1  failed: PolicyError: no answer" in out and "To go on: " in out


def test_status_of_a_plain_run_and_of_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main(build_prefs.COMMAND, [*KEYS, f"run_dir={run}"]) == 0
    capsys.readouterr()
    assert status.main([f"run_dir={run}"]) == 0
    assert capsys.readouterr().out == f"{run}: build_prefs, done\n  tasks    4 searched\n"
    assert status.main(["--help"]) == 0 and "lost" in capsys.readouterr().out
    (run / "manifest.json").write_text("{")
    assert status.main([f"run_dir={run}"]) == 1
    assert "not readable as JSON" in capsys.readouterr().err
