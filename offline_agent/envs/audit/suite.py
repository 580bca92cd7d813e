"""The audit of one environment: the conformance suite's checks under RFC 008's ids, and those of rewards and data.

Each check is a generator of faults in words, as in `envs.checks`; one that yields a `Doubt` only warns.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from offline_agent.envs.audit import leakage, repeats, resources
from offline_agent.envs.audit.overlap import near_pairs
from offline_agent.envs.audit.plays import Plays, outcome
from offline_agent.envs.audit.report import RULES, AuditReport, Doubt, Finding, Status
from offline_agent.envs.audit.seekers import SEEKERS
from offline_agent.envs.base import SPLITS, EnvSpec
from offline_agent.envs.checks import NEVER, Checks, NotApplicable
from offline_agent.envs.conformance import run_check
from offline_agent.envs.play import begin
from offline_agent.envs.scripted_play import faulty
from offline_agent.records import Task, Trajectory

LEAK = 0.2
"""Share of tasks, beyond chance, whose gold answer is shown, from which a leak is a fault and no coincidence."""
NO_GOLD = "no gold answer is known"
"""Beginning of the evidence of a leak check that was not made because nothing says what the gold answer is."""
LUCKY, TOO_LUCKY = 0.1, 0.5
"""Success rates of random calls from which the audit warns and fails."""
CHEAP = (
    "runtime.seed_control", "semantic.oracle_max", "semantic.floor_gap", "runtime.episode_determinism",
    "semantic.no_solution_leakage/prompt", "semantic.no_solution_leakage/tools",
    "semantic.canary_floor/echo_observation", "semantic.canary_floor/echo_prompt",
    "semantic.canary_floor/format_only", "semantic.canary_floor/verifier_strings",
)  # fmt: skip
"""Checks of `audit_tasks`: the first faults that training on a broken environment would suffer from."""


@dataclass(frozen=True)
class AuditSettings:
    """Thoroughness of an audit.

    Attributes:
        tasks: Number of tasks of each split that are played.
        repeats: Times that the same actions are played.
        max_steps: Most actions of one episode.
        seconds: Longest any one check may take; after half of it no further task is begun.
        margin: Mean score above chance, in [0, 1], from which a reward seeker is a fault.
        prompts: Number of tasks of each split whose first observations are compared.
        near: Least similarity (Jaccard, in (0, 1]) of two that count as almost the same.
        reset_seconds, step_seconds: Limits of a run, which no reset and no call may take.
        checks: Beginnings of the ids of the checks that run; () = all.
        answers: Columns of the tasks that hold a gold answer, beside those that are named like one.
    """

    tasks: int = 3
    repeats: int = 3
    max_steps: int = 120
    seconds: float = 60.0
    margin: float = 0.2
    prompts: int = 200
    near: float = 0.9
    reset_seconds: float = 60.0
    step_seconds: float = 30.0
    checks: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()


def audit(spec: EnvSpec, settings: AuditSettings, tell: Callable[[str], None] = lambda check_id: None) -> AuditReport:
    """Run every check; return the report.

    Args:
        spec: The environment.
        settings: How thorough.
        tell: Called with each check's id before it runs.
    """
    suite = _Suite(spec, settings)
    findings: list[Finding] = []
    try:
        for check_id, functions in suite.all():
            listing = check_id == "runtime.task_declaration_accuracy"
            if not listing and settings.checks and not check_id.startswith(settings.checks):
                continue
            tell(check_id)
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
    settings = AuditSettings(tasks=len(tasks), seconds=seconds, max_steps=60, repeats=2)
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

    def __init__(self, spec: EnvSpec, settings: AuditSettings, answers_only: bool = False) -> None:
        self.spec = spec
        self.settings = settings
        self.checks = Checks(spec, settings.tasks, settings.max_steps, settings.seconds)
        self.plays = Plays(spec, self.checks.player, settings.max_steps, answers_only)
        self.measured: dict[str, Any] = {}

    def all(self) -> Iterator[tuple[str, list[Faults]]]:
        """Yield the checks' ids with their functions, in order."""
        checks, plays, settings = self.checks, self.plays, self.settings
        repeated = repeats.Repeats(self.spec, checks, settings.repeats, self.measured)
        bounds = resources.Resources(checks, plays, settings.reset_seconds, settings.step_seconds, self.measured)
        yield "runtime.task_declaration_accuracy", [checks.tasks]
        yield "data.splits_disjoint", [checks.splits]
        yield "runtime.seed_control", [checks.reset]
        yield "runtime.tool_declaration_accuracy", [checks.trl, checks.callable, checks.succeeds]
        yield "runtime.bad_calls", [checks.bad_calls]
        yield "semantic.oracle_max", [self.oracle]
        yield "semantic.floor_gap", [checks.empty]
        yield "runtime.reward_well_formed", [self.well_formed]
        yield "runtime.reward_attribution", [checks.turns]
        yield "semantic.verifier_determinism", [repeated.verdicts]
        yield "runtime.episode_determinism", [checks.replay]
        yield "runtime.episode_determinism/process", [repeated.process]
        yield "semantic.replayability", [checks.copies]
        yield "runtime.episode_isolation", [repeated.isolation]
        yield "runtime.threads", [checks.threads]
        yield "runtime.achieved_goals", [checks.goals]
        yield "runtime.process_state", [checks.process]
        yield "statistical.variance_bound", [repeated.noise]
        yield "semantic.no_solution_leakage/prompt", [partial(self.leak, self._prompt)]
        yield "semantic.no_solution_leakage/tools", [partial(self.leak, self._tools)]
        yield "semantic.no_solution_leakage/errors", [partial(self.leak, self._errors)]
        yield "semantic.no_solution_leakage/observations", [partial(self.leak, self._observations)]
        yield "semantic.canary_floor/random", [self.chance]
        for name in SEEKERS:
            yield f"semantic.canary_floor/{name}", [partial(self.seeker, name)]
        yield "data.relabelled_splits", [self.relabelled]
        yield "data.near_overlap", [self.near]
        yield "runtime.resource_bounds", [bounds.bounds]
        yield "semantic.resource_envelope", [bounds.envelope]
        yield "runtime.observation_size", [bounds.sizes]

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
        told = "; ".join([*filter(None, [found.detail]), *doubts])
        return Finding(check_id, status, told, dict(self.measured), time.perf_counter() - started)

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
                if told := [error for error in errors if "returned None" not in error]:
                    yield f"{name}: {told[0]}"

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

    # -- leaks --------------------------------------------------------------------------------------------------------

    def leak(self, texts: Callable[[Task], str]) -> Iterator[str]:
        """No gold answer is in a text."""
        columns = (*self.settings.answers, *(() if self.spec.judge is None else self.spec.judge.reads))
        tasks = list(self.checks.some())
        golds = {task.task_id: leakage.golds_of(task, self.plays.expert(task), columns) for task in tasks}
        if not any(golds.values()):
            there = ", ".join(dict.fromkeys(name for task in tasks for name in task.args)) or "none"
            raise NotApplicable(
                f"{NO_GOLD}: no column of the tasks (there are: {there}) is named like one or by answers=, and the "
                "expert's last turn is no answer; name it with answers=[COLUMN]"
            )
        found = leakage.find(golds, {task.task_id: texts(task) for task in tasks})
        self.measured |= {"tasks": found.tasks, "own": found.own, "decoys": round(found.decoys, 2)}
        if not found.own:
            return
        told = f"the gold answer is shown in {found.own} of {found.tasks} tasks, by chance {found.decoys:.1f}"
        told = f"{told}: {found.example}"
        yield told if found.excess > LEAK else Doubt(told)

    def _prompt(self, task: Task) -> str:
        with self.checks.opened() as episode:
            start = begin(episode, task)
            return f"{start.system}\n{start.observation}"

    def _tools(self, task: Task) -> str:
        with self.checks.opened() as episode:
            return json.dumps(begin(episode, task).tools, ensure_ascii=False)

    def _errors(self, task: Task) -> str:
        with self.checks.opened() as episode:
            episode.reset(task)
            told = []
            for action in faulty(episode):
                told.append(episode.step(action).observation or "")
                if episode.terminated:
                    episode.reset(task)
        played = [step for play in self.plays.chance(task) for step in play.steps if step.fault is not None]
        return "\n".join([*told, *(step.observation or "" for step in played)])

    def _observations(self, task: Task) -> str:
        return "\n".join(step.observation or "" for step in self.plays.blind(task).steps if step.fault is None)

    # -- splits -------------------------------------------------------------------------------------------------------

    def relabelled(self) -> Iterator[str]:
        """No goal that an episode of the train split reaches is a task of another split."""
        held = {_facts(task.args): f"{split}/{task.task_id}" for split in SPLITS[1:]
                for task in self.checks.listed(split)}  # fmt: skip
        reached = 0
        for task in self.checks.listed(SPLITS[0])[: self.settings.tasks * 4]:
            with self.checks.opened() as episode:
                self.checks.player.run_on(episode, task, self.checks.player.script(task))
                goal = episode.achieved_goal()
            if goal is not None:
                reached += 1
                if (other := held.get(_facts(goal))) is not None:
                    yield f"an episode of {task.task_id} reaches the goal of {other}: hindsight would train on it"
        self.measured |= {"episodes": reached, "held_out_tasks": len(held)}
        if not reached:
            raise NotApplicable("it names no achieved goal")

    def near(self) -> Iterator[str]:
        """No two tasks of different splits begin almost alike."""
        texts: dict[str, dict[str, str]] = {split: {} for split in SPLITS}
        end = time.monotonic() + self.settings.seconds / 2
        with self.checks.opened() as episode:
            for split in SPLITS:
                for task in self.checks.listed(split)[: self.settings.prompts]:
                    if time.monotonic() > end:
                        break
                    texts[split][task.task_id] = episode.reset(task)
        found = list(near_pairs(texts, self.settings.near))
        equal = [pair for pair in found if pair.similarity == 1]
        self.measured |= {"compared": {split: len(some) for split, some in texts.items()}, "pairs": len(found),
                          "equal": len(equal)}  # fmt: skip
        if found:
            most = max(found, key=lambda pair: pair.similarity)
            yield (
                f"{len(found)} pairs of first observations are at least {self.settings.near:.0%} alike, {len(equal)} "
                f"equal; e.g. {most.one} and {most.other} ({most.similarity:.0%})"
            )


def _score(play: Trajectory) -> float:
    verdict = play.verdict
    return -1.0 if verdict is None or verdict.score is None else verdict.score + bool(verdict.success)


def _facts(args: Mapping[str, Any]) -> str:
    return json.dumps({k: v for k, v in args.items() if k not in ("task_id", "split", "fold")}, sort_keys=True,
                      default=str)  # fmt: skip
