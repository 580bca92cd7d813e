"""Lines of the closing table of evaluate."""

from __future__ import annotations

import shlex
from pathlib import Path

from offline_agent.report.evaluate import _where, below


def test_the_next_command_can_be_copied_whatever_the_run_directory_is_called() -> None:
    path = Path("runs/a b; touch x $(id)")
    line = list(_where({"modes": {}}, path))[-1]
    assert shlex.split(line.partition("policy.model=... ")[2]) == [f"against.run={path}"]
    line = list(_where({"modes": {}, "made_by": "runs/my search"}, path))[-1]
    assert shlex.split(line.partition("command with ")[2]) == ["against.run=runs/my search"]


def test_a_loss_with_refused_calls_says_what_the_model_lacks() -> None:
    difference = {"mean": -0.7, "low": -0.8, "high": -0.6}
    for refused, lines in ((0.38, 2), (0.0, 1), (None, 1)):
        modes = {"sampled": {"refused_call_rate": refused}}
        assert len(list(below({"comparison": {"sampled": {"difference": difference}}, "modes": modes}))) == lines
