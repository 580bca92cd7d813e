"""Parts of the page that are computed: tokens and charts."""

from __future__ import annotations

from offline_agent.report.html.pairs import tokens
from offline_agent.report.html.training import line


def test_tokens_have_mask_and_log_probability() -> None:
    row = {"chosen_ids": [1, 2, 3, 4], "chosen_mask": [1, 0, 0, 1], "ref_chosen_logps": [-3.0, 0.0, 0.0, -0.001]}
    found = list(tokens(row, "chosen", "<{}>".format))
    assert [(one["text"], one["kind"]) for one in found] == [("<1>", "s l5"), ("<2><3>", "n"), ("<4>", "s l0")]
    assert found[0]["title"] == "log-probability -3.00"
    unknown = list(tokens({**row, "ref_chosen_logps": None}, "chosen", str))
    assert [one["kind"] for one in unknown] == ["s", "n", "s"]


def test_a_chart_keeps_the_spike_that_thinning_would_lose() -> None:
    points = [(float(n), 50.0 if n == 7777 else 0.0) for n in range(10_000)]
    chart = line("gradient", points, [(5.0, "a mark"), (-1.0, "before it")])
    assert chart is not None and len(chart["path"].split()) < 500
    top = min(float(point.split(",")[1]) for point in chart["path"].split())
    assert top == chart["y_ticks"][-1][0] and chart["marks"] == [(44.1, "a mark")]
    assert line("nothing", [(0.0, float("nan")), (1.0, 2.0)]) is None
