"""Holm's correction of several p-values."""

from __future__ import annotations

import pytest

from offline_agent.evaluation.report import holm


def test_holm_steps_down_and_never_reverses_the_order() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, None, 0.8]) == [1.0, None, 1.0]
    assert holm([]) == []
