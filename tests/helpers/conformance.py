"""The conformance suite and the audit of an environment, as contract tests run them."""

from __future__ import annotations

import inspect
import json
from typing import Any

from transformers.utils import get_json_schema

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.checks.registry import AuditSection
from offline_agent.envs.checks.suite import audit
from offline_agent.envs.conformance import check_environment


def assert_conforms(name: str, args: dict[str, Any], tasks: int = 2) -> None:
    report = check_environment(EnvSpec.load(name, args), tasks=tasks)
    assert report.passed, f"\n{report}"


def assert_as_trl_sees_it(name: str, args: dict[str, Any]) -> None:
    """Listed and described as TRL does it: members of the class, bound methods, transformers' schemas."""
    spec = EnvSpec.load(name, args)
    instance = spec.cls(**spec.args)
    members = [n for n, _ in inspect.getmembers(type(instance), predicate=inspect.isfunction)]
    tools = [n for n in members if n not in ("reset", "get_reward") and not n.startswith("_")]
    assert [get_json_schema(getattr(instance, n)) for n in tools] == list(spec.tools.schemas)
    assert json.loads(json.dumps(spec.tools.schemas)) == list(spec.tools.schemas)


def assert_audited(name: str, args: dict[str, Any]) -> None:
    settings = AuditSection(tasks=2, checks=("semantic", "data"))
    report = audit(EnvSpec.load(name, args), settings)
    assert not report.of("fail"), [finding.to_json() for finding in report.of("fail")]
    assert len(report.of("pass")) > 8
