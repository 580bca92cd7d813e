"""Parts of the page that are computed: charts."""

from __future__ import annotations

from offline_agent.report.html.training import line


def test_a_chart_keeps_the_spike_that_thinning_would_lose() -> None:
    points = [(float(n), 50.0 if n == 7777 else 0.0) for n in range(10_000)]
    chart = line("gradient", points, [(5.0, "a mark"), (-1.0, "before it")])
    assert chart is not None and len(chart["path"].split()) < 500
    top = min(float(point.split(",")[1]) for point in chart["path"].split())
    assert top == chart["y_ticks"][-1][0] and chart["marks"] == [(44.1, "a mark")]
    assert line("nothing", [(0.0, float("nan")), (1.0, 2.0)]) is None
