"""The collapse watch: says from the figures of each update when an online run goes wrong, before its reward tells.

In a collapse of multi-turn training entropy and the spread of rewards within a group fall first, the reward follows,
then gradient norms spike (the Echo Trap of RAGEN, 2504.20073). The watch compares medians of the latest window with
the run's first, asks a fault to last, and says it once until it is over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from pydantic import model_validator

from offline_agent.errors import did_you_mean
from offline_agent.sections import Section, key

FIGURES = (
    "loss", "reward_mean", "reward_std", "success_mean", "zero_spread", "group_spread", "entropy", "kl",
    "clip_low_fraction", "clip_high_fraction", "gradient", "length", "steps", "truncated", "invalid_calls",
    "repeated_calls", "accepted_calls", "unscored", "mismatch", "trained_share",
)  # fmt: skip
"""Figures of an update's record that are followed, beside `tools` and `env_steps`."""


class History:
    """The series of every figure, in the order of the updates, with what rules ask of them.

    A figure that is missing, None or no finite number adds nothing to its series. One that several updates of a round
    repeat (same `env_steps`, same value) is one observation. What is not known yet is NaN, of which no comparison
    holds.

    Args:
        window: Observations of a window; the first and the latest window are compared.

    Attributes:
        series: Observations by figure, oldest first; `tool_top` is the share of the calls of the most used tool.
        fresh: Figures that the latest record added to.
        best: Median and least value of the best window of mean rewards before the latest.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self.series: dict[str, list[float]] = {}
        self.fresh: set[str] = set()
        self.best = (math.nan, math.nan)
        self._round: float | None = None

    def add(self, record: Mapping[str, Any]) -> None:
        """Take one update's record."""
        shares = [share for share in (record.get("tools") or {}).values() if share is not None]
        given = {name: record.get(name) for name in (*FIGURES, "env_steps")} | {"tool_top": max(shares, default=None)}
        numbers = {name: float(value) for name, value in given.items() if value is not None and math.isfinite(value)}
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
        """Return whether a figure is below this share of its start, and every recent value below the start."""
        start = self.start(name)
        # a figure that is mostly zero with a few large values (the spread of very hard tasks) is noise, not a fall
        return start > 0 and self.now(name) < share * start and max(self.recent(name)) < start

    def rose(self, name: str, factor: float) -> bool:
        """Return whether a figure is above so many times its start, and every recent value above the start."""
        start = self.start(name)
        return start > 0 and self.now(name) > factor * start and min(self.recent(name)) > start

    def above(self, name: str, limit: float) -> bool:
        """Return whether a figure is above a limit."""
        return self.now(name) > limit

    def dropped(self, name: str, share: float) -> bool:
        """Return whether the mean reward lost this share of its best window."""
        (best, least), recent = self.best, self.recent(name)
        # no recent value may reach the best window's least: the best of many windows is partly luck
        return best > 0 and max(recent) < least and median(recent) < (1 - share) * best

    def spiked(self, name: str, times: float) -> bool:
        """Return whether most gradients of the latest window are this many times the usual, start or since."""
        # later history counts too: a run whose first groups had no spread starts with hardly any gradient
        before = median(self.series.get(name, [])[: -self.window] or [math.nan])
        return self.now(name) > times * max(self.start(name), before)

    @property
    def unsolved(self) -> bool:
        """Whether success, or else reward, is below 0.9: a solved run has little entropy and spread, too."""
        found = self.now("success_mean")
        return not (self.now("reward_mean") if math.isnan(found) else found) >= 0.9

    def change(self, name: str, form: str = ".3g") -> str:
        """Return a change in words: `0.6 -> 0.1`, `not measured`; of smaller windows where two would overlap."""
        values = self.series.get(name, [])
        if not values:
            return "not measured"
        size = max(1, min(self.window, len(values) // 2))
        start, now = (format(median(part), form) for part in (values[:size], values[-size:]))
        return now if start == now else f"{start} -> {now}"


@dataclass(frozen=True)
class Rule:
    """One rule; a finding tells its figures and limits, which docs/online.md has too, and its advice.

    Attributes:
        name: Its name in settings and findings.
        needs: Figures that must be new for it to be looked at.
        limits: Its thresholds.
        holds: Takes the history, the first of the figures, and the limits.
        advice: What it means, which figures to look at, which key to change.
        stops: It stops a run by default. The others have harmless causes too, such as a harder curriculum, or can heal.
        at_once: It needs no patience.
    """

    name: str
    needs: tuple[str, ...]
    limits: tuple[float, ...]
    holds: Callable[..., bool]
    advice: str
    stops: bool = False
    at_once: bool = False


def _shrank(h: History, name: str, share: float) -> bool:
    return h.fell(name, share) and h.unsolved


def _echo(h: History, name: str, entropy: float, spread: float) -> bool:
    fell = h.fell(name, entropy) and h.fell("group_spread", spread)
    return fell and h.unsolved and not h.now("reward_mean") > 1.02 * h.best[0]


def _collapsed(h: History, name: str, share: float) -> bool:
    """Return whether the reward fell, and another sign of collapse is there."""
    entropy = h.fell("entropy", 0.3) or h.rose("entropy", 3)
    other = entropy or h.fell("group_spread", 0.4) or h.spiked("gradient", 10) or h.above("kl", 1)
    return h.dropped(name, share) and other


RULES = (
    Rule("mask", ("trained_share",), (), lambda h, name: not 0 < h.series[name][-1] < 1,
         "none or all of the tokens are trained on; look at the mask of one batch, and at the chat template",
         stops=True, at_once=True),
    Rule("nothing_scored", ("unscored",), (), lambda h, name: h.series[name][-1] >= 1,
         "look at the errors beside the missing scores, the judge's server and limits.step_seconds", stops=True),
    Rule("unscored", ("unscored",), (0.2,), History.above,
         "what is learnt is biased to what could be judged; look at the errors and limits.step_seconds"),
    Rule("echo_trap", ("entropy", "group_spread"), (0.3, 0.4), _echo,
         "the policy repeats what was rewarded once, the reward falls next (RAGEN, 2504.20073); go back a checkpoint "
         "with a lower optimizer.learning_rate, or a higher objective.kl, objective.clip_high or rollouts.temperature",
         stops=True),
    Rule("collapse", ("reward_mean",), (0.4,), _collapsed,
         "go back to a checkpoint with a lower optimizer.learning_rate and a higher objective.kl; read trajectories",
         stops=True),
    Rule("reward", ("reward_mean",), (0.4,), History.dropped,
         "harder tasks do this too: compare the success on the same tasks, and read the latest trajectories"),
    Rule("entropy", ("entropy",), (0.3,), _shrank,
         "raise objective.clip_high, objective.kl or rollouts.temperature, or lower optimizer.learning_rate"),
    Rule("entropy_rise", ("entropy",), (3,), History.rose,
         "noise, where the reward does not rise; lower optimizer.learning_rate or objective.clip_high, or raise "
         "objective.kl"),
    Rule("spread", ("group_spread",), (0.4,), _shrank,
         "set objective.dynamic=true or rollouts.choice=learnability, or raise rollouts.temperature"),
    Rule("zero_spread", ("zero_spread",), (0.8,), History.above,
         "where all succeed, end the run or take harder tasks; where all fail, the tasks are too hard or the reward is "
         "wrong: set objective.dynamic=true or rollouts.choice=learnability, or raise rollouts.size"),
    Rule("gradient", ("gradient",), (10,), History.spiked,
         "spikes that come again mark a collapse that does not heal (RAGEN); lower optimizer.learning_rate"),
    Rule("kl", ("kl",), (1,), History.above,
         "the policy is far from the offline checkpoint; raise objective.kl or lower optimizer.learning_rate"),
    Rule("mismatch", ("mismatch",), (0.1,), History.above,
         "check the sampler's weights, number format, template and temperature, and set sampler.correction"),
    Rule("length", ("length",), (3,), History.rose,
         "look whether the longer ones succeed more; set objective.overlong_soft, or lower rollouts.max_steps"),
    Rule("truncated", ("truncated",), (0.5,), History.above,
         "look for loops, or raise rollouts.max_steps or rollouts.max_tokens"),
    Rule("invalid_calls", ("invalid_calls",), (0.3,), History.above,
         "train on refusals first (data.negatives of train_sft), and let an invalid call cost reward"),
    Rule("repeated_calls", ("repeated_calls",), (0.5,), History.above,
         "let a repeated call cost reward, or raise rollouts.temperature"),
    Rule("accepted_calls", ("accepted_calls",), (0.5,), _shrank,
         "the policy loses its calls; lower objective.distil or optimizer.learning_rate, and read trajectories"),
    Rule("tools", ("tool_top",), (0.9,), lambda h, name, share: h.now(name) >= share > h.start(name) and h.unsolved,
         "one tool is nearly all that is called; can the reward be had by it alone? raise rollouts.temperature"),
)  # fmt: skip
"""In the order findings of one update are told: what makes the rest meaningless first."""

RULE_NAMES = tuple(rule.name for rule in RULES)
STOP = tuple(rule.name for rule in RULES if rule.stops)
"""Rules that stop a run by default."""


class WatchSection(Section):
    """The collapse watch; `docs/online.md` has its rules and their limits."""

    enabled: bool = key(True, "warn of collapse, and stop where the rules say so; false = keep quiet")
    window: int = key(5, "observations of a window; the latest is compared with the first", ge=2)
    patience: int = key(3, "updates in a row that a rule must hold; at most watch.window", ge=1)
    stop: tuple[str, ...] = key(
        STOP,
        "rules that stop the run, which then takes the newest checkpoint from before; [] = none. The others: "
        + ", ".join(name for name in RULE_NAMES if name not in STOP),
        strict=False,
    )

    @model_validator(mode="after")
    def _known(self) -> WatchSection:
        faults = [
            f"watch.stop: got {name!r}, allowed: {', '.join(RULE_NAMES)}.{did_you_mean(name, RULE_NAMES)}"
            for name in self.stop
            if name not in RULE_NAMES
        ]
        if self.patience > self.window:
            faults.append(f"watch.patience: got {self.patience}, allowed: 1 to watch.window ({self.window})")
        if faults:
            raise ValueError("\n".join(faults))
        return self


@dataclass(frozen=True)
class Finding:
    """One finding of the watch: its rule, the update it was said at, and its text.

    Attributes:
        stops: Whether the run should stop and keep its last good checkpoint.
        since: The first of the updates in a row at which its rule held; what a median shows began earlier still.
    """

    rule: str
    update: int
    text: str
    stops: bool
    since: int


class Watch:
    """Takes one record of figures an update, answers what is wrong."""

    def __init__(self, settings: WatchSection) -> None:
        self.settings = settings
        self._history = History(settings.window)
        self._held: dict[str, list[int]] = {name: [] for name in RULE_NAMES}  # updates in a row at which it held
        self._quiet = dict.fromkeys(RULE_NAMES, 0)  # updates without it until it may be said again

    def __call__(self, figures: Mapping[str, Any]) -> list[Finding]:
        """Return the warnings that are new after an update, the gravest first.

        Args:
            figures: The update's record: its number `update`, the figures in `FIGURES`, `tools` (tool to its share of
                the calls) and `env_steps`; None = not measured.
        """
        update, stop = int(figures["update"]), self.settings.stop
        self._history.add(figures)
        looked_at = [rule for rule in RULES if self._history.fresh.issuperset(rule.needs)]
        new = [rule for rule in looked_at if self._is_new(rule, update)]
        return [Finding(r.name, update, self._text(r), r.name in stop, self._held[r.name][0]) for r in new]

    def _is_new(self, rule: Rule, update: int) -> bool:
        """Note whether a rule holds; return whether it is to be said now."""
        held, quiet = self._held[rule.name], self._quiet[rule.name]
        if not rule.holds(self._history, rule.needs[0], *rule.limits):
            held.clear()
            self._quiet[rule.name] = max(0, quiet - 1)
            return False
        held.append(update)
        lasts = len(held) >= (1 if rule.at_once else self.settings.patience)
        self._quiet[rule.name] = self.settings.window if quiet or lasts else 0
        return lasts and not quiet

    def _text(self, rule: Rule) -> str:
        """Return this run's figures, start -> now, the limits, and the advice."""
        said = [f"{name} {self._history.change(name)}" for name in dict.fromkeys((*rule.needs, "reward_mean"))]
        limits = f" (limit {', '.join(f'{limit:g}' for limit in rule.limits)})" if rule.limits else ""
        return f"{', '.join(said)}{limits}: {rule.advice}"
