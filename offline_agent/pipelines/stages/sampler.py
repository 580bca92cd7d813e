"""The sampler of the online stage's actions, and the way of the trainer's weights to it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.config.refine_grpo import RefineGrpoConfig
from offline_agent.policies.base import Policy
from offline_agent.records import Task

if TYPE_CHECKING:
    from offline_agent.policies.weights import WeightUpdate
    from offline_agent.rendering.renderer import Renderer

_PROBED = 64  # ids by which a sampler's new weights are compared with the trainer's
_TOLERANCE = {"float32": 0.01, "bfloat16": 0.5}


@dataclass(frozen=True)
class Sampler:
    """A policy that takes the trainer's weights.

    Attributes:
        policy: Samples.
        give: Takes the trained model, its tokenizer and a folder for files that the policy reads; after it no answer is
            from older weights. Says what that was like; None where it is a copy in memory.
        rest: Called before training begins, until `give` is called again.
    """

    policy: Policy
    give: Callable[[Any, Any, Path], WeightUpdate | None]
    rest: Callable[[], None] = lambda: None


def make_sampler(config: RefineGrpoConfig, renderer: Renderer, task: Task) -> Sampler:
    """Return the sampler that the configuration names.

    Args:
        config: The configuration.
        renderer: The trained model's.
        task: One of the tasks: its arguments are the text by which new weights are tried.

    Raises:
        ConfigError: It cannot be made, or cannot take weights; says what to do.
        PolicyError: The server does not answer.
    """
    model, rollouts, sampler = config.model, config.rollouts, config.sampler
    common = {"temperature": rollouts.temperature, "max_tokens": rollouts.max_tokens}
    tolerance = _TOLERANCE[model.dtype] if sampler.tolerance is None else sampler.tolerance
    if sampler.name == "hf":
        from offline_agent.policies.hf.policy import HFPolicy

        own: Any = HFPolicy(model.path, dtype=model.dtype, renderer=renderer, threads=config.threads, **common)  # type: ignore[arg-type]
        return Sampler(own, lambda trained, tokenizer, folder: own.take_weights(trained))
    if sampler.name == "colocated":
        from offline_agent.policies.vllm.policy import ColocatedPolicy
        from offline_agent.policies.weights import probe_of

        near: Any = ColocatedPolicy(
            model.path,
            renderer=renderer,
            dtype=model.dtype,  # the trainer's: a coarser one would not say what the probe asks for
            memory=sampler.memory,
            sleep=sampler.sleep,
            **common,  # type: ignore[arg-type]
        )

        def hand_over(trained: Any, tokenizer: Any, folder: Path) -> WeightUpdate:
            taken: WeightUpdate = near.take_weights(trained, probe_of(trained, _ids(tokenizer, task), tolerance))
            return taken

        return Sampler(near, hand_over, near.sleep)
    from offline_agent.policies.base import DEFAULT_MODEL
    from offline_agent.policies.server.policy import ServerPolicy

    served = ServerPolicy(
        sampler.url,
        sampler.served,
        tokenizer=model.tokenizer or model.path or str(DEFAULT_MODEL),
        chat_template=model.chat_template,
        concurrency=rollouts.in_flight,
        **common,  # type: ignore[arg-type]
    )
    served.check_takes_weights()

    def give(trained: Any, tokenizer: Any, folder: Path) -> WeightUpdate:
        from offline_agent.policies.weights import probe_of
        from offline_agent.training.models import save_plain

        place = folder / "serving"
        save_plain(trained, tokenizer, place)
        try:
            return served.take_weights(place.resolve(), probe_of(trained, _ids(tokenizer, task), tolerance))
        finally:
            shutil.rmtree(place, ignore_errors=True)

    return Sampler(served, give)


def absent() -> Sampler:
    """Return a stand-in for the sampler in processes that do not play; only the first process plays."""
    nobody: Any = _Nobody()
    return Sampler(nobody, lambda trained, tokenizer, folder: None)


class _Nobody:
    """Holds no weights and answers nothing."""

    identity: Mapping[str, object] = {}

    def engine(self) -> _Nobody:
        return self

    def close(self) -> None:
        """Nothing is open."""


def _ids(tokenizer: Any, task: Task) -> list[int]:
    text = json.dumps({"task": task.task_id, **dict(task.args)}, default=str)
    return [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]][:_PROBED]
