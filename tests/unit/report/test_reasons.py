"""Reasons of one rule are counted together, and shown in their commonest wording."""

from __future__ import annotations

import json
from pathlib import Path

from offline_agent.preferences.refusals import Refusal
from offline_agent.report.mining import Figures


def test_the_commonest_reason_keeps_its_numbers_after_a_resume_too(tmp_path: Path) -> None:
    figures = Figures(tmp_path, 1, False)
    figures.refused(Refusal("step", "t", f"fewer than {most} rollouts") for most in (3, 4, 3))
    again = Figures(tmp_path, 1, True)
    assert again.take_over(json.loads(json.dumps(figures.of_trees())))
    for one in (figures, again):
        assert one.most_common(one.refusal_reasons) == {"fewer than 3 rollouts": 3}
