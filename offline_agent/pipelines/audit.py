"""The audit: an environment, checked with its verifier for leaks, noise and rewards that nobody earned.

Run `python -m offline_agent.pipelines.audit --help` for the keys; docs/audit.md lists the checks.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from offline_agent.config.judging import AuditConfig
from offline_agent.envs.base import EnvSpec, missing_members
from offline_agent.envs.checks.registry import RULES
from offline_agent.envs.checks.suite import audit
from offline_agent.errors import ConfigError, collect
from offline_agent.pipelines.entry import main
from offline_agent.report.judging import show_audit
from offline_agent.runner.components import make_environment
from offline_agent.runner.pipeline import Command, Facts, Session
from offline_agent.store.files import write_json

REPORT = "audit.json"


def prepare(config: AuditConfig) -> tuple[EnvSpec, Facts]:
    """Load the environment; see `runner.pipeline.Command.prepare`."""
    faults: list[str] = []
    spec = collect(faults, lambda: make_environment(config))
    if spec is not None:
        faults += missing_members(spec.cls, spec.judge)
    if faults or spec is None:
        raise ConfigError(faults)
    return spec, Facts({"env": spec.identity}, {"environment": spec.name})


def run(spec: EnvSpec, session: Session[AuditConfig]) -> Mapping[str, Any]:
    """Check; see `runner.pipeline.Command.run`."""
    config, done = session.config, 0
    spec.keep_in(session.run.path)
    session.progress.start(len(RULES), "checking")

    def notify(check_id: str) -> None:
        nonlocal done
        session.progress.update(done, check=check_id)
        done += 1

    report = audit(spec, config, notify)
    write_json(session.run.path / REPORT, report.to_json())
    return {"resumed": session.run.resumed, **report.to_json()}


COMMAND: Command[AuditConfig, EnvSpec] = Command(
    name="audit", config=AuditConfig, prepare=prepare, run=run, show=show_audit, alone=True,
    failed=lambda summary: summary["verdict"] == "fail",
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(COMMAND))
