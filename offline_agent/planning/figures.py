"""Figures of a plan: expected values with bounds, actual values, and the table of both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

CONFIDENCE = 0.95


class Forecast(NamedTuple):
    """An expected value; None = not known.

    `low` and `high` bound it with probability `CONFIDENCE`; None = no spread is known.
    """

    expected: float | None = None
    low: float | None = None
    high: float | None = None

    def times(self, factor: float) -> Forecast:
        """Return it multiplied by a number of 0 or more."""
        return Forecast(*(None if value is None else value * factor for value in self))

    def plus(self, other: Forecast) -> Forecast:
        """Return the sum. Bounds are added: both come from the same few tasks, so their errors are not independent."""
        return Forecast(*(None if None in (a, b) else a + b for a, b in zip(self, other, strict=True)))  # type: ignore[operator]

    def map(self, function: Callable[[float], float]) -> Forecast:
        """Return the forecast of an increasing function of the value."""
        return Forecast(*(None if value is None else function(value) for value in self))


def exactly(value: float) -> Forecast:
    """Return the forecast of a known value."""
    return Forecast(value, value, value)


def total(each: Sequence[float], count: float, known: bool = True) -> Forecast:
    """Return the total of `count` units, from the units that were seen.

    The bounds are a prediction interval: the total of k unseen units is k·mean ± t·s·sqrt(k·(1 + k/m)), where m units
    of standard deviation s were seen.

    Args:
        each: Value of every unit seen; not empty.
        count: Number of units.
        known: The units seen are among them.
    """
    from scipy import stats

    seen = len(each)
    done = sum(each) if known and count >= seen else 0.0
    left = count - seen if known and count >= seen else count
    mean = sum(each) / seen
    expected = done + left * mean
    if not left:
        return exactly(expected)
    if seen < 2:  # one unit has no spread
        return Forecast(expected)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in each) / (seen - 1))
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, seen - 1))
    margin = quantile * deviation * math.sqrt(left * (1 + left / seen))
    return Forecast(expected, max(done, expected - margin), expected + margin)


def grown(amount: float, each: Sequence[float], count: float, known: bool = True) -> Forecast:
    """Return the growth of an amount that was spent on all units seen together, in proportion to `each`.

    If `each` is 0 throughout, all units count alike.

    Args:
        amount: The amount for the units seen.
        each, count, known: See `total`.
    """
    if not amount:
        return exactly(0.0)
    if not sum(each):
        each = [1.0] * len(each)
        return Forecast(total(each, count, known).times(amount / sum(each)).expected)
    return total(each, count, known).times(amount / sum(each))


def rows(amount: float, each: Sequence[float], count: float, known: bool = True) -> Forecast:
    """Return the growth of a number of rows; see `grown`.

    If no row was seen, there are at most 3 in as many units with 95 % probability (the rule of three, Hanley &
    Lippman-Hand 1983).
    """
    seen = len(each)
    if amount:
        return grown(amount, each, count, known)
    return Forecast(0.0, 0.0, 3 * max(0.0, count - seen if known else count) / seen)


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of a plan.

    Attributes:
        name: Its name in summary.json.
        forecast: The expected value.
        unit: `tokens`, `calls`, `rows`, `seconds`, `bytes` …
        note: Its source, or the reason why it is not known.
    """

    name: str
    forecast: Forecast
    unit: str = ""
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {**self.forecast._asdict(), "unit": self.unit, "note": self.note}

    @classmethod
    def from_json(cls, name: str, data: Mapping[str, Any]) -> Figure:
        """Rebuild it from `to_json`."""
        return cls(name, Forecast(data["expected"], data["low"], data["high"]), data["unit"], data["note"])


def unknown(name: str, unit: str, why: str) -> Figure:
    """Return a figure without a value."""
    return Figure(name, Forecast(), unit, why)


def beside(figures: Iterable[Figure], actual: Mapping[str, float | None]) -> dict[str, dict[str, Any]]:
    """Return expected and actual values for summary.json, by name; `ratio` = actual / expected."""
    out = {}
    for figure in figures:
        came, hoped = actual.get(figure.name), figure.forecast.expected
        ratio = round(came / hoped, 4) if came is not None and hoped else None
        out[figure.name] = {**figure.to_json(), "actual": came, "ratio": ratio}
    return out


def table(figures: Mapping[str, Mapping[str, Any]], title: str) -> Any:
    """Return a table of figures given as JSON, with actual values where there are any."""
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
    """Return a value with its unit, short enough for a table."""
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
