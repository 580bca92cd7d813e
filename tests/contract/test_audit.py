"""Every environment of the catalog passes the audit's checks of rewards, leaks and data."""

from __future__ import annotations

import pytest

from offline_agent import catalog
from offline_agent.envs.audit.suite import AuditSettings, audit
from offline_agent.envs.base import EnvSpec
from tests.contract.test_environments import ENVIRONMENTS

CATALOG = [entry for entry in ENVIRONMENTS if entry.values[0] in catalog.ENVIRONMENTS and not entry.values[1]]
BABYAI = [entry for entry in ENVIRONMENTS if entry.values[0] == "babyai"]


@pytest.mark.parametrize(("name", "args"), [*CATALOG, *BABYAI])
def test_it_passes(name: str, args: dict[str, str]) -> None:
    settings = AuditSettings(tasks=2, prompts=20, checks=("semantic", "statistical", "data"))
    report = audit(EnvSpec.load(name, args), settings)
    assert not report.of("fail"), [finding.to_json() for finding in report.of("fail")]
    assert len(report.of("pass")) > 10
