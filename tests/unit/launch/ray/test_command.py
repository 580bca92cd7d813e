"""A command on a node of a Ray cluster."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import psutil

from offline_agent.launch.ray.command import CommandExecutor


def test_arguments_are_not_in_the_list_of_processes(tmp_path: Path) -> None:
    secret, ended, lines = f"run_dir={tmp_path / 'run'}", [], []  # type: ignore[var-annotated]
    keys = ["count=2", "pause=0.5", "tracking.uri=null", secret]
    executor = CommandExecutor("tests.helpers.tiny_pipeline", keys)
    thread = threading.Thread(target=lambda: ended.append(executor._run(lines.append)))
    thread.start()
    seen: set[str] = set()
    while thread.is_alive():
        for process in psutil.Process().children(recursive=True):
            try:
                seen.add(" ".join(process.cmdline()))
            except psutil.Error:
                continue
        thread.join(0.05)
    told: Any = "".join(line for _, line in lines)
    assert ended == [0] and "counted 2" in told, told
    assert any("tiny_pipeline" in line for line in seen) and not any(secret in line for line in seen)
