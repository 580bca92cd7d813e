"""Settings and findings of an audit: check ids, their severity, and the report as JSON.

Check ids are those of OpenEnv's RFC 008 (environment auto-validation) where it has the check. Those that it does not
have are marked `own` in `RULES`. A check only finds faults; how much a fault weighs is said here, once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pydantic import field_validator, model_validator

from offline_agent.envs.settings import LimitsSection
from offline_agent.errors import did_you_mean
from offline_agent.sections import Section, key, section

REPORT_VERSION = 1
Status = Literal["pass", "warn", "fail", "skip"]


class Doubt(str):
    """A fault that only warns, whatever the severity of its check."""


class Rule(NamedTuple):
    """One check.

    Attributes:
        about: A sentence that says what is checked.
        severity: The status of a fault: `fail`, or `warn` where an environment may be right all the same.
        own: RFC 008 has no such check.
    """

    about: str
    severity: Literal["warn", "fail"] = "fail"
    own: bool = False


RULES: dict[str, Rule] = {
    "runtime.task_declaration_accuracy": Rule("every split has tasks, listed the same each time"),
    "data.splits_disjoint": Rule("no task is in two splits, whatever it is called there", own=True),
    "data.relabelled_splits": Rule("no goal reached while training is a task of another split", own=True),
    "data.near_overlap": Rule("first observations of two splits are not almost the same", "warn", True),
    "runtime.seed_control": Rule("the same task begins the same, in a new instance and after a second reset"),
    "runtime.tool_declaration_accuracy": Rule("TRL finds the same tools; each succeeds for some call"),
    "runtime.bad_calls": Rule("faulty turns get a readable answer and leave the state as it is", own=True),
    "semantic.oracle_max": Rule("the expert scores 1"),
    "semantic.floor_gap": Rule("doing nothing ends the episode and scores 0"),
    "runtime.reward_well_formed": Rule("the reward can be asked for at any time, in [0, 1], without an error"),
    "runtime.reward_attribution": Rule("turn rewards are numbers in [0, 1]"),
    "semantic.verifier_determinism": Rule("the same end state gets the same verdict each time"),
    "runtime.episode_determinism": Rule("the same actions get the same observations and verdict in a new instance"),
    "runtime.episode_determinism/process": Rule("and in a new process with another hash seed"),
    "semantic.replayability": Rule("a snapshot goes on as a replay does, and does not touch its original"),
    "runtime.episode_isolation": Rule("nothing is left of an episode after reset, nor shared by two instances"),
    "runtime.threads": Rule("an environment that allows any thread works with any", own=True),
    "runtime.achieved_goals": Rule("goals named as achieved are tasks of reset", own=True),
    "runtime.process_state": Rule("calls leave the state of the process alone", own=True),
    "statistical.variance_bound": Rule("repeats of the same actions have no faults and no reward noise"),
    "semantic.no_solution_leakage/prompt": Rule("the gold answer is not in the prompt"),
    "semantic.no_solution_leakage/tools": Rule("the gold answer is not in the tools' descriptions"),
    "semantic.no_solution_leakage/errors": Rule("the gold answer is not in error messages"),
    "semantic.no_solution_leakage/observations": Rule(
        "the gold answer is not shown to calls made without a look at the task", "warn"
    ),
    "semantic.canary_floor/random": Rule("random calls do not succeed"),
    "semantic.canary_floor/echo_observation": Rule("answering with what was observed stays at the floor"),
    "semantic.canary_floor/echo_prompt": Rule("answering with the prompt stays at the floor"),
    "semantic.canary_floor/format_only": Rule("the form of an answer without content stays at the floor"),
    "semantic.canary_floor/every_tool_once": Rule("calling every tool once stays at the floor"),
    "semantic.canary_floor/submit_at_once": Rule("submitting at once stays at the floor"),
    "semantic.canary_floor/longest_answer": Rule("an answer that lists everything stays at the floor"),
    "semantic.canary_floor/verifier_strings": Rule("answering with the verifier's own words stays at the floor"),
    "runtime.resource_bounds": Rule("resets, calls and verdicts take less than the limits of a run"),
    "semantic.resource_envelope": Rule("seconds of a call, memory and handles of an instance are known"),
    "runtime.observation_size": Rule("observations are not cut", "warn", True),
}  # fmt: skip


class AuditSection(Section):
    """Thoroughness of an audit."""

    limits: LimitsSection = section(LimitsSection, "what an environment may take in a run")
    tasks: int = key(4, "tasks of each split that are played", ge=1)
    repeats: int = key(3, "times that the same actions are played, for noise and flakiness", ge=2, le=1000)
    max_steps: int = key(120, "most actions in one episode; the expert must succeed within them", ge=1)
    seconds: float = key(60.0, "longest any one check may take; after half of it no further task is begun", gt=0)
    margin: float = key(
        0.2, "mean score above chance from which a reward-seeking policy is a fault; half of it warns", gt=0, le=1
    )
    prompts: int = key(200, "tasks of each split whose first observations are compared", ge=1, le=2000)
    near: float = key(0.9, "least similarity (Jaccard of word trigrams) of two that are almost the same", gt=0, le=1)
    answers: tuple[str, ...] = key(
        (), "columns of the tasks that hold a gold answer, for the leak checks, beside those named like one",
        strict=False,
    )
    checks: tuple[str, ...] = key((), "check ids, or their beginnings, that run; [] = all", strict=False)
    accept: tuple[str, ...] = key(
        (), "check ids whose failure is known and explained: they warn, and do not fail the audit", strict=False
    )

    @field_validator("accept", "answers", "checks", mode="before")
    @classmethod
    def _one(cls, names: Any) -> Any:
        return (names,) if isinstance(names, str) else tuple(names) if isinstance(names, list) else names

    @model_validator(mode="after")
    def _known(self) -> AuditSection:
        faults = [
            f"accept: got {name!r}, allowed: a check id, as docs/audit.md lists them.{did_you_mean(name, RULES)}"
            for name in self.accept if name not in RULES
        ]  # fmt: skip
        faults += [
            f"checks: got {name!r}, allowed: check ids, or their beginnings, as docs/audit.md lists them."
            f"{did_you_mean(name, RULES)}"
            for name in self.checks if not any(check_id.startswith(name) for check_id in RULES)
        ]  # fmt: skip
        if faults:
            raise ValueError("\n".join(faults))
        return self


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Attributes:
        check_id: Key of `RULES`.
        status: `skip` where it does not apply.
        evidence: The faults in words; why it does not apply; "" where there is nothing to say.
        measured: JSON-serialisable figures.
        seconds: Time that it took.
    """

    check_id: str
    status: Status
    evidence: str = ""
    measured: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the finding as a JSON-serialisable dict."""
        rule = RULES[self.check_id]
        return {
            "check_id": self.check_id, "status": self.status, "about": rule.about, "severity": rule.severity,
            "rfc_008": not rule.own, "evidence": self.evidence, "measured": dict(self.measured),
            "seconds": round(self.seconds, 3),
        }  # fmt: skip


@dataclass(frozen=True)
class AuditReport:
    """The findings about one environment, in the order of the checks.

    Attributes:
        environment: Its identity (`EnvSpec.identity`).
        findings: One for each check that ran.
    """

    environment: Mapping[str, Any]
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Literal["pass", "warn", "fail"]:
        """`fail` where a check failed, else `warn` where one warns, else `pass`."""
        found = {finding.status for finding in self.findings}
        return "fail" if "fail" in found else "warn" if "warn" in found else "pass"

    def of(self, status: Status) -> tuple[Finding, ...]:
        """Return the findings with a status."""
        return tuple(finding for finding in self.findings if finding.status == status)

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON-serialisable dict."""
        counts = Counter(finding.status for finding in self.findings)
        return {
            "report_version": REPORT_VERSION,
            "environment": dict(self.environment),
            "verdict": self.verdict,
            "counts": {status: counts[status] for status in ("pass", "warn", "fail", "skip")},
            "results": [finding.to_json() for finding in self.findings],
        }
