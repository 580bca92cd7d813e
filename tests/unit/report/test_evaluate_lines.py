"""Lines of the closing table of evaluate."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from offline_agent.report.evaluate import _where, in_words


def test_the_next_command_can_be_copied_whatever_the_run_directory_is_called() -> None:
    path = Path("runs/a b; touch x $(id)")
    line = list(_where({"modes": {}}, path))[-1]
    assert shlex.split(line)[-3:] == ["offline_agent.pipelines.compare", str(path), "RUN"]
    line = list(_where({"modes": {}, "made_by": "runs/my search"}, path))[-1]
    assert shlex.split(line.partition("command with ")[2]) == ["against.run=runs/my search"]


def test_a_loss_with_refused_calls_says_what_the_model_lacks() -> None:
    difference = {"mean": -0.7, "low": -0.8, "high": -0.6}
    for refused, lines in ((0.38, 2), (0.0, 1), (None, 1)):
        modes = {"sampled": {"refused_call_rate": refused}}
        assert len(list(in_words({"comparison": {"sampled": {"difference": difference}}, "modes": modes}))) == lines


@pytest.mark.parametrize(
    ("mean", "low", "high", "said", "unsure"),
    [(0.02, -0.01, 0.05, "2.0 points above", True), (0.05, 0.01, 0.1, "5.0 points above", False),
     (-0.01, -0.03, 0.01, "1.0 points below", True)],
)  # fmt: skip
def test_every_comparison_says_what_it_shows(mean: float, low: float, high: float, said: str, unsure: bool) -> None:
    compared = {"sampled": {"difference": {"mean": mean, "low": low, "high": high}}}
    (line,) = in_words({"comparison": compared, "modes": {"sampled": {"refused_call_rate": None}}})
    assert said in line and ("chance" in line) == unsure
