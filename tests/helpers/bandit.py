"""A tiny model that pulls either arm of the bandit as often as the other, and stages run inside this process."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from offline_agent.errors import TrainingError
from offline_agent.launch.stages import Stage, portable
from offline_agent.pipelines.entry import main
from offline_agent.runner.pipeline import Command
from offline_agent.store.files import write_atomic

ENV = "env=examples.bandit:Bandit"
QUIET = "tracking.uri=null"


def command(name: str) -> Command[Any, Any]:
    return importlib.import_module(f"offline_agent.pipelines.{name}").COMMAND  # type: ignore[no-any-return]


def call(name: str, *arguments: str) -> None:
    """Run a pipeline in this process, which has imported the heavy libraries once."""
    assert main(command(name), [QUIET, *arguments]) == 0, name


def in_process(stage: Stage, say: Callable[[str], None], again: str) -> None:
    """Stand in for `_stages._run`."""
    write_atomic(stage.file, portable(stage.config)[0].encode())
    if main(command(stage.pipeline), ["--config", str(stage.file)]):
        raise TrainingError(f"{stage.label} failed")


def warm_started(base: Path, env: str = ENV) -> Path:
    """Return a new model that was trained, once for all tests, on players who choose blindly.

    Args:
        base: pytest's folder of this session.
        env: What they play.
    """
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = base / env.rpartition(":")[2]
    with FileLock(f"{folder}.lock"):
        if not (folder / "model").exists():
            _train(folder, env)
    return folder / "model"


def _train(folder: Path, env: str) -> None:
    call(
        "train_sft", env, "scratch.layers=2", "scratch.hidden_size=64", "scratch.heads=2", "scratch.key_value_heads=2",
        "scratch.vocabulary=320", "scratch.max_positions=512", "tasks.n=64", "demonstrations.noise=[1.0]",
        "demonstrations.only_successes=false", "optimizer.epochs=12", "optimizer.learning_rate=5e-3",
        "optimizer.schedule=constant", "batch.rows=8", "checkpoints.every=1000", "threads=1", f"run_dir={folder}",
    )  # fmt: skip
