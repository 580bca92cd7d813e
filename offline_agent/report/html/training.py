"""Curves of the page, as SVG paths: figures of the updates with the marks of the watch, and success over calls."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from offline_agent.report.html.reading import RunFiles
from offline_agent.report.html.text import number

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 340, 150, 44, 10, 10, 20
_POINTS = 300
_ABOUT = {
    "loss": "the loss that is minimised",
    "preference": "the preference loss alone; log 2 = 0.693 where the model does not differ from its reference",
    "sft": "negative log-probability of the chosen sides, a token",
    "anchor": "negative log-probability of the replayed successes, a token",
    "accuracy": "share of the pairs whose chosen side gained more than the rejected one, of those where they differ",
    "margin": "how much more the chosen side gained, times beta",
    "rewards_chosen": "gain of the chosen side over the reference, times beta",
    "rewards_rejected": "gain of the rejected side over the reference, times beta",
    "entropy": "nats a token of the policy's",
    "grad_norm": "norm of the gradient before clipping",
    "gradient": "norm of the gradient before clipping",
    "learning_rate": "",
    "success_mean": "share of the round's episodes that were solved",
    "reward_mean": "mean reward of the round's episodes",
    "group_spread": "standard deviation of the rewards within a group",
    "shared_states": "share of the turns whose state another turn of the group has too",
    "zero_spread": "share of the groups whose episodes all have the same reward: nothing to learn from",
    "kl": "distance to the reference, nats a token",
    "length": "agent tokens of an episode",
    "steps": "actions of an episode",
    "truncated": "share of the episodes cut by a limit of the policy",
    "invalid_calls": "share of the calls that could not be executed as written",
    "accepted_calls": "share of the turns that are calls which the environment carried out",
    "teacher_kl": "distance to the teacher, nats a token; 0 where there is none",
    "repeated_calls": "share of the calls that repeat the one before",
    "mismatch": "mean difference of the log-probabilities of sampler and trainer, nats",
    "unscored": "share of the episodes without a score",
}
"""Figures of updates that are drawn, in this order, with their meaning."""


def charts(run: RunFiles) -> list[dict[str, Any]]:
    """Return the curves of a run's updates; empty where there are none."""
    records = [record for record in run.events() if "update" in record]
    marks = [(float(update), f"{rule}: {text}") for rule, update, text in run.summary.get("findings") or ()]
    out = []
    for name, about in _ABOUT.items():
        found = [(float(record["update"]), float(record[name])) for record in records if record.get(name) is not None]
        out.append(line(name.replace("_", " "), found, marks, about))
    steps = [(record["env_steps"], record.get("success_mean")) for record in records if "env_steps" in record]
    known = [(float(at), float(share)) for at, share in steps if share is not None]
    out.append(line("success over calls", known, (), "over the environment's steps, the cost that counts", "call"))
    return [chart for chart in out if chart is not None]


def stages(run: RunFiles) -> Iterator[tuple[str, str, bool]]:
    """Yield (name, command, whether it has a page of its own) of the stages that are inside a run directory."""
    for file in sorted(run.path.glob("*/manifest.json")) + sorted(run.path.glob("iteration-*/*/manifest.json")):
        folder = file.parent
        command = RunFiles(folder).json("manifest.json").get("command", "?")
        yield str(folder.relative_to(run.path)), command, (folder / "report.html").is_file()


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
