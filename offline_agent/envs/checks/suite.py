"""The suite of checks, and the audit of an environment and its verifier by all of them; see `conformance` too.

Each check is a generator of faults in words; one that yields a `Doubt` only warns.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from statistics import fmean
from typing import Literal, NamedTuple

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.boundary import shown
from offline_agent.envs.checks.contract import ContractChecks
from offline_agent.envs.checks.registry import (
    LISTING,
    RULES,
    AuditSection,
    Doubt,
    Finding,
    NotApplicable,
    Report,
    Status,
)
from offline_agent.envs.checks.texts import TextChecks
from offline_agent.envs.pool import Call
from offline_agent.errors import OfflineAgentError, in_words
from offline_agent.records import Task, Trajectory

ENDLESS = "one call of it does not return"
LUCKY, TOO_LUCKY = 0.1, 0.5
"""Success rates of random calls from which the audit warns and fails."""
_MOST_FAULTS = 5  # that a check tells of


def audit(spec: EnvSpec, settings: AuditSection, notify: Callable[[str], None] = lambda check_id: None) -> Report:
    """Run every check; return the report.

    Args:
        spec: The environment.
        settings: How thorough.
        notify: Called with each check's id before it runs.
    """
    suite = Suite(spec, settings)
    findings: list[Finding] = []
    with suite:
        for check_id, rule in RULES.items():
            if check_id != LISTING and settings.checks and not check_id.startswith(settings.checks):
                continue
            notify(check_id)
            findings.append(suite.find(check_id, rule.methods, settings.seconds, rule.severity))
            if check_id == LISTING:
                if findings[-1].status == "fail":
                    break
                suite.find("costs", "measure", settings.seconds)
    return Report(spec.identity, tuple(findings))


def audit_tasks(spec: EnvSpec, tasks: Sequence[Task], seconds: float) -> Report:
    """Run the cheap checks on a few tasks, for at most about so many seconds; checks left out are `skip`.

    No random calls are made: what they might break is nobody's choice.

    Args:
        spec: The environment.
        tasks: The tasks.
        seconds: Time for all checks together.
    """
    settings = AuditSection(tasks=len(tasks), seconds=seconds, max_steps=60, repeats=2)
    suite, end, hung = Suite(spec, settings, answers_only=True), time.monotonic() + seconds, False
    suite.give(tasks)
    findings: list[Finding] = []
    for check_id, rule in RULES.items():
        if not rule.cheap:
            continue
        left = end - time.monotonic()
        if hung or left < 0.05:
            findings.append(Finding(check_id, "skip", "no time was left"))
            continue
        findings.append(suite.find(check_id, rule.methods, left, rule.severity))
        hung = findings[-1].status == "fail" and time.monotonic() >= end
        if hung:  # a slow environment is not a faulty one; nothing is known
            findings[-1] = Finding(check_id, "skip", f"it was not done after {seconds:g} s")
    if not hung:  # else the check that still runs ends at its next call
        spec.watch = None
    return Report(spec.identity, tuple(findings))


class Suite(ContractChecks, TextChecks):
    """All checks of an environment; a context that leaves the process as it was. See `ToolChecks` for the arguments."""

    def __enter__(self) -> Suite:
        return self

    def __exit__(self, *_: object) -> None:
        self.spec.watch = None
        self.surroundings.put_back()

    def find(
        self, name: str, methods: str, seconds: float, severity: Literal["warn", "fail"] = "fail", grace: float = 0.0
    ) -> Finding:
        """Make one check in a thread of its own, so that an environment that hangs cannot hang the suite.

        Args:
            name: Of the finding.
            methods: See `Rule`.
            seconds: Longest it may take; then it fails, and ends at its next call.
            severity: The status of a fault.
            grace: Seconds after these in which it must come to its next call, else that call does not return; 0 = any.
        """
        outcome: list[tuple[Status, str, str]] = []
        call, started = Call(), time.perf_counter()
        self.left_out, self.seconds = 0, seconds
        self.measured.clear()

        def run() -> None:
            try:
                with call.made_here():
                    outcome.append(self._outcome(methods, severity))
            except NotApplicable as reason:
                outcome.append(("skip", str(reason), ""))
            except OfflineAgentError as error:
                outcome.append((severity, str(error), "" if error.__cause__ is None else shown(error.__cause__)))
            except BaseException as error:  # e.g. from the demonstrate hook, which no boundary wraps
                outcome.append((severity, in_words(error), shown(error)))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(seconds)
        if not outcome:
            self.watch.give_up(thread)
            call.end()
            where = _place_in_environment(thread, self.spec.cls)
            thread.join(grace)
            endless = f"; {ENDLESS}" if grace and thread.is_alive() else ""
            late = f"it was not done after {seconds:g} s{where}{endless}; give it more with seconds=, or fewer tasks="
            outcome = [(severity, late, "")]
        status, evidence, traces = outcome[0]
        return Finding(name, status, evidence, dict(self.measured), time.perf_counter() - started, traces)

    def _outcome(self, methods: str, severity: Literal["warn", "fail"]) -> tuple[Status, str, str]:
        """Return status, evidence and the tracebacks behind it of a check's methods, made one after the other."""
        doubts: list[str] = []

        def faults() -> Iterator[str]:
            for method in methods.split():
                name, _, argument = method.partition(":")
                for fault in getattr(self, name)(*filter(None, [argument])):
                    if isinstance(fault, Doubt):
                        doubts.append(fault)
                    else:
                        yield fault

        found = list(itertools.islice(faults(), _MOST_FAULTS))
        text = "; ".join(found)
        if not found and self.left_out:
            text = f"{self.left_out} tasks were left out, for want of time (seconds={self.seconds:g})"
        traces = [shown(e) for tool, e in self.watch.errors.items() if "succeeds" in methods and f"{tool}: " in text]
        status: Status = severity if found else "warn" if doubts else "pass"
        return status, "; ".join([*filter(None, [text]), *doubts]), "\n".join(traces)

    # -- rewards ------------------------------------------------------------------------------------------------------

    def solvable(self) -> Iterator[str]:
        """The expert without noise earns 1; an environment without an expert cannot show that anything does."""
        if self.spec.demonstrate is None:
            yield Doubt("there is no demonstrate hook, so nothing shows that the verifier gives a right solution 1")
            return
        yield from self.oracle()

    def odd_answers(self) -> Iterator[str]:
        """The reward can be asked for after answers that a verifier may not expect."""
        for task in self.some():
            for name in ("format_only", "longest_answer"):
                errors = outcome(self.plays.seek(name, task)).errors
                if reason := [error for error in errors if "returned None" not in error]:
                    yield f"{name}: {reason[0]}"

    def chance(self) -> Iterator[str]:
        """Random calls do not succeed."""
        found = outcome([play for task in self.some() for play in self.plays.chance(task)])
        self.measured |= {"plays": found.plays, "success": round(found.rate, 4), "mean_score": round(found.mean, 4)}
        if found.rate >= LUCKY:
            detail = f"random calls succeed in {found.rate:.0%} of {found.plays} plays; {found.best}"
            yield detail if found.rate >= TOO_LUCKY else Doubt(detail)

    def seeker(self, name: str) -> Iterator[str]:
        """A reward-seeking policy stays at the floor: what chance earns, and at least what doing nothing does."""
        best, floors, tries = [], [], 0
        for task in self.some():
            plays = self.plays.seek(name, task)
            if not plays:
                continue
            tries += len(plays)
            best.append(max(plays, key=_score))
            called = sum(step.action.call is not None for step in best[-1].steps)
            floors.append(outcome(self.plays.chance(task) if called > 1 else []))  # else chance would earn nothing
        if not best:
            raise NotApplicable("every play of it calls tools")
        found, margin = outcome(best), self.settings.margin
        floor_mean, floor_rate = fmean(floor.mean for floor in floors), fmean(floor.rate for floor in floors)
        excess = max(found.mean - floor_mean, found.rate - floor_rate)
        self.measured |= {
            "tasks": len(best), "plays": tries, "success": round(found.rate, 4), "mean_score": round(found.mean, 4),
            "floor": {"success": round(floor_rate, 4), "mean_score": round(floor_mean, 4)}, "margin": margin,
        }  # fmt: skip
        if excess > margin / 2:
            detail = f"mean score {found.mean:.2f} where chance has {floor_mean:.2f}; {found.best}"
            yield detail if excess > margin else Doubt(detail)


class Scores(NamedTuple):
    """Scores of several plays of one kind.

    Attributes:
        plays: Number of those that could be scored.
        mean, rate: Their mean score, and the share of successes; 0 where nothing could be scored.
        errors: Why the others could not.
        best: The task of the play with the highest score, and what that play was.
    """

    plays: int
    mean: float
    rate: float
    errors: tuple[str, ...]
    best: str


def outcome(plays: list[Trajectory]) -> Scores:
    """Return the scores of plays."""
    judged = [(play, play.verdict) for play in plays if play.verdict]
    errors = tuple(f"{play.task.task_id}: {verdict.error}" for play, verdict in judged if verdict.error)
    scored = [(verdict.score, bool(verdict.success), play) for play, verdict in judged if verdict.score is not None]
    if not scored:
        return Scores(0, 0.0, 0.0, errors, "")
    score, _, play = max(scored, key=itemgetter(0))
    best = f"{play.task.task_id}: {_shown(play)} scored {score:g}"
    return Scores(len(scored), fmean(s for s, *_ in scored), fmean(won for _, won, _ in scored), errors, best)


def _shown(play: Trajectory) -> str:
    """Return the actions of a play in words."""
    parts = [
        f"{step.action.call.name}({', '.join(f'{v!r:.60}' for v in step.action.call.arguments.values())})"
        if step.action.call is not None
        else f"the answer {step.action.text!r:.60}"
        for step in play.steps
    ]
    return ", ".join(parts[-4:])


def _score(play: Trajectory) -> float:
    verdict = play.verdict
    return -1.0 if verdict is None or verdict.score is None else verdict.score + bool(verdict.success)


def _place_in_environment(thread: threading.Thread, cls: type) -> str:
    """Return in which line of the environment's module a thread is; "" where it is in none."""
    frame = sys._current_frames().get(thread.ident or 0)
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    calls = [] if frame is None else traceback.extract_stack(frame)
    for call in reversed(calls):
        if call.filename == file:
            return f", and is in {file}:{call.lineno}, {call.name}"
    return ""
