"""The audit of one environment: the conformance suite's checks under RFC 008's ids, and those of rewards and data.

Each check is a generator of faults in words, as in `envs.checks`; one that yields a `Doubt` only warns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

from offline_agent.envs.audit.measurements import Measurements
from offline_agent.envs.audit.plays import Plays, outcome
from offline_agent.envs.audit.report import RULES, AuditReport, AuditSection, Doubt, Finding, Status
from offline_agent.envs.audit.seekers import SEEKERS
from offline_agent.envs.audit.texts import TextChecks
from offline_agent.envs.base import EnvSpec
from offline_agent.envs.checks.suite import Checks
from offline_agent.envs.checks.tools import NEVER, NotApplicable
from offline_agent.envs.conformance import run_check
from offline_agent.records import Task, Trajectory

LUCKY, TOO_LUCKY = 0.1, 0.5
"""Success rates of random calls from which the audit warns and fails."""
CHEAP = (
    "runtime.seed_control", "semantic.oracle_max", "semantic.floor_gap", "runtime.episode_determinism",
    "semantic.no_solution_leakage/prompt", "semantic.no_solution_leakage/tools",
    "semantic.canary_floor/echo_observation", "semantic.canary_floor/echo_prompt",
    "semantic.canary_floor/format_only", "semantic.canary_floor/verifier_strings",
)  # fmt: skip
"""Checks of `audit_tasks`: the first faults that training on a broken environment would suffer from."""


def audit(spec: EnvSpec, settings: AuditSection, notify: Callable[[str], None] = lambda check_id: None) -> AuditReport:
    """Run every check; return the report.

    Args:
        spec: The environment.
        settings: How thorough.
        notify: Called with each check's id before it runs.
    """
    suite = _Suite(spec, settings)
    findings: list[Finding] = []
    try:
        for check_id, functions in suite.all():
            listing = check_id == "runtime.task_declaration_accuracy"
            if not listing and settings.checks and not check_id.startswith(settings.checks):
                continue
            notify(check_id)
            findings.append(suite.find(check_id, functions, settings.seconds))
            if listing:
                if findings[-1].status == "fail":
                    break
                run_check("costs", suite.checks.measure, settings.seconds, suite.checks)
    finally:
        spec.watch = None
        suite.checks.surroundings.put_back()
    return AuditReport(spec.identity, tuple(findings))


def audit_tasks(spec: EnvSpec, tasks: Sequence[Task], seconds: float) -> AuditReport:
    """Run the cheap checks on a few tasks, for at most about so many seconds; checks left out are `skip`.

    No random calls are made: what they might break is nobody's choice.

    Args:
        spec: The environment.
        tasks: The tasks.
        seconds: Time for all checks together.
    """
    settings = AuditSection(tasks=len(tasks), seconds=seconds, max_steps=60, repeats=2)
    suite, end, hung = _Suite(spec, settings, answers_only=True), time.monotonic() + seconds, False
    suite.checks.give(tasks)
    every, findings = dict(suite.all()), []
    for check_id in CHEAP:
        left = end - time.monotonic()
        if hung or left < 0.05:
            findings.append(Finding(check_id, "skip", "no time was left"))
            continue
        findings.append(suite.find(check_id, every[check_id], left))
        hung = findings[-1].status == "fail" and time.monotonic() >= end
        if hung:  # a slow environment is not a faulty one; nothing is known
            findings[-1] = Finding(check_id, "skip", f"it was not done after {seconds:g} s")
    if not hung:  # else the check that still runs ends at its next call
        spec.watch = None
    return AuditReport(spec.identity, tuple(findings))


Faults = Callable[[], Iterable[str]]


class _Suite:
    """The checks of one audit, and what they share."""

    def __init__(self, spec: EnvSpec, settings: AuditSection, answers_only: bool = False) -> None:
        self.spec = spec
        self.settings = settings
        self.checks = Checks(spec, settings.tasks, settings.max_steps, settings.seconds)
        self.plays = Plays(spec, self.checks.player, settings.max_steps, answers_only)
        self.measured: dict[str, Any] = {}

    def all(self) -> Iterator[tuple[str, list[Faults]]]:
        """Yield the checks' ids with their functions, in order."""
        checks, plays, settings = self.checks, self.plays, self.settings
        texts = TextChecks(checks, plays, settings, self.measured)
        measures = Measurements(checks, plays, settings, self.measured)
        yield "runtime.task_declaration_accuracy", [checks.tasks]
        yield "data.splits_disjoint", [checks.splits]
        yield "runtime.seed_control", [checks.reset]
        yield "runtime.tool_declaration_accuracy", [checks.trl, checks.callable, checks.succeeds]
        yield "runtime.bad_calls", [checks.bad_calls]
        yield "semantic.oracle_max", [self.oracle]
        yield "semantic.floor_gap", [checks.empty]
        yield "runtime.reward_well_formed", [self.well_formed]
        yield "runtime.reward_attribution", [checks.turns]
        yield "semantic.verifier_determinism", [measures.verdicts]
        yield "runtime.episode_determinism", [checks.replay]
        yield "runtime.episode_determinism/process", [measures.process]
        yield "semantic.replayability", [checks.copies]
        yield "runtime.episode_isolation", [measures.isolation]
        yield "runtime.threads", [checks.threads]
        yield "runtime.achieved_goals", [checks.goals]
        yield "runtime.process_state", [checks.process]
        yield "statistical.variance_bound", [measures.noise]
        yield "semantic.no_solution_leakage/prompt", [partial(texts.leak, texts.prompt)]
        yield "semantic.no_solution_leakage/tools", [partial(texts.leak, texts.tools)]
        yield "semantic.no_solution_leakage/errors", [partial(texts.leak, texts.errors)]
        yield "semantic.no_solution_leakage/observations", [partial(texts.leak, texts.observations)]
        yield "semantic.canary_floor/random", [self.chance]
        for name in SEEKERS:
            yield f"semantic.canary_floor/{name}", [partial(self.seeker, name)]
        yield "data.relabelled_splits", [texts.relabelled]
        yield "data.near_overlap", [texts.near]
        yield "runtime.resource_bounds", [measures.bounds]
        yield "semantic.resource_envelope", [measures.envelope]
        yield "runtime.observation_size", [measures.sizes]

    def find(self, check_id: str, functions: Sequence[Faults], seconds: float) -> Finding:
        """Run one check; return its finding."""
        doubts: list[str] = []
        self.measured.clear()

        def faults() -> Iterator[str]:
            for fault in chain.from_iterable(function() for function in functions):
                if isinstance(fault, Doubt):
                    doubts.append(fault)
                else:
                    yield fault

        self.checks.seconds = seconds
        started = time.perf_counter()
        found = run_check(NEVER if check_id == "runtime.tool_declaration_accuracy" else check_id, faults, seconds,
                          self.checks)  # fmt: skip
        status: Status = "skip" if found.passed is None else "pass" if found.passed else RULES[check_id].severity
        if status == "pass" and doubts:
            status = "warn"
        reason = "; ".join([*filter(None, [found.detail]), *doubts])
        return Finding(check_id, status, reason, dict(self.measured), time.perf_counter() - started)

    # -- rewards ------------------------------------------------------------------------------------------------------

    def oracle(self) -> Iterator[str]:
        """The expert without noise earns 1; an environment without an expert cannot show that anything does."""
        if self.spec.demonstrate is None:
            hook = self.spec.mend("demonstrate hook", "env.demonstrate=module:function")
            yield Doubt(f"there is no {hook}, so nothing shows that the verifier gives a right solution 1")
            return
        yield from self.checks.oracle()

    def well_formed(self) -> Iterator[str]:
        """The reward can be asked for at any time, and after answers that a verifier may not expect."""
        yield from self.checks.reward()
        for task in self.checks.some():
            for name in ("format_only", "longest_answer"):
                errors = outcome(self.plays.seek(name, task)).errors
                if reason := [error for error in errors if "returned None" not in error]:
                    yield f"{name}: {reason[0]}"

    def chance(self) -> Iterator[str]:
        """Random calls do not succeed."""
        found = outcome([play for task in self.checks.some() for play in self.plays.chance(task)])
        self.measured |= {"plays": len(found.scores), "success": round(found.rate, 4),
                          "mean_score": round(found.mean, 4)}  # fmt: skip
        if found.rate >= TOO_LUCKY:
            yield f"random calls succeed in {found.rate:.0%} of {len(found.scores)} plays; {found.best}"
        elif found.rate >= LUCKY:
            yield Doubt(f"random calls succeed in {found.rate:.0%} of {len(found.scores)} plays; {found.best}")

    def seeker(self, name: str) -> Iterator[str]:
        """A reward-seeking policy stays at the floor: what chance earns, and at least what doing nothing does."""
        best, tries = [], 0
        floor_score = floor_rate = 0.0
        for task in self.checks.some():
            plays = self.plays.seek(name, task)
            if not plays:
                continue
            tries += len(plays)
            best.append(max(plays, key=_score))
            if sum(step.action.call is not None for step in best[-1].steps) > 1:  # else chance would earn nothing
                chance = outcome(self.plays.chance(task))
                floor_score, floor_rate = floor_score + chance.mean, floor_rate + chance.rate
        if not best:
            raise NotApplicable("every play of it calls tools")
        found, margin = outcome(best), self.settings.margin
        floor_mean, floor_rate = floor_score / len(best), floor_rate / len(best)
        excess, lucky = found.mean - floor_mean, found.rate - floor_rate
        self.measured |= {
            "tasks": len(best), "plays": tries, "success": round(found.rate, 4), "mean_score": round(found.mean, 4),
            "floor": {"success": round(floor_rate, 4), "mean_score": round(floor_mean, 4)}, "margin": margin,
        }  # fmt: skip
        if excess > margin or lucky > margin:
            yield f"mean score {found.mean:.2f} where chance has {floor_mean:.2f}; {found.best}"
        elif excess > margin / 2 or lucky > margin / 2:
            yield Doubt(f"mean score {found.mean:.2f} where chance has {floor_mean:.2f}; {found.best}")

def _score(play: Trajectory) -> float:
    verdict = play.verdict
    return -1.0 if verdict is None or verdict.score is None else verdict.score + bool(verdict.success)
