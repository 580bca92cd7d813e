"""Reasons of one rule are counted together, and as many as quarantine.jsonl has."""

from __future__ import annotations

from pathlib import Path

from offline_agent.preferences.records import Refusal, together
from offline_agent.report.html.reading import RunFiles
from offline_agent.report.mining import Figures
from offline_agent.store.run_directory import Quarantine

REFUSED = [
    *(Refusal("step", "t", f"gap below 0.2 of {n} rollouts", {"candidates": n}) for n in (3, 40)),
    *(Refusal("filtered", "t/pruned", "its origin is pruned", {"actions": [n]}) for n in "ab"),
    Refusal("row", "t/step", "no tokens"),
]


def test_closing_table_and_page_count_alike(tmp_path: Path) -> None:
    figures, quarantine = Figures(tmp_path, 1, False), Quarantine(tmp_path / "quarantine.jsonl")
    figures.refused(found := together(REFUSED))
    for one in found:
        quarantine.add(one.kind, one.name, one.reason, **one.facts)
    quarantine.close()
    told = figures.mined("trees", 0)
    assert told["refused"] == {"filtered": 2, "step": 43} and told["quarantined"]["rows"] == 1
    assert list(told["refusal_reasons"]) == ["gap below … of … rollouts", "its origin is pruned", "no tokens"]
    shown = [(kind, reason, count) for kind, reason, count, _ in RunFiles(tmp_path).reasons()]
    assert shown[:2] == [("step", "gap below … of … rollouts", 43), ("filtered", "its origin is pruned", 2)]
