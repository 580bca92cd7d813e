"""Scripts, submission and states, against programs that stand in for Slurm's."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from offline_agent.config.build_prefs import SlurmSection
from offline_agent.errors import ConfigError
from offline_agent.launch import torchrun
from offline_agent.launch.slurm import batch as slurm
from offline_agent.launch.slurm.batch import BatchJob, JobState, SlurmError

Program = Callable[[str, str], Path]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Put a shell script into the PATH, before everything else; what it is called with is kept in `NAME.called`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def make(name: str, body: str) -> Path:
        called = folder / f"{name}.called"
        (folder / name).write_text(f'#!/bin/bash\necho "$*" >>{called}\n{body}\n')
        (folder / name).chmod(0o755)
        return called

    return make


def job(folder: Path, command: str = "true", **more: object) -> BatchJob:
    return BatchJob("search-1", command, folder, SlurmSection(**{"cpus": 1, "signal_seconds": 0, **more}))  # type: ignore[arg-type]


def script(one: BatchJob, folder: Path) -> Path:
    file = folder / "job.sh"
    file.write_text(slurm.render(one))
    return file


def test_numbers_are_written_as_sbatch_reads_them() -> None:
    assert slurm.ranges([0]) == "0" and slurm.ranges([3, 1, 2, 7, 9, 10]) == "1-3,7,9-10"


def test_a_script_asks_for_what_was_asked(tmp_path: Path) -> None:
    request = SlurmSection(
        partition="gpu", time="1:00:00", cpus=4, memory="8G", gpus=2, nodes=3,
        signal_seconds=90, setup=("module load cuda",), arguments=("--constraint=a b",),
    )  # fmt: skip
    folder = tmp_path / "50% of it"
    text = slurm.render(BatchJob("n", "run me", folder, request, (0, 1, 2, 5), 2, ("7", "8_1")))
    for line in (
        "--partition=gpu", "--time=1:00:00", "--cpus-per-task=4", "--mem=8G",
        "--gpus-per-node=2", "--nodes=3", "--ntasks-per-node=1", "--signal=USR1@90", "--requeue",
        "--open-mode=append", "--array=0-2,5%2", "--dependency=afterok:7:8_1", "--kill-on-invalid-dep=yes",
    ):  # fmt: skip
        assert f"#SBATCH {line}\n" in text, line
    assert f'#SBATCH "--output={tmp_path}/50%% of it/n-%4a.log"\n' in text
    assert '#SBATCH "--constraint=a b"\n' in text
    assert text.index("module load cuda") < text.index("srun --kill-on-bad-exit=1 --cpus-per-task=4 run me &")
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    plain = slurm.render(job(tmp_path))
    assert not any(word in plain for word in ("--array", "--dependency", "--gpus", "--time", "--signal", "--mem="))


def test_logs_are_where_the_script_puts_them(tmp_path: Path) -> None:
    one = job(tmp_path)
    assert f"--output={tmp_path}/search-1.log\n" in slurm.render(one)
    assert f"--output={tmp_path}/search-1-%4a.log\n" in slurm.render(replace(one, array=(7,)))


STEP = 'while [ $# -gt 0 ] && [ "${1#--}" != "$1" ]; do shift; done; exec "$@"'  # srun without its options


@pytest.mark.parametrize(
    ("state", "restarts", "requeued"),
    [("RUNNING", "0", True), ("RUNNING", "5", False), ("COMPLETING", "0", False), ("", "0", False)],
)
def test_a_job_that_a_signal_stopped_is_requeued_if_slurm_lets_it_run(
    program: Program, tmp_path: Path, state: str, restarts: str, requeued: bool
) -> None:
    program("srun", STEP)
    program("squeue", f"echo {state}")
    called = program("scontrol", "")
    file = script(job(tmp_path, f"bash -c 'touch ${slurm.STOPPED}; exit 4'", requeues=5), tmp_path)
    env = {**os.environ, "SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": restarts}
    done = subprocess.run(["bash", str(file)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 4 and ("not requeued" in done.stdout) != requeued
    assert (called.read_text() if called.exists() else "") == ("requeue 17\n" if requeued else "")
    assert not list(tmp_path.glob(".stopped*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_step_that_a_signal_ended_before_it_listened_is_requeued(
    program: Program, tmp_path: Path, number: signal.Signals
) -> None:
    program("srun", STEP)
    program("squeue", "echo RUNNING")
    called = program("scontrol", "")
    file = script(job(tmp_path, f"bash -c 'kill -{int(number)} $$'"), tmp_path)
    done = subprocess.run(["bash", str(file)], env={**os.environ, "SLURM_JOB_ID": "17"}, check=False)
    assert done.returncode == 128 + number and called.read_text() == "requeue 17\n"


@pytest.mark.parametrize("status", [0, 3, 128 + signal.SIGKILL])
def test_a_job_that_ends_by_itself_is_not_requeued(program: Program, tmp_path: Path, status: int) -> None:
    program("srun", STEP)
    program("squeue", "echo RUNNING")
    called = program("scontrol", "")
    (tmp_path / ".stopped-17").touch()  # of an earlier start
    file = script(job(tmp_path, f"bash -c 'exit {status}'"), tmp_path)
    done = subprocess.run(["bash", str(file)], env={**os.environ, "SLURM_JOB_ID": "17"}, check=False)
    assert done.returncode == status and not called.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_to_the_script_reaches_the_step(program: Program, tmp_path: Path, number: signal.Signals) -> None:
    program("srun", STEP)
    program("squeue", "echo RUNNING")
    called = program("scontrol", "")
    step = tmp_path / "step.sh"
    name = number.name.removeprefix("SIG")
    step.write_text(
        f"trap 'touch \"${slurm.STOPPED}\"; exit 9' {name}\ntouch {tmp_path}/begun\n"
        "for i in $(seq 600); do sleep 0.05; done\n"
    )
    file = script(job(tmp_path, f"bash {step}"), tmp_path)
    process = subprocess.Popen(["bash", str(file)], env={**os.environ, "SLURM_JOB_ID": "17"}, stdout=-1)
    while not (tmp_path / "begun").exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 9 and called.read_text() == "requeue 17\n"


def test_training_is_one_task_a_node_that_meet_on_the_first(tmp_path: Path) -> None:
    assert torchrun.command_line("a.b", ["--config", "my file"], "py", 1, 1, 1) == "py -m a.b --config 'my file'"
    one = torchrun.command_line("a.b", ["c"], "py", 1, 8, 8)
    assert "--standalone" in one and "--nproc-per-node=8" in one and "USE_CPU" not in one and "SIGUSR1" in one
    assert "ACCELERATE_USE_CPU=true" in torchrun.command_line("a.b", ["c"], "py", 1, 2, 0)
    four = torchrun.command_line("a.b", ["c"], "py", 4, 8, 8, True)
    assert "--nnodes=4" in four and "--rdzv-backend=c10d" in four and "ACCELERATE_USE_FSDP=true FSDP_VERSION=2" in four
    shown = subprocess.run(
        ["bash", "-c", f"scontrol() {{ printf 'first\\nsecond\\n'; }}; echo {four}"],
        env={**os.environ, "SLURM_JOB_ID": "41234", "SLURM_JOB_NODELIST": "x"}, check=True, text=True, stdout=-1,
    ).stdout  # fmt: skip
    assert "--rdzv-endpoint=first:21234 " in shown and "--rdzv-id=41234 " in shown


def test_submitting_hands_over_a_script_and_nothing_of_the_job_we_are_in(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = program("sbatch", 'env >"$(dirname "$2")/env"; echo "some news"; echo "17;cluster"')
    for name in ("SLURM_JOB_ID", "SLURM_MEM_PER_CPU", "SRUN_DEBUG", "SLURM_CONF", "SBATCH_ACCOUNT", slurm.STOPPED):
        monkeypatch.setenv(name, "x")
    one = job(tmp_path / "jobs")
    assert slurm.submit(one, {"SECRET": "s"}) == "17"
    assert called.read_text() == f"--parsable {one.script}\n" and one.script.read_text() == slurm.render(one)
    got = dict(line.partition("=")[::2] for line in (tmp_path / "jobs" / "env").read_text().splitlines())
    assert got["SECRET"] == "s" and got["SLURM_CONF"] == "x" and got["SBATCH_ACCOUNT"] == "x"
    assert not {"SLURM_JOB_ID", "SLURM_MEM_PER_CPU", "SRUN_DEBUG", slurm.STOPPED} & set(got)
    program("sbatch", "echo no account >&2; exit 1")
    with pytest.raises(SlurmError, match="sbatch refused: no account"):
        slurm.submit(one)
    program("sbatch", "echo what")
    with pytest.raises(SlurmError, match="which is no job id"):
        slurm.submit(one)


def test_states_are_those_of_the_submissions_asked_for(program: Program) -> None:
    lines = ("a|9_0|0|CANCELLED|None", "a|17_0|0|RUNNING|None", "a|17_3|3|PENDING|(launch failed requeued held)",
             "a|19_3|3|CANCELLED|None", "b|7|N/A|CANCELLED|None", "b|18|N/A|COMPLETED|None", "b|8|N/A|FAILED|None",
             "other|19|N/A|RUNNING|None", "slurm_load_jobs: news", "a|20|x")  # fmt: skip
    called = program("squeue", f"cat <<'EOF'\n{os.linesep.join(lines)}\nEOF")
    found = slurm.states(["a", "b", "c"])
    assert found == {
        "a": {0: JobState("17_0", "RUNNING"), 3: JobState("17_3", "PENDING", "(launch failed requeued held)")},
        "b": {None: JobState("18", "COMPLETED")},
    }
    assert "--name=a,b,c" in called.read_text() and "--states=all" in called.read_text()
    assert found["a"][0].runs and found["a"][3].waits and not found["b"][None].runs and not found["b"][None].waits
    assert slurm.states([]) == {}
    program("squeue", "echo cannot connect >&2; exit 1")
    with pytest.raises(SlurmError, match="squeue refused: cannot connect"):
        slurm.states(["a"])


def test_a_machine_without_slurm_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="there is no sbatch, squeue, scontrol, scancel on this machine's PATH"):
        slurm.check()
    with pytest.raises(SlurmError, match="no squeue here"):
        slurm.states(["a"])
