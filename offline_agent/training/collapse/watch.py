"""The collapse watch: says from the figures of each update when an online run goes wrong, before its reward tells.

In a collapse of multi-turn training entropy and the spread of rewards within a group fall first, the reward follows,
then gradient norms spike (the Echo Trap of RAGEN, 2504.20073). The watch compares medians of the latest window with
the run's first, asks a fault to last, and says it once until it is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from pydantic import model_validator

from offline_agent.errors import did_you_mean
from offline_agent.sections import Section, key
from offline_agent.training.collapse.history import History, arrow, read, span
from offline_agent.training.collapse.rules import RULE_NAMES, RULES, Rule, holds

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
        rule: One of `rules.RULE_NAMES`.
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

    Raises:
        ConfigError: A setting is out of bounds.
        DataError: A figure of a record is neither a number nor None.
    """

    def __init__(self, settings: WatchSection) -> None:
        self.settings = settings
        self._history = History(settings.window, settings.patience)
        self._standings = {rule.name: _RuleState() for rule in RULES}
        self._updates = 0

    def __call__(self, figures: Mapping[str, float | None | Mapping[str, float]]) -> list[Finding]:
        """Return the warnings that are new after an update.

        Args:
            figures: The update's record. Followed are those in `FIGURES` of the history, `tools` (tool to its share of
                the calls) and `env_steps` (which tells rounds apart); None = not measured. A rule is only looked at
                when the figures it needs are new.

        Returns:
            Findings, the gravest first.
        """
        self._updates += 1
        update = figures.get("update")
        number = int(update) if isinstance(update, (int, float)) else self._updates
        self._history.add(figures)
        return [found for rule in RULES if (found := self._look(rule, number)) is not None]

    def _look(self, rule: Rule, update: int) -> Finding | None:
        """Return a finding where a rule is to be said now."""
        if not self._history.fresh.issuperset(rule.needs):
            return None
        standing, fault = self._standings[rule.name], holds(rule.fault, self._history)
        if not fault or not rule.given(self._history):
            standing.held, standing.free = 0, 0 if fault else standing.free + 1
            standing.said = standing.said and standing.free < self.settings.window
            return None
        standing.since = standing.since if standing.held else update
        standing.held, standing.free = standing.held + 1, 0
        if standing.said or standing.held < (1 if rule.at_once else self.settings.patience):
            return None
        standing.said = True
        stops = rule.name in self.settings.stops
        return Finding(rule.name, update, rule.text(self._history), stops, standing.since)


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


def checklist(records: Iterable[Mapping[str, Any]], window: int = _WINDOW) -> list[tuple[str, str]]:
    """Return seven lines, in the order in which to look: reward first, sample efficiency last.

    Args:
        records: Of the updates so far, first to last.
        window: Updates whose median stands for the start, and for now.

    Returns:
        Name and line of each: figures at the start -> now (`not measured` where there are none), then what to ask.

    Raises:
        DataError: A figure is neither a number nor None.
    """
    told = list(records)
    numbers = [read(record)[0] for record in told]

    def values(name: str) -> list[float]:
        return [each[name] for each in numbers if name in each]

    first = {
        "tool histogram": _tools([record["tools"] for record in told if record.get("tools")], window),
        "sample efficiency": _efficiency(values("success_mean"), values("reward_mean"), values("env_steps"), window),
    }
    lines = []
    for name, figures, question in _LINES:
        said = [first[name]] if name in first else []
        said += [f"{words} {arrow(span(values(figure), window), form)}" for words, figure, form in figures]
        if name == "reward" and (rewards := values("reward_mean")):
            size = max(1, min(window, len(rewards) // 2))
            best = max(median(rewards[end - size : end]) for end in range(size, len(rewards) + 1))
            said.insert(1, f"best {best:.3g}")
        lines.append((name, f"{', '.join(said)} - {question}"))
    return lines


def _tools(histograms: list[Mapping[str, float | None]], window: int) -> str:
    """Return the most used tools of the latest updates, with their shares at the start and now."""
    # a tool that an update never called has share 0 in it
    series = {name: [histogram.get(name) or 0.0 for histogram in histograms] for each in histograms for name in each}
    spans = {name: both for name, values in series.items() if (both := span(values, window)) is not None}
    if not spans:
        return "calls not measured"
    used = sorted(spans, key=lambda name: (-spans[name][1], name))
    more = f" and {len(used) - _TOOLS} more" if len(used) > _TOOLS else ""
    return "calls " + ", ".join(f"{name} {arrow(spans[name], '.0%')}" for name in used[:_TOOLS]) + more


def _efficiency(success: list[float], reward: list[float], env_steps: list[float], window: int) -> str:
    """Return the gain for the environment steps taken."""
    both, steps = span(success or reward, window), max(env_steps, default=0.0)
    if both is None or not steps:
        return "gain for each environment step not measured"
    gain, word = both[1] - both[0], "success" if success else "reward"
    return f"{word} {gain:+.3g} in {steps:.0f} environment steps ({gain / steps * 1000:+.3g} a thousand)"
