"""Parts of the page that are computed: tokens, charts, shortest versions, checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from offline_agent.report.html.charts import line
from offline_agent.report.html.checks import checks
from offline_agent.report.html.pairs import tokens
from offline_agent.report.html.reading import RunFiles
from offline_agent.report.html.trajectories import view


def test_tokens_have_mask_log_probability_and_change() -> None:
    row = {"chosen_ids": [1, 2, 3, 4], "chosen_mask": [1, 0, 0, 1], "ref_chosen_logps": [-3.0, 0.0, 0.0, -0.001]}
    found = list(tokens(row, "chosen", "<{}>".format, [-1.0, 0.0, 0.0, -0.002]))
    assert [(one["text"], one["kind"]) for one in found] == [("<1>", "s l5 u3"), ("<2><3>", "n"), ("<4>", "s l0 d0")]
    assert found[0]["title"] == "log-probability -3.00 before, -1.00 after (+2.00)"
    unknown = list(tokens({**row, "ref_chosen_logps": None}, "chosen", str, None))
    assert [one["kind"] for one in unknown] == ["s", "n", "s"]


def test_a_chart_keeps_the_spike_that_thinning_would_lose() -> None:
    points = [(float(n), 50.0 if n == 7777 else 0.0) for n in range(10_000)]
    chart = line("gradient", points, [(5.0, "a mark"), (-1.0, "before it")])
    assert chart is not None and len(chart["path"].split()) < 500
    top = min(float(point.split(",")[1]) for point in chart["path"].split())
    assert top == chart["y_ticks"][-1][0] and chart["marks"] == [(44.1, "a mark")]
    assert line("nothing", [(0.0, float("nan")), (1.0, 2.0)]) is None


def trajectory(*actions: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "go"}, *({"role": "assistant", "content": action} for action in actions)]
    return {
        "messages": messages, "task_id": "t", "origin": "search", "success": True, "reward": 1.0, "truncated": False,
        "verdict": None, "criticality": None, "steps": len(actions), **more,
    }  # fmt: skip


def test_the_strip_marks_what_the_shortest_version_leaves_out() -> None:
    shown = view(trajectory("a", "b", "a", "c", criticality=[1.0, None, 0.0, 0.5]), trajectory("a", "c"), 0)
    assert [step["left_out"] for step in shown["steps"]] == [False, True, True, False]
    assert [step["value"] for step in shown["steps"]] == [1.0, None, 0.0, 0.5] and shown["shortest_steps"] == 2


def test_checks_are_shown_with_their_evidence_and_an_unknown_status_is_no_pass(tmp_path: Path) -> None:
    listed = [
        {"check_id": "a", "about": "it holds", "status": "pass", "evidence": "", "measured": {}},
        {"check_id": "b", "status": "skip", "evidence": "no expert", "measured": {"n": 1}},
        {"check_id": "c", "status": "fail"},
        {"check_id": "d", "status": "odd"},
    ]
    (tmp_path / "audit.json").write_text(json.dumps({"results": listed, "verdict": "fail"}))
    (tmp_path / "calibration.json").write_text(json.dumps({"biases": ["position"], "kappa": 0.1}))
    audit, calibration = checks(RunFiles(tmp_path))
    tones = {check["name"]: check["tone"] for check in audit["checks"]}
    assert list(tones.items()) == [("c", "bad"), ("d", "warn"), ("a", "good"), ("b", "quiet")]
    assert audit["checks"][2]["about"] == "it holds" and "no expert" in audit["checks"][3]["evidence"]
    assert audit["words"] == "1 fail, 1 odd, 1 pass, 1 skip"
    assert [check["name"] for check in calibration["checks"]] == ["position"] and "0.1" in calibration["rest"]
