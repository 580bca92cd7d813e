"""The closing table counts the step pairs that rest on few rollouts, and leaves trees in quarantine out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offline_agent.records import Verdict
from offline_agent.report.mining import FEW_ROLLOUTS, Figures, figures_of
from tests.helpers import preferences as kit


def row(kind: str, chosen: int, rejected: int, ended: bool = False) -> dict[str, Any]:
    verdict = {"score": 0.0} if ended else None
    return {
        "kind": kind, "tree_id": "a", "visits_chosen": chosen, "visits_rejected": rejected,
        "verdict_chosen": None, "verdict_rejected": verdict,
    }  # fmt: skip


def test_step_pairs_count_where_an_estimated_side_has_few_rollouts(tmp_path: Path) -> None:
    few, enough = FEW_ROLLOUTS - 1, FEW_ROLLOUTS
    rows = [row("step", few, 99), row("step", 99, few), row("step", enough, enough), row("trajectory", 1, 1)]
    figures = Figures(tmp_path, 1, False)
    assert len(list(figures.count_pairs([*rows, row("step", enough, 1, ended=True)]))) == 5
    assert figures.totals["few_rollouts"] == 2


def test_a_tree_in_quarantine_says_nothing_of_the_policy() -> None:
    tree = kit.grow(["A B leave", "B leave"])
    tree.note_first(Verdict(1.0, True, "kit"), None, 3)
    assert len(figures_of(tree).rollouts) == 1 and figures_of(tree).best == (1.0, 1.0)
    tree.quarantined = "its verdicts do not repeat"
    assert figures_of(tree).rollouts == [] and figures_of(tree).best is None
