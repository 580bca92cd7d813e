"""The keys of `--plan`: what a run is expected to cost, and from where that is known."""

from __future__ import annotations

from offline_agent.config.base import Section, key


class PlanSection(Section):
    """The expected costs of a run."""

    probe: int = key(
        20, "tasks done beforehand, by a process of its own in a directory that is removed; 0 = none", ge=0, free=True
    )
    updates: int = key(3, "updates (of refine_grpo: rounds) that such a probe trains", ge=1, free=True)
    rates: str | None = key(
        None, "a finished run of the same pipeline whose figures serve in place of a probe", free=True
    )
    expect: bool = key(False, "probe before the run, and put expected beside actual in its summary", free=True)
    generators: int = key(1, "replicas that generate: servers, or workers that hold the model", ge=1, free=True)
    workers: int | None = key(None, "environments stepped at once; null = limits.workers", ge=1, free=True)
    tokens_per_second: float | None = key(
        None, "tokens that one generator samples in a second; null = as in the probe", gt=0, free=True
    )
    prompt_tokens_per_second: float | None = key(
        None, "prompt tokens that one generator computes in a second; null = not counted apart", gt=0, free=True
    )
    tool_seconds: float | None = key(None, "seconds of one tool call; null = as in the probe", ge=0, free=True)
    update_seconds: float | None = key(None, "seconds of one update; null = as in the probe", gt=0, free=True)
    tokens: float | None = key(None, "tokens sampled for one task; null = as in the probe", ge=0, free=True)
    prompt_tokens: float | None = key(
        None, "prompt tokens of one task's requests, without a cache; null = as in the probe", ge=0, free=True
    )
    cached: float | None = key(
        None, "share of the prompt tokens that a prefix cache spares; null = as in the probe", ge=0, le=1, free=True
    )
    tool_calls: float | None = key(None, "tool calls for one task; null = as in the probe", ge=0, free=True)
    pairs: float | None = key(None, "preference pairs of one task; null = as in the probe", ge=0, free=True)
