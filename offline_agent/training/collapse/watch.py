"""The collapse watch: says from the figures of each update when an online run goes wrong, before its reward tells.

In a collapse of multi-turn training entropy and the spread of rewards within a group fall first, the reward follows,
then gradient norms spike (the Echo Trap of RAGEN, 2504.20073). The watch compares medians of the latest window with
the run's first, asks a fault to last, and says it once until it is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from offline_agent.config.refine_grpo import WatchSection
from offline_agent.errors import ConfigError, did_you_mean
from offline_agent.training.collapse.history import History
from offline_agent.training.collapse.rules import NAMES, RULES, Rule

RULE_NAMES = NAMES
"""Every rule a finding can be of, and `WatchSettings.stop` can name."""

_KEYS = WatchSection()  # the defaults are declared there
STOP = ("mask", "nothing_scored", "echo_trap", "collapse")


@dataclass(frozen=True)
class WatchSettings:
    """Settings: when the watch warns, and when it stops the run.

    The rules that stop by default are those after which going on is worthless: the mask is wrong (`mask`), nothing is
    scored (`nothing_scored`), entropy and spread both collapsed while the reward does not improve (`echo_trap`:
    nothing is left to compare, nor to find), or the reward fell and another sign of collapse is there (`collapse`).
    The others have harmless causes too - a harder curriculum, a policy that becomes sure because it is right - or can
    heal, and only warn.

    Attributes:
        window: Observations of a window; a rule that compares with the start needs two windows.
        patience: Consecutive updates a fault must last. It must be gone for a whole window to be said again.
        stop: Rules that stop the run, of `RULE_NAMES`.
    """

    window: int = _KEYS.window
    patience: int = _KEYS.patience
    stop: tuple[str, ...] = STOP

    def check(self) -> None:
        """Raise ConfigError with every fault."""
        faults = []
        if self.window < 2:
            faults.append(f"watch.window: got {self.window}, allowed: 2 or more; 5 is the default")
        if self.patience < 1 or self.patience > self.window >= 2:
            faults.append(f"watch.patience: got {self.patience}, allowed: 1 to watch.window ({self.window})")
        faults += [
            f"watch.stop: got {name!r}, allowed: {', '.join(NAMES)}.{did_you_mean(name, NAMES)}"
            for name in self.stop
            if name not in NAMES
        ]
        if faults:
            raise ConfigError(faults)


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
        records: Of the updates so far, where a run is resumed: it then answers as if it had seen them.

    Raises:
        ConfigError: A setting is out of bounds.
        DataError: A figure of a record is neither a number nor None.
    """

    def __init__(self, settings: WatchSettings, records: Iterable[Mapping[str, Any]] = ()) -> None:
        settings.check()
        self.settings = settings
        self._history = History(settings.window, settings.patience)
        self._standings = {rule.name: _RuleState() for rule in RULES}
        self._updates = 0
        for record in records:
            self(record)

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

    @property
    def standing(self) -> tuple[str, ...]:
        """Rules that were said and are not over."""
        return tuple(name for name, standing in self._standings.items() if standing.said)

    def _look(self, rule: Rule, update: int) -> Finding | None:
        """Return a finding where a rule is to be said now."""
        if not self._history.fresh.issuperset(rule.needs):
            return None
        standing, fault = self._standings[rule.name], rule.fault(self._history)
        if not fault or not rule.given(self._history):
            standing.held, standing.free = 0, 0 if fault else standing.free + 1
            standing.said = standing.said and standing.free < self.settings.window
            return None
        standing.since = standing.since if standing.held else update
        standing.held, standing.free = standing.held + 1, 0
        if standing.said or standing.held < (1 if rule.at_once else self.settings.patience):
            return None
        standing.said = True
        stops = rule.name in self.settings.stop
        return Finding(rule.name, update, rule.text(self._history), stops, standing.since)
