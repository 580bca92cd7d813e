"""Task folders of Harbor's format, written by tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offline_agent.envs.base import EnvSpec
from offline_agent.records import Action, ToolCall

EXAMPLES = Path(__file__).parents[4] / "examples" / "harbor_tasks"
DOCKERFILE = "FROM ubuntu:24.04\nWORKDIR /app\nCOPY begin.txt .\n"
TEST = """
if grep -qx right /app/answer.txt; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
"""


def written(folder: Path, files: Mapping[str, str | None] | None = None) -> Path:
    """Write a task; `files` replaces some of its files, or leaves them out (None)."""
    every: dict[str, str | None] = {
        "instruction.md": "Write the word right to /app/answer.txt.\n", "task.toml": 'version = "1.0"\n',
        "environment/Dockerfile": DOCKERFILE, "environment/begin.txt": "begin\n", "tests/test.sh": TEST,
        "solution/solve.sh": "#!/bin/bash\necho right > answer.txt\n", **(files or {}),
    }  # fmt: skip
    for name, text in every.items():
        if text is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    return folder


def loaded(folder: Path, **args: Any) -> EnvSpec:
    return EnvSpec.load(f"harbor:{folder}", args)


def begun(folder: Path, **args: Any) -> Any:
    """Return an episode of the first train task."""
    spec = loaded(folder, **args)
    episode = spec.open()
    episode.reset(next(iter(spec.tasks("train"))))
    return episode


def run(episode: Any, command: str, **more: Any) -> str:
    """Return what a command prints in an episode."""
    return str(episode.step(Action("", call=ToolCall("run", {"command": command, **more}))).observation)
