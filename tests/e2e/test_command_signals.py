"""Signals of a batch system: a run ends in good order once, and leaves a mark for the job's script."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from offline_agent.runner.signals import Stopped, signals
from tests.e2e.test_command import ENVIRONMENT, _start


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_counts_and_a_batch_systems_leaves_a_mark(
    tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "stopped"
    monkeypatch.setitem(ENVIRONMENT, "OFFLINE_AGENT_STOPPED", str(mark))
    process = _start(tmp_path, "run_dir=r", "pause=60", "tracking.uri=null")
    while not (tmp_path / "r" / "events" / "0000.jsonl").exists() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(0.2)
    process.send_signal(number)
    if number != signal.SIGINT:
        process.send_signal(signal.SIGTERM)  # to the step and to the script, which passes it on
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1 and "Traceback" not in err and err.count("stopped by") == 1, err
    assert "Finished work is in r." in err and "To go on: python -m offline_agent.pipelines.tiny" in err
    manifest = json.loads((tmp_path / "r" / "manifest.json").read_text())
    assert manifest["status"] == "failed" and manifest["error"].startswith("Stopped: ")
    assert mark.exists() == (number != signal.SIGINT)


def test_what_ends_in_good_order_is_not_stopped_again() -> None:
    with pytest.raises(Stopped, match="SIGUSR1"), signals():
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(5)
        except Stopped:
            for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
                os.kill(os.getpid(), number)
            time.sleep(0.1)
            raise


def test_a_second_ctrl_c_does_not_interrupt_the_telling_of_the_first(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from offline_agent.pipelines import entry\n"
        "from tests.helpers import tiny_pipeline\n"
        "say = entry.say\n"
        "def interrupted(text):\n"
        "    if 'stopped by' in text:\n"
        "        os.kill(os.getpid(), signal.SIGINT)  # as the supervising process passes it on, late\n"
        "    say(text)\n"
        "entry.say = interrupted\n"
        "sys.exit(entry.main(tiny_pipeline.COMMAND))\n"
    )
    command = [sys.executable, "-c", code, "run_dir=r", "pause=60", "tracking.uri=null"]
    process = subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, text=True, stdout=-1, stderr=-1)
    while not (tmp_path / "r" / "events" / "0000.jsonl").exists() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "Traceback" not in err and err.count("stopped by SIGINT") == 1, err
