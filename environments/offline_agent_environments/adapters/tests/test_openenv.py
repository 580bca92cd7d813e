"""Environments of OpenEnv, in an interpreter of their own: `openenv` needs mcp<2, which this one cannot have."""

from __future__ import annotations

import os

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.conformance import check_environment
from offline_agent.errors import ConfigError

PYTHON = os.environ.get("OPENENV_PYTHON")
needs_openenv = pytest.mark.skipif(
    PYTHON is None,
    reason="its hundred packages are not installed for a test: python -m venv V && V/bin/pip install openenv, "
    "then OPENENV_PYTHON=V/bin/python",
)


@needs_openenv
@pytest.mark.parametrize(("name", "tools"), [("Guessing", ("act",)), ("Counter", ("add",))])
def test_it_passes_the_conformance_suite(name: str, tools: tuple[str, ...]) -> None:
    spec = EnvSpec.load(f"openenv:offline_agent_environments.adapters.tests.openenv_envs:{name}", python=PYTHON)
    assert spec.tools.names == tools
    report = check_environment(spec, tasks=1, max_steps=5)
    assert report.passed, report


def test_where_it_is_missing_the_interpreter_to_name_is_said() -> None:
    # 'openenv.core' where a folder named openenv lies on the import path, as one of captured logs may
    with pytest.raises(ConfigError, match=r"needs the module 'openenv[.\w]*'.*pip install openenv.*env.python=PATH"):
        EnvSpec.load("openenv:my_env:MyEnv")
