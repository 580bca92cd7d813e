"""Limits of episodes and actions that a configuration leaves to the environment and the model."""

from __future__ import annotations

from typing import Any, TypeVar

from offline_agent.config.build_prefs import BuildPrefsConfig, RunConfig
from offline_agent.config.evaluate import EvaluateConfig
from offline_agent.config.iterate import IterateConfig
from offline_agent.config.refine_grpo import RefineGrpoConfig
from offline_agent.config.training import TrainSftConfig
from offline_agent.envs.checks.trial import episode_length
from offline_agent.envs.settings import DEFAULT_STEPS
from offline_agent.errors import OfflineAgentError
from offline_agent.judges.judge import make_judge
from offline_agent.runner.components import load_environment

C = TypeVar("C", bound=RunConfig)

_SECTIONS = {  # the section with max_steps; "" = the configuration itself
    BuildPrefsConfig: "search",
    EvaluateConfig: "",
    IterateConfig: "search",
    RefineGrpoConfig: "rollouts",
    TrainSftConfig: "demonstrations",
}


def completed(config: C) -> C:
    """Return the configuration with `max_steps` and `max_tokens` filled in where they are left to their defaults.

    `max_steps` = 0 becomes the environment's own (`trial.episode_length`). `rollouts.max_tokens` of `refine_grpo` and
    `policy.max_tokens` of `iterate` become the model's own (`policies.hf.loading.action_limit`): of `iterate`, the
    first model's, for all iterations alike. A faulty environment or model is left to `prepare`, which says so.
    """
    name = _SECTIONS.get(type(config))
    changes: dict[str, Any] = {}
    if name is not None:
        section: Any = getattr(config, name) if name else config
        if section.max_steps == 0 and not _reads_rows(config):
            steps = _steps(config)
            changes |= {name: section.model_copy(update={"max_steps": steps})} if name else {"max_steps": steps}
    if isinstance(config, RefineGrpoConfig) and config.rollouts.max_tokens == 0:
        rollouts = changes.get("rollouts", config.rollouts)
        changes["rollouts"] = rollouts.model_copy(update={"max_tokens": _tokens(config.model.path)})
    if isinstance(config, IterateConfig) and config.policy.max_tokens is None:
        changes["policy"] = config.policy.model_copy(update={"max_tokens": _tokens(config.policy.model)})
    return config.model_copy(update=changes) if changes else config


def _reads_rows(config: RunConfig) -> bool:
    return isinstance(config, TrainSftConfig) and bool(config.data.runs or config.data.files)


def _steps(config: Any) -> int:
    try:
        judge = make_judge(config.judge.name, dict(config.judge.model_extra or {}))
        return episode_length(load_environment(config.env, judge))
    except OfflineAgentError:
        return DEFAULT_STEPS


def _tokens(model: str | None) -> int:
    from offline_agent.policies.base import DEFAULT_MODEL
    from offline_agent.policies.hf.loading import MOST_ACTION_TOKENS, action_limit_of

    try:
        return action_limit_of(str(DEFAULT_MODEL) if model is None else model)
    except OfflineAgentError:
        return MOST_ACTION_TOKENS
