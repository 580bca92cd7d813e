"""The collapse watch: says from the figures of each update when an online run goes wrong, before its reward tells.

In a collapse of multi-turn training entropy and the spread of rewards within a group fall first, the reward follows,
then gradient norms spike (the Echo Trap of RAGEN, 2504.20073). The watch compares medians of the latest window with
the run's first, asks a fault to last, and says it once until it is over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from pydantic import model_validator

from offline_agent.errors import did_you_mean
from offline_agent.sections import Section, key
from offline_agent.training.collapse_rules import RULE_NAMES, RULES, History, Rule

STOP = ("mask", "nothing_scored", "echo_trap", "collapse")
"""Rules that stop a run by default, since going on is worthless: the mask is wrong, nothing is scored, entropy and
spread both collapsed while the reward does not improve, or the reward fell and another sign of collapse is there. The
others have harmless causes too, such as a harder curriculum, or can heal."""


class WatchSection(Section):
    """The collapse watch; `docs/online.md` has its rules and their limits."""

    enabled: bool = key(True, "warn of collapse, and stop where the rules say so; false = keep quiet")
    window: int = key(5, "observations of a window; the latest is compared with the first", ge=2)
    patience: int = key(3, "updates in a row that a rule must hold; at most watch.window", ge=1)
    stop: tuple[str, ...] | None = key(
        None,
        "rules that stop the run, which then takes the newest checkpoint from before; null = mask, nothing_scored, "
        "echo_trap, collapse: after these going on is worthless; [] = none. The others: mask_shift, not_finite, "
        "unscored, reward, entropy, entropy_rise, spread, zero_spread, solved, gradient, kl, mismatch, length, short, "
        "truncated, invalid_calls, repeated_calls, tools",
        strict=False,
    )

    @property
    def stops(self) -> tuple[str, ...]:
        """The rules that stop the run."""
        return STOP if self.stop is None else self.stop

    @model_validator(mode="after")
    def _known(self) -> WatchSection:
        faults = [
            f"watch.stop: got {name!r}, allowed: {', '.join(RULE_NAMES)}.{did_you_mean(name, RULE_NAMES)}"
            for name in self.stops
            if name not in RULE_NAMES
        ]
        if self.patience > self.window:
            faults.append(f"watch.patience: got {self.patience}, allowed: 1 to watch.window ({self.window})")
        if faults:
            raise ValueError("\n".join(faults))
        return self


@dataclass(frozen=True)
class Finding:
    """One finding of the watch.

    Attributes:
        rule: One of `RULE_NAMES`.
        update: The update it was said at.
        text: This run's figures, what they mean, what to look at or which key to change.
        stops: Whether the run should stop and keep its last good checkpoint.
        since: The first of the updates in a row at which its rule held; what a median shows began earlier still.
    """

    rule: str
    update: int
    text: str
    stops: bool
    since: int


@dataclass
class _RuleState:
    """State of one rule: how long it has held or not held, and whether it was reported."""

    held: int = 0
    free: int = 0
    since: int = 0
    said: bool = False


class Watch:
    """Takes one record of figures an update, answers what is wrong.

    Args:
        settings: When it speaks.
    """

    def __init__(self, settings: WatchSection) -> None:
        self.settings = settings
        self._history = History(settings.window, settings.patience)
        self._states = {rule.name: _RuleState() for rule in RULES}
        self._updates = 0

    def __call__(self, figures: Mapping[str, float | None | Mapping[str, float]]) -> list[Finding]:
        """Return the warnings that are new after an update, the gravest first.

        Args:
            figures: The update's record. Followed are those in `FIGURES` of the rules, `tools` (tool to its share of
                the calls) and `env_steps` (which tells rounds apart); None = not measured. A rule is only looked at
                when the figures it needs are new.

        Raises:
            DataError: A figure is neither a number nor None.
        """
        self._updates += 1
        update = figures.get("update")
        number = int(update) if isinstance(update, int | float) else self._updates
        self._history.add(figures)
        new = [rule for rule in RULES if self._history.fresh.issuperset(rule.needs) and self._is_new(rule, number)]
        stops = self.settings.stops
        return [
            Finding(rule.name, number, _text(rule, self._history), rule.name in stops, self._states[rule.name].since)
            for rule in new
        ]

    def _is_new(self, rule: Rule, update: int) -> bool:
        """Note whether a rule holds; return whether it is to be said now."""
        state = self._states[rule.name]
        fault = rule.fault(self._history, *rule.limits)
        if not (fault and rule.given(self._history)):
            state.held, state.free = 0, 0 if fault else state.free + 1
            state.said = state.said and state.free < self.settings.window
            return False
        state.since = state.since if state.held else update
        state.held, state.free = state.held + 1, 0
        said, state.said = state.said, state.said or state.held >= (1 if rule.at_once else self.settings.patience)
        return state.said and not said


def _text(rule: Rule, history: History) -> str:
    """Return this run's figures, start -> now, the limits, and the advice."""
    said = [f"not finite {name}" for name in history.broken]
    for name in dict.fromkeys((*rule.needs, *rule.tells, "reward_mean")):
        values = history.series.get(name, [])
        latest = values[-1] if rule.at_once and values else None
        said.append(f"{name} {_change(values, history.window, latest=latest)}")
    if not math.isnan(history.best[0]):
        said.append(f"in its best window {history.best[0]:.3g}")
    limits = f" (limit {', '.join(f'{limit:g}' for limit in rule.limits)})" if rule.limits else ""
    return f"{', '.join(said)}{limits}: {rule.advice}"


def _span(values: Sequence[float], window: int) -> tuple[float, float] | None:
    """Return the medians of the first and the last window; of smaller ones where these would overlap."""
    size = max(1, min(window, len(values) // 2))
    return (median(values[:size]), median(values[-size:])) if values else None


def _change(values: Sequence[float], window: int, form: str = ".3g", latest: float | None = None) -> str:
    """Return a change in words: `0.6 -> 0.1`, `not measured`; to the `latest` value where that is given."""
    both = _span(values, window)
    if both is None:
        return "not measured"
    start, now = format(both[0], form), format(both[1] if latest is None else latest, form)
    return now if start == now else f"{start} -> {now}"


# -- the order in which to look when a run goes wrong, with its figures ------------------------------------------------

_WINDOW = 5
_TOOLS = 3
_LINES: tuple[tuple[str, tuple[tuple[str, str, str], ...], str], ...] = (
    ("reward", (("mean", "reward_mean", ".3g"), ("success", "success_mean", ".0%"), ("unscored", "unscored", ".0%")),
     "do most trajectories get 0? is the rule wrong, or is it being gamed?"),
    ("length", (("agent tokens", "length", ".3g"), ("steps", "steps", ".3g"), ("truncated", "truncated", ".0%")),
     "are most cut off? then the policy cannot finish"),
    ("mask", (("share of all tokens that is trained on", "trained_share", ".3g"),),
     "does it leave out prompt, observations and padding? it must be between 0 and 1, steady"),
    ("KL", (("KL", "kl", ".3g"), ("entropy", "entropy", ".3g"), ("clipped low", "clip_low_fraction", ".1%"),
            ("high", "clip_high_fraction", ".1%"), ("gradient norm", "gradient", ".3g"),
            ("mismatch", "mismatch", ".3g")),
     "KL blows up: raise objective.kl; entropy collapses: raise objective.clip_high or rollouts.temperature"),
    ("group spread", (("within a group", "group_spread", ".3g"), ("groups without any", "zero_spread", ".0%")),
     "are many groups all 0 or all 1? set objective.dynamic=true, or choose other tasks"),
    ("tool histogram", (("invalid", "invalid_calls", ".0%"), ("repeated", "repeated_calls", ".0%")),
     "one tool for everything? choose some tools at random; let repeats cost"),
    ("sample efficiency", (("spread of all rewards", "reward_std", ".3g"),),
     "do roll-outs of one task differ too much? then the offline checkpoint is too weak"),
)  # fmt: skip
"""Name, figures (words, name, format) and question of each line."""


def checklist(records: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return seven lines, in the order in which to look: reward first, sample efficiency last.

    Args:
        records: Of the updates so far, first to last.

    Returns:
        Name and line of each: figures at the start -> now (`not measured` where there are none), then what to ask.

    Raises:
        DataError: A figure is neither a number nor None.
    """
    history = History(_WINDOW)
    for record in records:
        history.add(record)
    first = {"tool histogram": [_tools(history.tools)], "sample efficiency": [_efficiency(history)]}
    lines = []
    for name, figures, question in _LINES:
        said = [f"{words} {_change(history.series.get(at, []), _WINDOW, form)}" for words, at, form in figures]
        if name == "reward" and (rewards := history.series.get("reward_mean")):
            size = max(1, min(_WINDOW, len(rewards) // 2))
            best = max(median(rewards[end - size : end]) for end in range(size, len(rewards) + 1))
            said.insert(1, f"best {best:.3g}")
        lines.append((name, f"{', '.join([*first.get(name, []), *said])} - {question}"))
    return lines


def _tools(histograms: Sequence[Mapping[str, float]]) -> str:
    """Return the most used tools of the latest updates, with their shares at the start and now."""
    names = dict.fromkeys(name for histogram in histograms for name in histogram)
    # a tool that an update never called has share 0 in it
    series = {name: [histogram.get(name, 0.0) for histogram in histograms] for name in names}
    used = sorted(series, key=lambda name: (-median(series[name][-max(1, min(_WINDOW, len(histograms) // 2)) :]), name))
    if not used:
        return "calls not measured"
    more = f" and {len(used) - _TOOLS} more" if len(used) > _TOOLS else ""
    return "calls " + ", ".join(f"{name} {_change(series[name], _WINDOW, '.0%')}" for name in used[:_TOOLS]) + more


def _efficiency(history: History) -> str:
    """Return the gain for the environment steps taken."""
    word = "success" if "success_mean" in history.series else "reward"
    both, steps = _span(history.series.get(f"{word}_mean", []), _WINDOW), max(history.series.get("env_steps", [0]))
    if both is None or not steps:
        return "gain for each environment step not measured"
    gain = both[1] - both[0]
    return f"{word} {gain:+.3g} in {steps:.0f} environment steps ({gain / steps * 1000:+.3g} a thousand)"
