"""The supervising process: work that ends without a word is told, and ends with the process that supervises it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.test_command import ENVIRONMENT, PIPELINE, _call, _start


@pytest.mark.parametrize(
    ("fail", "how"), [("exit", "exited with status 0"), ("segfault", "SIGSEGV"), ("kill", "SIGKILL")]
)
def test_work_that_ends_without_a_word_is_status_1_and_says_how_to_go_on(tmp_path: Path, fail: str, how: str) -> None:
    status, out, err = _call(tmp_path, f"fail={fail}", "tracking.uri=null")
    (run,) = (tmp_path / "runs").iterdir()
    assert (status, out) == (1, "") and how in err and "in the middle of it" in err
    assert f"to go on: python -m offline_agent.pipelines.tiny fail={fail} tracking.uri=null run_dir=" in err
    assert run.name in err and json.loads((run / "manifest.json").read_text())["status"] == "running"


def test_killing_the_command_ends_the_work(tmp_path: Path) -> None:
    process = _start(tmp_path, "run_dir=r", "pause=30", "tracking.uri=null")
    while not (tmp_path / "r" / "manifest.json").exists() and process.poll() is None:
        time.sleep(0.05)
    (work,) = psutil.Process(process.pid).children()
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert psutil.wait_procs([work], timeout=20)[1] == []


def test_ctrl_c_of_a_terminal_counts_once(tmp_path: Path) -> None:
    command = [sys.executable, str(PIPELINE), "run_dir=r", "pause=30", "tracking.uri=null"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRONMENT, text=True, stdout=-1, stderr=-1, start_new_session=True
    )
    while not (tmp_path / "r" / "events" / "0000.jsonl").exists() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the supervising process and to the one that works
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and err.count("stopped by SIGINT") == 1 and "Traceback" not in err, err
    assert json.loads((tmp_path / "r" / "manifest.json").read_text())["error"].startswith("Stopped: ")
