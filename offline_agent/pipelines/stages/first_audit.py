"""The cheap checks of the audit on a few tasks, before a search spends anything; the manifest keeps what they found."""

from __future__ import annotations

from collections.abc import Sequence

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.envs.audit.report import AuditReport
from offline_agent.envs.audit.suite import audit_tasks
from offline_agent.envs.base import EnvSpec
from offline_agent.pipelines.stages.copy_check import undoing_changes
from offline_agent.records import Task
from offline_agent.runner.next_steps import command, environment_keys
from offline_agent.runner.pipeline import Session

TASKS, SECONDS = 3, 2.0
_SHOWN = 300  # characters of the evidence of one finding


def audit_first(session: Session[BuildPrefsConfig], spec: EnvSpec, tasks: Sequence[Task]) -> None:
    """Audit an environment before it is searched, say what was found, and note it in the manifest; once for a run.

    A fault does not end the run: whether it matters is the user's to say.

    Args:
        session: The run; `audit=off` leaves the checks out.
        spec: The environment.
        tasks: Tasks of the run; the first few are played.
    """
    if session.config.audit == "off" or "audit" in session.run.manifest:
        return
    if spec.judge is not None and spec.judge.costly:
        session.run.note(audit={"left_out": f"judge={spec.judge.name} asks a model"})
        return
    with undoing_changes(session, spec):
        report = audit_tasks(spec, tasks[:TASKS], SECONDS)
    session.run.note(audit=report.to_json())
    _tell(session, report)


def _tell(session: Session[BuildPrefsConfig], report: AuditReport) -> None:
    name, found = session.run.manifest["command"], [*report.of("fail"), *report.of("warn")]
    for finding in found:
        session.say(f"{name}: audit: {finding.check_id} {finding.status}s: {finding.evidence:.{_SHOWN}}")
    if report.of("fail"):
        keys = environment_keys(session.config.resolved()) or ["env=shop"]
        session.say(f"{name}: what is learnt may be worth nothing; audit the environment: {command('audit', keys)}")
    elif not found and report.of("pass"):
        session.say(f"{name}: audit: {len(report.of('pass'))} cheap checks of the environment pass (audit=off: none)")
