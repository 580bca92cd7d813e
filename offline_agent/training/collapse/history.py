"""The memory of the collapse watch: one series for each figure, and the questions that rules ask of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

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
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self.fresh: set[str] = set()
        self.broken: tuple[str, ...] = ()
        self.top_tool: str | None = None
        self._series: dict[str, list[float]] = {}
        self._best: dict[str, list[tuple[float, float]]] = {}  # by end of the window, best so far
        self._round: float | None = None

    def add(self, record: Mapping[str, Any]) -> None:
        """Take one update's record; `fresh` then names the figures it added to, `broken` those that are not finite.

        Raises:
            DataError: A figure is neither a number nor None.
        """
        numbers, self.broken, top = read(record)
        self.top_tool = top or self.top_tool
        now = numbers.pop("env_steps", None)
        repeats = now is not None and now == self._round
        self._round = now
        self.fresh = set()
        for name, value in numbers.items():
            series = self._series.setdefault(name, [])
            if repeats and series and series[-1] == value:
                continue
            series.append(value)
            self.fresh.add(name)

    def values(self, name: str) -> Sequence[float]:
        """Every observation of a figure, oldest first."""
        return self._series.get(name, [])

    def first(self, name: str) -> list[float]:
        """The first window; empty until it is full."""
        values = self.values(name)
        return list(values[: self.window]) if len(values) >= self.window else []

    def recent(self, name: str) -> list[float]:
        """The latest window; empty until there are enough observations for one."""
        values = self.values(name)
        return list(values[-self.window :]) if len(values) >= self.window else []

    def apart(self, name: str) -> tuple[list[float], list[float]] | None:
        """The first and the latest window; None until they do not overlap."""
        if len(self.values(name)) < 2 * self.window:
            return None
        return self.first(name), self.recent(name)

    def fell(self, name: str, share: float) -> bool:
        """Return whether a figure's latest window lies below a share of its start.

        The medians are compared, and no recent value may reach the start's median: a figure that is mostly zero with
        a few large values (the spread of very hard tasks) is noise, not a fall.
        """
        both = self.apart(name)
        if both is None:
            return False
        start = median(both[0])
        return start > 0 and median(both[1]) < share * start and max(both[1]) < start

    def grew(self, name: str, factor: float) -> bool:
        """Return whether a figure's latest window lies above a multiple of its start; guarded as `fell` is."""
        both = self.apart(name)
        if both is None:
            return False
        start = median(both[0])
        return start > 0 and median(both[1]) > factor * start and min(both[1]) > start

    def best(self, name: str) -> tuple[float, float] | None:
        """Median and least value of the best window before the latest one; None until there is one."""
        values, known = self.values(name), self._best.setdefault(name, [])
        for end in range(self.window + len(known), len(values) - self.window + 1):
            window = values[end - self.window : end]
            this = (median(window), min(window))
            known.append(max(known[-1], this) if known else this)
        return known[-1] if known else None


class Reading(NamedTuple):
    """A record as the watch sees it.

    Attributes:
        numbers: Its finite figures and those derived from them.
        broken: Names of figures that are not finite.
        top_tool: The most used tool; None where no call was counted.
    """

    numbers: dict[str, float]
    broken: tuple[str, ...]
    top_tool: str | None


def read(record: Mapping[str, Any]) -> Reading:
    """Read a record.

    Derived: `tool_top` (share of the most used tool), `tool_entropy` (of the histogram, nats), and `relative_spread`
    (`group_spread` over sqrt(r(1-r)), the largest that rewards in [0, 1] of mean r can have: a run that is being
    solved, or a small round without a success, has little spread without being collapsed).

    Raises:
        DataError: A figure is neither a number nor None.
    """
    numbers: dict[str, float] = {}
    broken: list[str] = []
    for name in (*FIGURES, "env_steps"):
        _take(name, record.get(name), record, numbers, broken)
    tools: dict[str, float] = {}
    for tool, share in (record.get("tools") or {}).items():
        _take(tool, share, record, tools, broken)
    total = sum(tools.values())
    top = max(tools, key=lambda tool: (tools[tool], tool)) if total > 0 else None
    if top is not None:
        shares = [share / total for share in tools.values() if share > 0]
        numbers["tool_top"] = max(shares)
        numbers["tool_entropy"] = -sum(share * math.log(share) for share in shares)
    spread, reward = numbers.get("group_spread"), numbers.get("reward_mean")
    if spread is not None and reward is not None and 0 < reward < 1:
        numbers["relative_spread"] = spread / math.sqrt(reward * (1 - reward))
    return Reading(numbers, tuple(broken), top)


def _take(name: str, value: Any, record: Mapping[str, Any], numbers: dict[str, float], broken: list[str]) -> None:
    if value is None:
        return
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"the record of update {record.get('update')}: {name} is {value!r}, allowed: a number, or null where it "
            "was not measured"
        ) from error
    if math.isfinite(number):
        numbers[name] = number
    else:
        broken.append(name)
