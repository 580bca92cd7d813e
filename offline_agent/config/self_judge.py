"""`judge.path=self`: the model of an iteration as its judge (self-rewarding language models, Yuan et al. 2024)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from offline_agent.config.build_prefs import JudgeSection, OnlineRewardSection, RankingSection

_JUDGES = ("llm", "comparison", "planned")


def judges_itself(judge: JudgeSection) -> bool:
    """Return whether a judge, or a member of it, has `path=self`."""
    return with_model(judge, lambda: "") != judge


def with_model(judge: JudgeSection, folder: Callable[[], str]) -> JudgeSection:
    """Return the judge with a model's folder in place of `path=self`, in its members too.

    Args:
        judge: The section.
        folder: Returns the folder; called where there is something to replace.
    """
    return JudgeSection.model_validate(_replaced(judge.model_dump(), folder))


def ranking_with_model(reward: OnlineRewardSection, folder: Callable[[], str]) -> OnlineRewardSection:
    """Return the section of the reward with a model's folder in place of `path=self` of its ranking."""
    ranking = RankingSection.model_validate(_replaced(reward.ranking.model_dump(), folder))
    return reward.model_copy(update={"ranking": ranking})


def _replaced(value: Any, folder: Callable[[], str]) -> Any:
    if isinstance(value, Mapping):
        found = {name: _replaced(each, folder) for name, each in value.items()}
        if found.get("name") in _JUDGES and found.get("path") == "self":
            found["path"] = folder()
        return found
    return type(value)(_replaced(each, folder) for each in value) if isinstance(value, list | tuple) else value
