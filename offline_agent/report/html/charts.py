"""Line charts as SVG paths: points, ticks and marks, without any script."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from offline_agent.report.html.text import number

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 340, 150, 44, 10, 10, 20
_POINTS = 300


def line(
    name: str,
    points: Sequence[tuple[float, float]],
    marks: Iterable[tuple[float, str]] = (),
    about: str = "",
    unit: str = "update",
) -> dict[str, Any] | None:
    """Return a chart; None where there are fewer than two finite points.

    Of more than 300 points the least and the greatest of each stretch are drawn, so that no spike is lost.

    Args:
        name: Its heading.
        points: (x, y), x ascending.
        marks: (x, text), drawn as vertical lines.
        about: Meaning of the figure.
        unit: What x counts.
    """
    known = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if len(known) < 2:
        return None
    low, high = min(y for _, y in known), max(y for _, y in known)
    first, last = known[0][0], known[-1][0]
    pad = (high - low) * 0.05 or abs(high) * 0.05 or 0.5
    bottom, top = low - pad, high + pad

    def x_of(x: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (x - first) / ((last - first) or 1), 1)

    def y_of(y: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (top - y) / (top - bottom), 1)

    path = " ".join(f"{x_of(x)},{y_of(y)}" for x, y in _thinned(known))
    return {
        "name": name,
        "about": about,
        "path": path,
        "dots": [(x_of(x), y_of(y)) for x, y in known] if len(known) <= 30 else [(x_of(last), y_of(known[-1][1]))],
        "y_ticks": [(y_of(y), _short(y)) for y in ([low, (low + high) / 2, high] if high > low else [low])],
        "x_ticks": [(x_of(x), _short(x)) for x in dict.fromkeys((first, last))],
        "marks": [(x_of(x), text) for x, text in marks if first <= x <= last],
        "says": f"{name}: from {_short(known[0][1])} to {_short(known[-1][1])} over {len(known):,} {unit}s, least "
        f"{_short(low)}, greatest {_short(high)}",
        "last": _short(known[-1][1]),
        "unit": unit,
    }


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    if len(points) <= _POINTS:
        return list(points)
    out = [points[0]]
    size = math.ceil(len(points) / (_POINTS // 2))
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        out += sorted({min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])})
    return [*out, points[-1]]


def _short(value: float) -> str:
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    return number(value, 3) if abs(value) < 10 else number(value, 1)
