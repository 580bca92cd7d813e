"""Judges made of other judges: all of them, any, their weighted mean, their majority, or a rule beside a judge.

The others are named as in a configuration: `judges: [environment, {name: f1, threshold: 0.8}]`. A composition has no
score where one of its members has none; a majority needs more than half of its members alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from offline_agent.errors import ConfigError
from offline_agent.judges.judge import ENVIRONMENT, Judge, make_judge
from offline_agent.records import Task, Trajectory, Verdict


def environment(trajectory: Trajectory) -> Verdict | None:
    """Return the verdict of the environment's own `get_reward`."""
    return trajectory.verdict


def member(key: str, entry: Any) -> Judge:
    """Return the judge that an entry of a configuration names.

    Args:
        key: The configuration key, for messages.
        entry: A name, or a mapping of `name` and arguments.

    Raises:
        ConfigError: It is neither, or the judge cannot be made.
    """
    given = {"name": entry} if isinstance(entry, str) else entry
    if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
        raise ConfigError(f"{key}: got {entry!r}, allowed: a judge's name, or {{name: NAME, argument: value}}")
    made = make_judge(given["name"], {name: value for name, value in given.items() if name != "name"}, key)
    return Judge(environment, ENVIRONMENT, {}) if made is None else made


class JudgeOfJudges:
    """A judge that asks others: their columns, files and checks are its own.

    Args:
        entries: Configuration key → the name of a judge, or a mapping of `name` and arguments.
        faults: Found before.

    Raises:
        ConfigError: A fault that was found before, or one of them cannot be made: every fault.
    """

    version = "1"

    def __init__(self, entries: Mapping[str, Any], faults: Sequence[str] = ()) -> None:
        found = list(faults)
        self._judges: list[Judge] = []
        for key, entry in entries.items():
            try:
                self._judges.append(member(key, entry))
            except ConfigError as error:
                found += error.faults
        if found:
            raise ConfigError(found)
        self.deterministic = all(judge.deterministic for judge in self._judges)
        self.costly = any(judge.costly for judge in self._judges)

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of a task that one of them reads."""
        return tuple(dict.fromkeys(name for judge in self._judges for name in judge.reads))

    def keep_in(self, folder: Path) -> None:
        """See `Judge.keep_in`."""
        for judge in self._judges:
            judge.keep_in(folder)

    def check(self, task: Task) -> None:
        """Raise ConfigError where one of them needs something that a task does not have."""
        for judge in self._judges:
            judge.check(task)


class _Composition(JudgeOfJudges):
    """The verdicts of several judges as one.

    Args:
        judges: Their names, or mappings of `name` and arguments.

    Raises:
        ConfigError: There is none, or one of them cannot be made: every fault.
    """

    def __init__(self, judges: Sequence[Any]) -> None:
        none = [] if judges else ["judge.judges: got none, allowed: at least one judge"]
        super().__init__({f"judge.judges.{number}": entry for number, entry in enumerate(judges)}, none)

    def __call__(self, trajectory: Trajectory) -> Verdict:
        """Return the verdict; those of the members are its evidence."""
        verdicts = [judge(trajectory) for judge in self._judges]
        name = type(self).__name__
        evidence = {"judges": [verdict.to_json() for verdict in verdicts]}
        scores = [verdict.score for verdict in verdicts if verdict.score is not None]
        if len(scores) < len(verdicts):
            error = next(f"{one.verifier}: {one.error}" for one in verdicts if one.score is None)
            return Verdict(None, None, name, self.version, evidence, error)
        score, success = self._sum(scores, [bool(verdict.success) for verdict in verdicts])
        return Verdict(min(1.0, max(0.0, score)), success, name, self.version, evidence)

    def _sum(self, scores: Sequence[float], successes: Sequence[bool]) -> tuple[float, bool]:
        raise NotImplementedError


class all_of(_Composition):  # noqa: N801  # its name in a configuration, and in verdicts
    """A success where every judge says so; the score is the lowest."""

    def _sum(self, scores: Sequence[float], successes: Sequence[bool]) -> tuple[float, bool]:
        return min(scores), all(successes)


class any_of(_Composition):  # noqa: N801
    """A success where one judge says so; the score is the highest."""

    def _sum(self, scores: Sequence[float], successes: Sequence[bool]) -> tuple[float, bool]:
        return max(scores), any(successes)


class mean_of(_Composition):  # noqa: N801
    """A rubric: the weighted mean of the scores.

    Args:
        judges: As of the others.
        weights: float [judges], at least 0, with a sum above 0; None = all alike.
        threshold: Least mean that is a success.

    Raises:
        ConfigError: As of the others, or the weights do not fit.
    """

    def __init__(self, judges: Sequence[Any], weights: Sequence[float] | None = None, threshold: float = 1.0) -> None:
        super().__init__(judges)
        self.weights = [1.0] * len(judges) if weights is None else list(weights)
        if len(self.weights) != len(judges) or min(self.weights) < 0 or sum(self.weights) <= 0:
            raise ConfigError(
                f"judge.weights: got {weights!r}, allowed: {len(judges)} numbers of at least 0, not all of them 0"
            )
        self.threshold = threshold

    def _sum(self, scores: Sequence[float], successes: Sequence[bool]) -> tuple[float, bool]:
        mean = sum(w * score for w, score in zip(self.weights, scores, strict=True)) / sum(self.weights)
        return mean, mean >= self.threshold - 1e-12  # weights such as 0.1 do not add up exactly


class ensemble(_Composition):  # noqa: N801
    """The majority of its members; the score is their mean, and what they disagree on is kept as evidence.

    Members without a score are left out. There is no score where those that are left are not more than half of all, or
    are divided equally.
    """

    def __call__(self, trajectory: Trajectory) -> Verdict:
        """Return the verdict of the majority."""
        verdicts = [judge(trajectory) for judge in self._judges]
        scores = [verdict.score for verdict in verdicts if verdict.score is not None]
        votes = sum(bool(verdict.success) for verdict in verdicts if verdict.score is not None)
        minority = min(votes, len(scores) - votes)
        evidence = {
            "judges": [verdict.to_json() for verdict in verdicts], "for": votes, "against": len(scores) - votes,
            "unscored": len(verdicts) - len(scores),
            "disagreement": minority / len(scores) if scores else None,
            "spread": max(scores) - min(scores) if scores else None,
        }  # fmt: skip
        error = None
        if 2 * len(scores) <= len(verdicts):
            detail = next((f"{one.verifier}: {one.error}" for one in verdicts if one.score is None), "")
            error = f"only {len(scores)} of {len(verdicts)} judges gave a score; {detail}"
        elif 2 * votes == len(scores):
            error = f"the judges are divided, {votes} to {votes}"
        if error is not None:
            return Verdict(None, None, "ensemble", self.version, evidence, error)
        return Verdict(sum(scores) / len(scores), 2 * votes > len(scores), "ensemble", self.version, evidence)


class hybrid(JudgeOfJudges):  # noqa: N801
    """A rule that decides where it has a score, and a judge for the rest.

    With `both` the two verdicts are kept side by side: a policy's critique of itself beside verifiable rewards (Kimi
    K2, 2025, "self-critique rubric reward"). They tell how far the judge can be trusted elsewhere.

    Args:
        judge: Asked where the rule has no score: a judge's name, or a mapping of `name` and arguments.
        rule: The rule, likewise; `environment` = the environment's own verdict.
        both: Ask the judge always, and keep its verdict beside the rule's; the rule decides all the same.

    Raises:
        ConfigError: One of them cannot be made: every fault.
    """

    def __init__(
        self, judge: str | Mapping[str, Any], rule: str | Mapping[str, Any] = "environment", both: bool = False
    ) -> None:
        super().__init__({"judge.rule": rule, "judge.judge": judge})
        self._rule, self._judge = self._judges
        self._both = both
        self.costly = both and self._judge.costly

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
