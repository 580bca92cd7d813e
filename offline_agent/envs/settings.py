"""Keys of environments."""

from __future__ import annotations

from pydantic import field_validator

from offline_agent.sections import Section, key

DEFAULT_STEPS = 15
"""Actions of an episode where neither the user nor the environment says how many it may have."""
OWN_STEPS = f"0 = the environment's own: its attribute max_steps, or twice what its expert needs, else {DEFAULT_STEPS}"


class LimitsSection(Section):
    """Limits of environments: time and number."""

    step_seconds: float = key(30.0, "a step that takes longer is abandoned and its branch quarantined", gt=0)
    reset_seconds: float = key(60.0, "opening or resetting an environment that takes longer gives the task up", gt=0)
    critic_seconds: float = key(300.0, "a critic that takes longer has no opinion", gt=0)
    workers: int = key(
        4, "threads that step environments: how many calls are made at once; more where tools wait rather than compute",
        ge=1, le=4096, free=True,
    )  # fmt: skip
    environments: int | None = key(
        None,
        "environments open at once, copies included (with env.isolate=process: processes); beyond that, states are "
        "restored by replay and fewer trees or episodes are in flight; null = as many as half of the free memory and "
        "the free file handles allow, by what one is found to hold",
        ge=1, le=10**6, free=True,
    )  # fmt: skip
    max_observation_chars: int = key(8000, "longer observations are cut, with a note that says so", ge=100, le=10**8)


class DemonstrationsSection(Section):
    """Demonstrations by the environment's scripted expert."""

    per_task: int = key(1, "demonstrations of each task of `tasks`", ge=1, le=10**6)
    noise: tuple[float, ...] = key((0.0,), "carelessness of the demonstrators, drawn evenly", strict=False)
    only_successes: bool = key(True, "leave out those that fail")
    max_steps: int = key(0, f"longest demonstration in actions; {OWN_STEPS}", ge=0, le=10**5)

    @field_validator("noise")
    @classmethod
    def _shares(cls, noise: tuple[float, ...]) -> tuple[float, ...]:
        if not noise or not all(0 <= value <= 1 for value in noise):
            raise ValueError(f"demonstrations.noise: got {list(noise)}, allowed: one or more numbers from 0 to 1")
        return noise
