"""Registry of the checks of an environment: ids, names, severities; settings, findings, and the report as JSON.

Check ids are those of OpenEnv's RFC 008 (environment auto-validation) where it has the check. Those that it does not
have are marked `own` in `RULES`. A check only finds faults; how much a fault weighs is said here, once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pydantic import model_validator

from offline_agent.errors import did_you_mean
from offline_agent.sections import OneOrMore, Section, key

REPORT_VERSION = 1
Status = Literal["pass", "warn", "fail", "skip"]


class Doubt(str):
    """A fault that only warns, whatever the severity of its check."""


class NotApplicable(Exception):
    """The environment has no member that the check is for."""


class Rule(NamedTuple):
    """One check of the audit.

    Attributes:
        about: A sentence that says what is checked.
        methods: The methods of `suite.Suite` that make it, separated by spaces; after a colon, an argument.
        severity: The status of a fault: `fail`, or `warn` where an environment may be right all the same.
        own: RFC 008 has no such check.
        cheap: `suite.audit_tasks` makes it: it finds a fault that training would suffer from at once.
    """

    about: str
    methods: str
    severity: Literal["warn", "fail"] = "fail"
    own: bool = False
    cheap: bool = False


LISTING = "runtime.task_declaration_accuracy"
"""Id of the check without which none of the others can be made."""

RULES: dict[str, Rule] = {
    LISTING: Rule("every split has tasks, listed the same each time", "tasks"),
    "data.splits_disjoint": Rule("no task is in two splits, whatever it is called there", "splits", own=True),
    "runtime.seed_control": Rule(
        "the same task begins the same, in a new instance and after a second reset", "reset", cheap=True
    ),
    "runtime.tool_declaration_accuracy": Rule(
        "TRL finds the same tools; each succeeds for some call", "trl callable succeeds"
    ),
    "runtime.bad_calls": Rule("faulty turns get a readable answer and leave the state as it is", "bad_calls", own=True),
    "semantic.oracle_max": Rule("the expert scores 1", "solvable", cheap=True),
    "semantic.floor_gap": Rule("doing nothing ends the episode and scores 0", "empty", cheap=True),
    "runtime.reward_well_formed": Rule(
        "the reward can be asked for at any time, in [0, 1], without an error", "reward odd_answers"
    ),
    "runtime.reward_attribution": Rule("turn rewards are numbers in [0, 1]", "turns"),
    "semantic.verifier_determinism": Rule("the same end state gets the same verdict each time", "verdicts"),
    "runtime.episode_determinism": Rule(
        "the same actions get the same observations and verdict in a new instance", "replay", cheap=True
    ),
    "runtime.episode_determinism/process": Rule("and in a new process with another hash seed", "new_process"),
    "semantic.replayability": Rule("a snapshot goes on as a replay does, and does not touch its original", "copies"),
    "runtime.episode_isolation": Rule(
        "nothing is left of an episode after reset, nor shared by two instances", "isolation"
    ),
    "runtime.achieved_goals": Rule("goals named as achieved are tasks of reset", "goals", own=True),
    "runtime.process_state": Rule("calls leave the state of the process alone", "process", own=True),
    "semantic.no_solution_leakage/prompt": Rule("the gold answer is not in the prompt", "leak:prompt", cheap=True),
    "semantic.no_solution_leakage/tools": Rule(
        "the gold answer is not in the tools' descriptions", "leak:descriptions", cheap=True
    ),
    "semantic.no_solution_leakage/errors": Rule("the gold answer is not in error messages", "leak:errors"),
    "semantic.canary_floor/random": Rule("random calls do not succeed", "chance"),
    "semantic.canary_floor/echo_observation": Rule(
        "answering with what was observed stays at the floor", "seeker:echo_observation", cheap=True
    ),
    "semantic.canary_floor/echo_prompt": Rule(
        "answering with the prompt stays at the floor", "seeker:echo_prompt", cheap=True
    ),
    "semantic.canary_floor/format_only": Rule(
        "the form of an answer without content stays at the floor", "seeker:format_only", cheap=True
    ),
    "semantic.canary_floor/every_tool_once": Rule(
        "calling every tool once stays at the floor", "seeker:every_tool_once"
    ),
    "semantic.canary_floor/submit_at_once": Rule("submitting at once stays at the floor", "seeker:submit_at_once"),
    "semantic.canary_floor/longest_answer": Rule(
        "an answer that lists everything stays at the floor", "seeker:longest_answer"
    ),
}
"""The checks of an audit by id, in the order in which they are made."""

CONFORMANCE = {
    "tasks": "tasks",
    "splits": "splits are disjoint",
    "reset": "reset is deterministic",
    "trl": "tools are TRL's",
    "callable": "tools can be called",
    "succeeds": "each tool succeeds",
    "bad_calls": "bad calls are answered",
    "oracle": "the oracle succeeds",
    "empty": "the empty policy fails",
    "reward": "get_reward at any time",
    "turns": "turn rewards are numbers",
    "replay": "replay repeats",
    "copies": "copies are independent",
    "goals": "achieved goals are tasks",
    "process": "the process stays as it is",
}
"""Method → name of the checks that every environment must pass, in their order."""


class AuditSection(Section):
    """Thoroughness of an audit."""

    tasks: int = key(4, "tasks of each split that are played", ge=1)
    repeats: int = key(3, "times that one end state is judged", ge=2, le=1000)
    max_steps: int = key(120, "most actions in one episode; the expert must succeed within them", ge=1)
    seconds: float = key(60.0, "longest any one check may take; after half of it no further task is begun", gt=0)
    margin: float = key(
        0.2, "mean score above chance from which a reward-seeking policy is a fault; half of it warns", gt=0, le=1
    )
    answers: OneOrMore = key(
        (),
        "columns of the tasks that hold a gold answer, for the leak checks, beside those named like one",
        strict=False,
    )
    checks: OneOrMore = key((), "check ids, or their beginnings, that run; [] = all", strict=False)

    @model_validator(mode="after")
    def _known(self) -> AuditSection:
        faults = [
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
        check_id: Key of `RULES`, or a name of `CONFORMANCE`.
        status: `skip` where it does not apply.
        evidence: The faults, each with how to correct it; why it does not apply; what was left out. "" otherwise.
        measured: JSON-serialisable figures.
        seconds: Time that it took.
        traceback: Of the errors behind the faults, where the environment raised; else "".
    """

    check_id: str
    status: Status
    evidence: str = ""
    measured: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    traceback: str = ""

    def __str__(self) -> str:
        mark = {"fail": "FAILED ", "skip": "-      "}.get(self.status, "ok     ")
        line = f"{mark}{self.check_id}{': ' if self.evidence else ''}{self.evidence}"
        traces = self.traceback.splitlines() if self.status == "fail" else []
        return "\n".join([line, *(f"           {trace}" for trace in traces)])

    def to_json(self) -> dict[str, Any]:
        """Return the finding of an audit as a JSON-serialisable dict."""
        rule = RULES[self.check_id]
        return {
            "check_id": self.check_id, "status": self.status, "about": rule.about, "severity": rule.severity,
            "rfc_008": not rule.own, "evidence": self.evidence, "measured": dict(self.measured),
            "seconds": round(self.seconds, 3),
        }  # fmt: skip


@dataclass(frozen=True)
class Report:
    """The findings about one environment, in the order of the checks.

    Attributes:
        environment: Its identity (`EnvSpec.identity`).
        findings: One for each check that ran.
        notes: What it costs, and what that means.
    """

    environment: Mapping[str, Any]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Literal["pass", "warn", "fail"]:
        """`fail` where a check failed, else `warn` where one warns, else `pass`."""
        found = {finding.status for finding in self.findings}
        return "fail" if "fail" in found else "warn" if "warn" in found else "pass"

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return self.verdict != "fail"

    def of(self, status: Status) -> tuple[Finding, ...]:
        """Return the findings with a status."""
        return tuple(finding for finding in self.findings if finding.status == status)

    @property
    def conclusion(self) -> str:
        """The notes, and whether the environment passed."""
        return "\n".join([*self.notes, f"{self.environment['name']}: {'passed' if self.passed else 'FAILED'}"])

    def __str__(self) -> str:
        return "\n".join([*map(str, self.findings), self.conclusion])

    def to_json(self) -> dict[str, Any]:
        """Return the report of an audit as a JSON-serialisable dict."""
        counts = Counter(finding.status for finding in self.findings)
        return {
            "report_version": REPORT_VERSION,
            "environment": dict(self.environment),
            "verdict": self.verdict,
            "counts": {status: counts[status] for status in ("pass", "warn", "fail", "skip")},
            "results": [finding.to_json() for finding in self.findings],
        }
