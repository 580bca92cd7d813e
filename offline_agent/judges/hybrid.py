"""A rule beside a judge: the rule decides where it can, the judge decides the rest.

With `both=true` the judge is asked too where the rule has decided, and the two verdicts are kept side by side: a
policy's critique of itself beside verifiable rewards (Kimi K2, 2025, "self-critique rubric reward"). `calibrate` then
says how far the judge can be trusted where no rule decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offline_agent.errors import ConfigError
from offline_agent.judges.composition import member
from offline_agent.records import Task, Trajectory, Verdict


class hybrid:  # noqa: N801  # its name in a configuration, and in verdicts
    """A rule that decides where it has a score, and a judge for the rest.

    Args:
        judge: Asked where the rule has no score: a judge's name, or a mapping of `name` and arguments.
        rule: The rule, likewise; `environment` = the environment's own verdict.
        both: Ask the judge always, and keep its verdict beside the rule's; the rule decides all the same.

    Raises:
        ConfigError: One of them cannot be made: every fault.
    """

    version = "1"

    def __init__(
        self, judge: str | Mapping[str, Any], rule: str | Mapping[str, Any] = "environment", both: bool = False
    ) -> None:
        faults: list[str] = []
        made = []
        for key, entry in (("judge.rule", rule), ("judge.judge", judge)):
            try:
                made.append(member(key, entry))
            except ConfigError as error:
                faults += error.faults
        if faults:
            raise ConfigError(faults)
        self._rule, self._judge = made
        self._both = both
        self.deterministic = self._rule.deterministic and self._judge.deterministic
        self.costly = both and self._judge.costly

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of a task that one of the two reads."""
        return tuple(dict.fromkeys((*self._rule.reads, *self._judge.reads)))

    def keep_in(self, folder: Path) -> None:
        """See `judges.judge.Judge.keep_in`."""
        self._rule.keep_in(folder)
        self._judge.keep_in(folder)

    def check(self, task: Task) -> None:
        """Raise ConfigError where one of the two needs something that a task does not have."""
        self._rule.check(task)
        self._judge.check(task)

    def __call__(self, trajectory: Trajectory) -> Verdict:
        """Return the rule's verdict where it has a score, else the judge's; both are the evidence."""
        rule = self._rule(trajectory)
        decided = rule.score is not None
        other = self._judge(trajectory) if self._both or not decided else None
        evidence: dict[str, Any] = {
            "decided_by": "rule" if decided else "judge", "rule": rule.to_json(),
            "judge": None if other is None else other.to_json(),
        }  # fmt: skip
        chosen = rule if decided or other is None else other
        if decided and other is not None and other.score is not None:
            evidence["agree"] = other.success == rule.success
        if chosen.score is None:
            error = f"the rule has no score ({rule.error}), nor has the judge ({chosen.error})"
            return Verdict(None, None, "hybrid", self.version, evidence, error)
        return Verdict(chosen.score, chosen.success, "hybrid", self.version, evidence)
