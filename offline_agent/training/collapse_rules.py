"""The rules of the collapse watch, one table, and the history of figures that they ask."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from offline_agent.errors import DataError

FIGURES = (
    "loss", "reward_mean", "reward_std", "success_mean", "zero_spread", "group_spread", "entropy", "kl",
    "clip_low_fraction", "clip_high_fraction", "gradient", "length", "steps", "truncated", "invalid_calls",
    "repeated_calls", "unscored", "mismatch", "trained_share",
)  # fmt: skip
"""Figures of an update's record that are followed, beside `tools` and `env_steps`."""

_LONG = 10  # windows of history a gradient is compared with
_SOLVED = 0.9  # success from which all counts as solved
_TOP_TOOL = 0.9  # one tool's share of the calls
_FELL, _ROSE, _SPREAD, _KL, _SPIKE = 0.3, 3.0, 0.4, 1.0, 10.0  # limits of a collapse's signs


class History:
    """The series of every figure, in the order of the updates, with what rules ask of them.

    A figure that is missing, None or no finite number adds nothing to its series. A figure that several updates of one
    round repeat (same `env_steps`, same value) is one observation, so that a round is not counted once for each of its
    updates. What is not known yet is NaN, of which no comparison holds.

    Args:
        window: Observations of a window; the first and the latest window are compared.
        patience: Updates in a row that a fault must last.

    Attributes:
        series: Observations by figure, oldest first.
        tools: Shares of the calls by tool, of the updates that have them.
        fresh: Figures that the latest record added to.
        broken: Figures of the latest record that are not finite.
        best: Median and least value of the best window of mean rewards before the latest.
    """

    def __init__(self, window: int, patience: int = 1) -> None:
        self.window, self.patience = window, patience
        self.series: dict[str, list[float]] = {}
        self.tools: list[dict[str, float]] = []
        self.fresh: set[str] = set()
        self.broken: list[str] = []
        self.best = (math.nan, math.nan)
        self._round: float | None = None

    def add(self, record: Mapping[str, Any]) -> None:
        """Take one update's record. Raises DataError: a figure is neither a number nor None."""
        numbers = self._read(record)
        now = numbers.get("env_steps")
        repeats, self._round = now is not None and now == self._round, now
        self.fresh = set()
        for name, value in numbers.items():
            series = self.series.setdefault(name, [])
            if not (repeats and series and series[-1] == value):
                series.append(value)
                self.fresh.add(name)
        if "reward_mean" in self.fresh and not math.isnan(self.start("reward_mean")):
            passed = self.series["reward_mean"][: -self.window][-self.window :]
            found = (median(passed), min(passed))
            self.best = found if math.isnan(self.best[0]) else max(self.best, found)

    def _read(self, record: Mapping[str, Any]) -> dict[str, float]:
        """Return a record's finite figures with those derived from them.

        Derived: `tool_top` (share of the most used tool), `tool_entropy` (of the histogram, nats), and
        `relative_spread` (`group_spread` over sqrt(r(1-r)), the largest that rewards in [0, 1] of mean r can have: a
        run that is being solved, or a small round without a success, has little spread without being collapsed).
        """
        update, tools = record.get("update"), record.get("tools") or {}
        given = {name: _number(name, record.get(name), update) for name in (*FIGURES, "env_steps")}
        called = {tool: _number(tool, share, update) for tool, share in tools.items()}
        self.broken = [name for name, v in (*given.items(), *called.items()) if not math.isfinite(v or 0)]
        numbers, calls = (
            {name: v for name, v in part.items() if v is not None and math.isfinite(v)} for part in (given, called)
        )
        if called:
            self.tools.append({tool: calls.get(tool, 0.0) for tool in called})
        if (total := sum(calls.values())) > 0:
            shares = [share / total for share in calls.values() if share > 0]
            numbers["tool_top"] = max(shares)
            numbers["tool_entropy"] = -sum(share * math.log(share) for share in shares)
        spread, reward = numbers.get("group_spread"), numbers.get("reward_mean")
        if spread is not None and reward is not None and 0 < reward < 1:
            numbers["relative_spread"] = spread / math.sqrt(reward * (1 - reward))
        return numbers

    def recent(self, name: str) -> Sequence[float]:
        """Return the latest window; one NaN until there are enough observations for one."""
        values = self.series.get(name, [])
        return values[-self.window :] if len(values) >= self.window else [math.nan]

    def now(self, name: str) -> float:
        """Return the median of the latest window."""
        return median(self.recent(name))

    def start(self, name: str) -> float:
        """Return the median of the first window, once it does not overlap the latest."""
        values = self.series.get(name, [])
        return median(values[: self.window]) if len(values) >= 2 * self.window else math.nan

    def fell(self, name: str, share: float) -> bool:
        """Return whether a figure is below this share of its start.

        No recent value may reach the start's median: a figure that is mostly zero with a few large values (the spread
        of very hard tasks) is noise, not a fall.
        """
        start = self.start(name)
        return start > 0 and self.now(name) < share * start and max(self.recent(name)) < start

    def rose(self, name: str, factor: float) -> bool:
        """Return whether a figure is above so many times its start, and every recent value above the start."""
        start = self.start(name)
        return start > 0 and self.now(name) > factor * start and min(self.recent(name)) > start

    @property
    def success(self) -> float:
        """The latest success, or reward where success is not measured."""
        found = self.now("success_mean")
        return self.now("reward_mean") if math.isnan(found) else found


def _number(name: str, value: Any, update: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"the record of update {update}: {name} is {value!r}, allowed: a number, or null where it was not measured"
        ) from error


def _dropped(history: History, share: float) -> bool:
    """Return whether the mean reward lost this share of its best window."""
    (best, least), recent = history.best, history.recent("reward_mean")
    # no recent value may reach the best window's least: the best of many windows is partly luck
    return best > 0 and max(recent) < least and median(recent) < (1 - share) * best


def _spiked(history: History, times: float) -> bool:
    """Return whether several gradients of the latest window are this many times the usual."""
    values, window = history.series.get("gradient", []), history.window
    if len(values) < 2 * window:
        return False
    # later history counts too: a run whose first groups had no spread starts with hardly any gradient
    usual = max(median(values[:window]), median(values[:-window][-_LONG * window :]))
    return sum(usual > 0 and value > times * usual for value in values[-window:]) >= history.patience


def _jumped(history: History, limit: float) -> bool:
    """Return whether the odds of the latest trained share are this many times the usual, or less by as much."""
    values = history.series["trained_share"]
    before = values[: -history.patience][-history.window :]
    if len(before) < history.window or not (0 < (usual := median(before)) < 1 and 0 < values[-1] < 1):
        return False
    factor = (values[-1] / (1 - values[-1])) / (usual / (1 - usual))
    return not 1 / limit <= factor <= limit


def _not_risen(history: History) -> bool:
    """Return whether it is known that the reward did not rise, by a fifth or from nothing."""
    start, least = history.start("reward_mean"), min(history.recent("reward_mean"))
    return not (math.isnan(start) or history.rose("reward_mean", 1.2) or start <= 0 < least)


def _comparable(history: History) -> bool:
    """Return whether there is more to learn, and the spread is small beside what the mean reward allows, too."""
    little = math.isnan(history.start("relative_spread")) or history.fell("relative_spread", _SPREAD)
    return history.success < _SOLVED and little


def _another_sign(history: History) -> bool:
    """Return whether something beside the reward collapses."""
    entropy = history.fell("entropy", _FELL) or history.rose("entropy", _ROSE)
    spread = history.fell("group_spread", _SPREAD) and _comparable(history)
    return entropy or spread or _spiked(history, _SPIKE) or history.now("kl") > _KL


@dataclass(frozen=True)
class Rule:
    """One rule; it holds where there is a fault that nothing excuses.

    Attributes:
        name: Its name in settings and findings.
        needs: Figures that must be new for it to be looked at; a finding tells them.
        limits: Its thresholds; a finding tells them. docs/online.md has the same.
        fault: Takes the history and the limits. The rule is not over while it is there, whatever excuses it.
        advice: What it means, which figures to look at, which key to change.
        given: What else must be so, else the run is excused, say by a reward that rose.
        tells: More figures that a finding tells.
        at_once: It needs no patience, and is about the latest value.
    """

    name: str
    needs: tuple[str, ...]
    limits: tuple[float, ...]
    fault: Callable[..., bool]
    advice: str
    given: Callable[[History], bool] = lambda history: True
    tells: tuple[str, ...] = ()
    at_once: bool = False


RULES = (
    Rule("mask", ("trained_share",), (), lambda h: not 0 < h.series["trained_share"][-1] < 1,
         "none or all of the tokens are trained on; look at the mask of one batch, and at the chat template",
         at_once=True),
    Rule("mask_shift", ("trained_share",), (), lambda h: _jumped(h, 3.0),
         "a change this sudden is rarely the policy's; look at the mask of one batch and at the observations' lengths"),
    Rule("not_finite", (), (), lambda h: bool(h.broken),
         "look at the rows of this update; lower optimizer.learning_rate", at_once=True),
    Rule("nothing_scored", ("unscored",), (), lambda h: h.series["unscored"][-1] >= 1,
         "look at the errors beside the missing scores, the judge's server and limits.step_seconds"),
    Rule("unscored", ("unscored",), (0.2,), lambda h, most: h.now("unscored") > most,
         "what is learnt is biased to what could be judged; look at the errors and limits.step_seconds"),
    Rule("echo_trap", ("entropy", "group_spread"), (_FELL, _SPREAD),
         lambda h, entropy, spread: h.fell("entropy", entropy) and h.fell("group_spread", spread),
         "the policy repeats what was rewarded once, the reward falls next (RAGEN, 2504.20073); go back a checkpoint "
         "with a lower optimizer.learning_rate, or a higher objective.kl, objective.clip_high or rollouts.temperature",
         given=lambda h: _comparable(h) and not h.now("reward_mean") > 1.02 * h.best[0]),
    Rule("collapse", ("reward_mean",), (0.4,), _dropped,
         "go back to a checkpoint with a lower optimizer.learning_rate and a higher objective.kl; read trajectories",
         given=_another_sign, tells=("entropy", "group_spread", "gradient", "kl")),
    Rule("reward", ("reward_mean",), (0.4,), _dropped,
         "harder tasks do this too: compare the success on the same tasks, and read the latest trajectories"),
    Rule("entropy", ("entropy",), (_FELL,), lambda h, share: h.fell("entropy", share),
         "raise objective.clip_high, objective.kl or rollouts.temperature, or lower optimizer.learning_rate",
         given=lambda h: not h.success >= _SOLVED),
    Rule("entropy_rise", ("entropy", "reward_mean"), (_ROSE,), lambda h, factor: h.rose("entropy", factor),
         "the policy drifts into noise; lower optimizer.learning_rate or objective.clip_high, or raise objective.kl",
         given=_not_risen),
    Rule("spread", ("group_spread",), (_SPREAD,), lambda h, share: h.fell("group_spread", share),
         "set objective.dynamic=true or rollouts.choice=learnability, or raise rollouts.temperature",
         given=_comparable),
    Rule("zero_spread", ("zero_spread",), (0.8,), lambda h, most: h.now("zero_spread") > most,
         "where all fail, the tasks are too hard or the reward is wrong; set objective.dynamic=true or "
         "rollouts.choice=learnability, or raise rollouts.size",
         given=lambda h: h.success < _SOLVED),
    Rule("solved", ("zero_spread",), (0.8, _SOLVED),
         lambda h, most, success: h.now("zero_spread") > most and h.success >= success,
         "this is no collapse: these tasks have nothing left to teach; end the run or take harder tasks"),
    Rule("gradient", ("gradient",), (_SPIKE,), _spiked,
         "spikes that come again mark a collapse that does not heal (RAGEN); lower optimizer.learning_rate",
         at_once=True),
    Rule("kl", ("kl",), (_KL,), lambda h, most: h.now("kl") > most,
         "the policy is far from the offline checkpoint; raise objective.kl or lower optimizer.learning_rate"),
    Rule("mismatch", ("mismatch",), (0.1,), lambda h, most: h.now("mismatch") > most,
         "check the sampler's weights, number format, template and temperature, and set sampler.correction"),
    Rule("length", ("length",), (3.0,), lambda h, factor: h.rose("length", factor),
         "look whether the longer ones succeed more; set objective.overlong_soft, or lower rollouts.max_steps"),
    Rule("short", ("length", "reward_mean"), (3.0,), lambda h, factor: h.fell("length", 1 / factor),
         "the policy gives up early or answers without trying; read a few trajectories with their verdicts",
         given=_not_risen),
    Rule("truncated", ("truncated",), (0.5,), lambda h, most: h.now("truncated") > most,
         "look for loops, or raise rollouts.max_steps or rollouts.max_tokens"),
    Rule("invalid_calls", ("invalid_calls",), (0.3,), lambda h, most: h.now("invalid_calls") > most,
         "train on refusals first (data.negatives of train_sft), and let an invalid call cost reward"),
    Rule("repeated_calls", ("repeated_calls",), (0.5,), lambda h, most: h.now("repeated_calls") > most,
         "let a repeated call cost reward, raise rollouts.temperature, or choose some tools at random"),
    Rule("tools", ("tool_top",), (_TOP_TOOL,), lambda h, share: h.now("tool_top") >= share,
         "look whether the reward can be had by it alone; choose tools at random, or raise rollouts.temperature",
         given=lambda h: h.start("tool_top") < _TOP_TOOL and h.fell("tool_entropy", 0.5) and not h.success >= _SOLVED,
         tells=("tool_entropy",)),
)  # fmt: skip
"""In the order findings of one update are told: what makes the rest meaningless first."""

RULE_NAMES = tuple(rule.name for rule in RULES)
"""Every rule a finding can be of, and `watch.stop` can name."""
