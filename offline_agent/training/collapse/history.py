"""The memory of the collapse watch: one series for each figure, and the questions that rules ask of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from offline_agent.errors import DataError

FIGURES = (
    "loss", "reward_mean", "reward_std", "success_mean", "zero_spread", "group_spread", "entropy", "kl",
    "clip_low_fraction", "clip_high_fraction", "gradient", "length", "steps", "truncated", "invalid_calls",
    "repeated_calls", "unscored", "mismatch", "trained_share",
)  # fmt: skip
"""Figures of an update's record that are followed, beside `tools` and `env_steps`."""


class History:
    """The series of every figure, in the order of the updates.

    A figure that is missing, None or no finite number adds nothing to its series. A figure that several updates of one
    round repeat (same `env_steps`, same value) is one observation, so that a round is not counted once for each of its
    updates.

    Args:
        window: Observations of a window; the first and the latest window are compared.
        patience: Updates in a row that a fault must last.

    Attributes:
        fresh: Figures that the latest record added to.
        broken: Figures of the latest record that are not finite.
        best: Median and least value of the best window of mean rewards before the latest; None until there is one.
    """

    def __init__(self, window: int, patience: int) -> None:
        self.window, self.patience = window, patience
        self.fresh: set[str] = set()
        self.broken: tuple[str, ...] = ()
        self.best: tuple[float, float] | None = None
        self._series: dict[str, list[float]] = {}
        self._round: float | None = None

    def add(self, record: Mapping[str, Any]) -> None:
        """Take one update's record.

        Raises:
            DataError: A figure is neither a number nor None.
        """
        numbers, self.broken = read(record)
        now = numbers.pop("env_steps", None)
        repeats = now is not None and now == self._round
        self._round = now
        self.fresh = set()
        for name, value in numbers.items():
            series = self._series.setdefault(name, [])
            if not (repeats and series and series[-1] == value):
                series.append(value)
                self.fresh.add(name)
        if "reward_mean" in self.fresh and self.apart("reward_mean") is not None:
            passed = self.values("reward_mean")[: -self.window][-self.window :]
            self.best = max(self.best or (-math.inf, 0.0), (median(passed), min(passed)))

    def values(self, name: str) -> Sequence[float]:
        """Every observation of a figure, oldest first."""
        return self._series.get(name, [])

    def recent(self, name: str) -> Sequence[float]:
        """The latest window; empty until there are enough observations for one."""
        values = self.values(name)
        return values[-self.window :] if len(values) >= self.window else []

    def apart(self, name: str) -> tuple[Sequence[float], Sequence[float]] | None:
        """The first and the latest window; None until they do not overlap."""
        values = self.values(name)
        return (values[: self.window], values[-self.window :]) if len(values) >= 2 * self.window else None

    def moved(self, name: str, factor: float) -> bool:
        """Return whether a figure's latest window is below its start times a factor under 1, or above one over 1.

        The medians are compared, and no recent value may reach the start's median: a figure that is mostly zero with
        a few large values (the spread of very hard tasks) is noise, not a fall.
        """
        both = self.apart(name)
        if both is None or (start := median(both[0])) <= 0:
            return False
        now = median(both[1])
        if factor < 1:
            return now < factor * start and max(both[1]) < start
        return now > factor * start and min(both[1]) > start


def read(record: Mapping[str, Any]) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return a record's finite figures with those derived from them, and the names of figures that are not finite.

    Derived: `tool_top` (share of the most used tool), `tool_entropy` (of the histogram, nats), and `relative_spread`
    (`group_spread` over sqrt(r(1-r)), the largest that rewards in [0, 1] of mean r can have: a run that is being
    solved, or a small round without a success, has little spread without being collapsed).

    Raises:
        DataError: A figure is neither a number nor None.
    """
    update = record.get("update")
    given = {name: _number(name, record.get(name), update) for name in (*FIGURES, "env_steps")}
    called = {tool: _number(tool, share, update) for tool, share in (record.get("tools") or {}).items()}
    numbers, tools = ({k: v for k, v in part.items() if v is not None and math.isfinite(v)} for part in (given, called))
    broken = [name for name, v in (*given.items(), *called.items()) if v is not None and not math.isfinite(v)]
    if (total := sum(tools.values())) > 0:
        shares = [share / total for share in tools.values() if share > 0]
        numbers["tool_top"] = max(shares)
        numbers["tool_entropy"] = -sum(share * math.log(share) for share in shares)
    spread, reward = numbers.get("group_spread"), numbers.get("reward_mean")
    if spread is not None and reward is not None and 0 < reward < 1:
        numbers["relative_spread"] = spread / math.sqrt(reward * (1 - reward))
    return numbers, tuple(broken)


def _number(name: str, value: Any, update: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"the record of update {update}: {name} is {value!r}, allowed: a number, or null where it was not measured"
        ) from error


def span(values: Sequence[float], window: int) -> tuple[float, float] | None:
    """Return the medians of the first and the last window; of smaller ones where these would overlap."""
    if not values:
        return None
    size = max(1, min(window, len(values) // 2))
    return median(values[:size]), median(values[-size:])


def arrow(both: tuple[float, float] | None, form: str = ".3g") -> str:
    """Return a change in words: `0.6 -> 0.1`, `not measured`."""
    if both is None:
        return "not measured"
    start, now = (format(value, form) for value in both)
    return now if start == now else f"{start} -> {now}"
