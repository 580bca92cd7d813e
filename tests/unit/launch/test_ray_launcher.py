"""The launcher of `launcher=ray` without a Ray; tests/e2e/test_ray.py has the real one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offline_agent.config.build_prefs import RaySection
from offline_agent.errors import ConfigError
from offline_agent.launch import ray as launcher
from offline_agent.launch.ray import Job
from offline_agent.runner.signals import Stopped
from tests.helpers.tiny_pipeline import COMMAND, Tiny


def test_every_signal_in_compiled_code_comes_out_as_a_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled: list[int] = []

    def wait(*given: Any, **named: Any) -> Any:
        raise SystemError from Stopped(f"signal {1 + len(cancelled)}")

    task = SimpleNamespace(options=lambda **options: SimpleNamespace(remote=lambda *given: 7))
    nodes = [{"Alive": True, "Resources": {"CPU": 1.0}}]
    ray = SimpleNamespace(remote=lambda work: task, nodes=lambda: nodes, cancel=cancelled.append, wait=wait)
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    with pytest.raises(Stopped, match="signal 2"):
        launcher._carry_out([Job("a", (), tmp_path, tmp_path / "log", {})], RaySection(), print, print)
    assert cancelled == [7]


def test_a_training_is_not_spread() -> None:
    with pytest.raises(ConfigError, match="allowed for tiny: local, slurm"):
        launcher.check(COMMAND, Tiny())


def test_a_job_has_the_paths_and_variables_of_who_gave_the_command(tmp_path: Path) -> None:
    program = "import os; print(os.environ['PYTHONPATH'], os.environ['MINE'], file=open('told', 'w'))"
    job = Job("a", ("-c", program), tmp_path / "run", tmp_path / "log", {"MINE": "secret"})
    assert launcher._run(job, str(tmp_path), {"PYTHONPATH": "/own/environments", "MINE": "other"}) == 0
    paths, mine = (tmp_path / "told").read_text().split()
    assert "/own/environments" in paths.split(os.pathsep) and mine == "secret"
