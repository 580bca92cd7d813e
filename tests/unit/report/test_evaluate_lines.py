"""Lines of the closing table of evaluate."""

from __future__ import annotations

import shlex
from pathlib import Path

from offline_agent.report.evaluate import _where


def test_the_next_command_can_be_copied_whatever_the_run_directory_is_called() -> None:
    path = Path("runs/a b; touch x $(id)")
    line = list(_where({"modes": {}}, path))[-1]
    assert shlex.split(line.partition("policy.model=... ")[2]) == [f"against.run={path}"]
    line = list(_where({"modes": {}, "made_by": "runs/my search"}, path))[-1]
    assert shlex.split(line.partition("command with ")[2]) == ["against.run=runs/my search"]
