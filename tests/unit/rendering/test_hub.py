"""A hub name is refused at once where the hub does not answer and the model is not in its cache."""

from __future__ import annotations

import urllib.error
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from offline_agent.errors import ConfigError
from offline_agent.rendering import hub


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[float]:
    """Let the hub refuse connections; return the timeouts it was asked with."""
    asked: list[float] = []

    def refuse(*_: Any, timeout: float, **__: Any) -> None:
        asked.append(timeout)
        raise urllib.error.URLError("connection refused")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub.urllib.request, "urlopen", refuse)
    return asked


def test_a_name_that_cannot_be_loaded_is_refused_after_one_question(unreachable: list[float]) -> None:
    with pytest.raises(ConfigError, match="policy.model: got 'some/model'.*the hub cannot be reached"):
        hub.only_here("some/model", "policy.model")
    assert unreachable == [hub.SECONDS]


@pytest.mark.parametrize("path", ["runs/first/model", "./model", "/no/such"])
def test_a_path_to_nothing_is_refused_without_a_question(unreachable: list[float], path: str) -> None:
    with pytest.raises(ConfigError, match="there is no such folder, and no model on the hub has such a name"):
        hub.only_here(path, "policy.model")
    assert not unreachable


def test_a_folder_is_loaded_without_a_question(unreachable: list[float], tmp_path: Path) -> None:
    assert not hub.only_here(str(tmp_path), "policy.model")
    assert not unreachable


def test_a_model_in_the_cache_is_loaded_from_there(
    unreachable: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda source, name: str(tmp_path / name))
    assert hub.only_here("some/model", "policy.model")


def test_where_offline_is_asked_for_nothing_is_asked(unreachable: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE is set"):
        hub.only_here("some/model", "policy.model")
    assert not unreachable
