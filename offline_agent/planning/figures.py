"""Figures of a plan: what is expected, between which bounds, and what it came to in the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

CONFIDENCE = 0.95
_Z = 1.959963984540054  # 97.5 % quantile of the normal distribution
_T = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764}  # those of Student's t for which the expansion is too coarse


class Estimate(NamedTuple):
    """What a figure is expected to be; None = nobody can say.

    `low` and `high` bound it with probability `CONFIDENCE` where they come from a spread, and are None without one.
    """

    expected: float | None = None
    low: float | None = None
    high: float | None = None

    def times(self, factor: float) -> Estimate:
        """Return it multiplied by a number of 0 or more."""
        return Estimate(*(None if value is None else value * factor for value in self))

    def plus(self, other: Estimate) -> Estimate:
        """Return the sum; bounds are added, as if both erred the same way: they come from the same few tasks."""
        return Estimate(*(None if None in (a, b) else a + b for a, b in zip(self, other, strict=True)))  # type: ignore[operator]

    def map(self, function: Callable[[float], float]) -> Estimate:
        """Return it under a rising function."""
        return Estimate(*(None if value is None else function(value) for value in self))


def exactly(value: float) -> Estimate:
    """Return a figure that is known."""
    return Estimate(value, value, value)


def t_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t (Abramowitz & Stegun 26.7.5); `freedom` is 1 or more."""
    if freedom in _T:
        return _T[freedom]
    z, n = _Z, freedom
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def total(each: Sequence[float], count: float, known: bool = True) -> Estimate:
    """Return what `count` units come to together, from those that were looked at.

    The bounds are those of a prediction interval: of k units that nobody saw, k·mean ± t·s·sqrt(k·(1 + k/m)), with m
    units seen of deviation s.

    Args:
        each: The figure of every unit seen; not empty.
        count: How many units there will be.
        known: The units seen are among them, and come to the same again.
    """
    seen = len(each)
    done = sum(each) if known and count >= seen else 0.0
    left = count - seen if known and count >= seen else count
    mean = sum(each) / seen
    expected = done + left * mean
    if not left:
        return exactly(expected)
    if seen < 2:
        return Estimate(expected)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in each) / (seen - 1))
    margin = t_quantile(seen - 1) * deviation * math.sqrt(left * (1 + left / seen))
    return Estimate(expected, max(done, expected - margin), expected + margin)


def grown(amount: float, each: Sequence[float], count: float, known: bool = True) -> Estimate:
    """Return what an amount grows to that was spent on all units seen together and goes with their figure `each`.

    Where that figure is 0 throughout, units count alike.
    """
    if not amount:
        return exactly(0.0)
    if not sum(each):
        each = [1.0] * len(each)
        return Estimate(total(each, count, known).times(amount / sum(each)).expected)
    return total(each, count, known).times(amount / sum(each))


def rows(amount: float, each: Sequence[float], count: float, known: bool = True) -> Estimate:
    """Return what a number of rows grows to; as `grown`.

    Of what was seen nowhere there may be some nevertheless: up to 3 in as many units as were seen, with 95 %
    probability (Hanley & Lippman-Hand 1983, the rule of three).
    """
    seen = len(each)
    if amount:
        return grown(amount, each, count, known)
    return Estimate(0.0, 0.0, 3 * max(0.0, count - seen if known else count) / seen)


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of a plan.

    Attributes:
        name: Under which it stands in summary.json.
        estimate: What is expected.
        unit: `tokens`, `calls`, `rows`, `seconds`, `bytes` …
        note: From where it is known; or why it is not.
    """

    name: str
    estimate: Estimate
    unit: str = ""
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {**self.estimate._asdict(), "unit": self.unit, "note": self.note}

    @classmethod
    def from_json(cls, name: str, data: Mapping[str, Any]) -> Figure:
        """Rebuild it from `to_json`."""
        return cls(name, Estimate(data["expected"], data["low"], data["high"]), data["unit"], data["note"])


def unknown(name: str, unit: str, why: str) -> Figure:
    """Return a figure that nobody can know."""
    return Figure(name, Estimate(), unit, why)


def beside(figures: Iterable[Figure], actual: Mapping[str, float | None]) -> dict[str, dict[str, Any]]:
    """Return what summary.json says of expected and actual: by name, `ratio` = actual / expected."""
    out = {}
    for figure in figures:
        came, hoped = actual.get(figure.name), figure.estimate.expected
        ratio = round(came / hoped, 4) if came is not None and hoped else None
        out[figure.name] = {**figure.to_json(), "actual": came, "ratio": ratio}
    return out


def table(figures: Mapping[str, Mapping[str, Any]], title: str) -> Any:
    """Return a table of figures as JSON; with what they came to, where that is known."""
    from rich.table import Table

    done = any("actual" in figure for figure in figures.values())
    out = Table(title=title, title_justify="left")
    out.add_column("what")
    for column in ("expected", f"{CONFIDENCE:.0%} between", *(("actual", "ratio") if done else ())):
        out.add_column(column, justify="right")
    out.add_column("note")
    for name, figure in figures.items():
        unit, low, high = figure["unit"], figure["low"], figure["high"]
        cells = [name.replace("_", " "), amount(figure["expected"], unit), _between(low, high, unit)]
        if done:
            cells += [amount(figure["actual"], unit), "–" if figure["ratio"] is None else f"{figure['ratio']:.2f}"]
        out.add_row(*cells, figure["note"])
    return out


def _between(low: float | None, high: float | None, unit: str) -> str:
    if low is None:
        return "not known" if high is None else f"at most {amount(high, unit)}"
    return "no spread" if low == high else f"{amount(low, unit)} – {amount(high, unit)}"


def amount(value: float | None, unit: str) -> str:
    """Return a figure in words that are short enough for a table."""
    if value is None:
        return "not known"
    if unit == "seconds":
        if value < 120:
            return f"{value:.1f} s"
        return f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:,.1f} h"
    if unit == "bytes":
        for size, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
            if value >= size:
                return f"{value / size:,.1f} {name}"
        return f"{value:,.0f} B"
    return f"{value:,.0f}"
