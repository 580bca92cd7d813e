"""Teachers of on-policy distillation: the model or the servers that `objective.teacher` names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offline_agent.errors import ConfigError
from offline_agent.runner.training import max_length
from offline_agent.training.online.distillation import SERVED, SIBLING

if TYPE_CHECKING:
    from offline_agent.config.refine_grpo import RefineGrpoConfig
    from offline_agent.policies.server.policy import ServerPolicy
    from offline_agent.training.models import Trainable


def load_teacher(config: RefineGrpoConfig, trainable: Trainable) -> Any:
    """Return the model that `objective.teacher` names; None where it is the policy itself, a server, or nobody.

    Raises:
        ConfigError: It cannot be loaded, has another tokenizer than the policy, or takes shorter rows.
    """
    source, own = config.objective.teacher, config.model
    if source is None or source == SIBLING or source.startswith(SERVED):
        return None
    from offline_agent.policies.hf.adapters import base_of, put_on
    from offline_agent.training.models import load_trainable, positions

    key = "objective.teacher"
    base = base_of(source, key)
    try:
        model, tokenizer, _ = load_trainable(base or source, None, trainable.tokenizer.chat_template, own.weights_dtype)
    except ConfigError as error:
        raise ConfigError([f"{key}: {fault.removeprefix('model.path: ')}" for fault in error.faults]) from error
    if base is not None:
        put_on(model, base, source, key)
    if tokenizer.get_vocab() != trainable.tokenizer.get_vocab():
        raise ConfigError(
            f"{key}: {source!r} has another tokenizer than the policy, and would score other words under the same ids; "
            "give a model of the policy's family"
        )
    if positions(model) < max_length(config, trainable.model):
        raise ConfigError(
            f"{key}: {source!r} was made for rows of {positions(model)} tokens; set batch.max_length to that or less"
        )
    return model.requires_grad_(False)


def serve_teacher(config: RefineGrpoConfig) -> ServerPolicy | None:
    """Return the servers of `objective.teacher`; None where it names none.

    Raises:
        ConfigError: They have another tokenizer than the policy, or roll-outs another temperature than 1.
        PolicyError: They do not answer.
    """
    source, own = config.objective.teacher or "", config.model
    if not source.startswith(SERVED):
        return None
    from offline_agent.policies.base import DEFAULT_MODEL
    from offline_agent.policies.server.policy import ServerPolicy

    if config.rollouts.temperature != 1.0:
        raise ConfigError(
            "objective.teacher: a server gives log-probabilities at temperature 1, but rollouts.temperature is "
            f"{config.rollouts.temperature:g}; set it to 1, or name a model's folder"
        )
    tokenizer = own.tokenizer or own.path or str(DEFAULT_MODEL)
    served = ServerPolicy(source, tokenizer=tokenizer, chat_template=own.chat_template)
    served.check_tokenizer()
    return served
