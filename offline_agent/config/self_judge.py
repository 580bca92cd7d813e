"""`judge.path=self`: the model of an iteration as its judge (self-rewarding language models, Yuan et al. 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offline_agent.config.build_prefs import JudgeSection

_JUDGES = ("llm", "comparison")


def judges_itself(judge: JudgeSection) -> bool:
    """Return whether a judge, or a member of it, has `path=self`."""
    return with_model(judge, "") != judge


def with_model(judge: JudgeSection, folder: str) -> JudgeSection:
    """Return the judge with a model's folder in place of `path=self`, in its members too.

    Args:
        judge: The section.
        folder: The folder.
    """
    replaced = _replaced({"name": judge.name, **(judge.model_extra or {})}, folder)
    return JudgeSection.model_validate(replaced)


def _replaced(value: Any, folder: str) -> Any:
    if isinstance(value, Mapping):
        found = {name: _replaced(each, folder) for name, each in value.items()}
        if found.get("name") in _JUDGES and found.get("path") == "self":
            found["path"] = folder
        return found
    return [_replaced(each, folder) for each in value] if isinstance(value, list | tuple) else value
