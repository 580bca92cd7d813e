from __future__ import annotations

from pathlib import Path

import pytest

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.config.loading import load
from offline_agent.errors import ConfigError
from offline_agent.rendering import hub
from offline_agent.runner.stored import check_models


def test_a_missing_model_is_told_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hub, "_unreachable", lambda endpoint: "no network")
    with pytest.raises(ConfigError, match="policy.model: got 'nope/none'"):
        check_models(load(BuildPrefsConfig, overrides=["policy=hf", "policy.model=nope/none"]))
    check_models(load(BuildPrefsConfig, overrides=["policy=hf", f"policy.model={tmp_path}"]))
    check_models(load(BuildPrefsConfig, overrides=["policy=server", "policy.model=nope/none"]))  # a server's own name
