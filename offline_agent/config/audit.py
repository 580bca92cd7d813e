"""The keys of `audit`."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import field_validator

from offline_agent.config.build_prefs import EnvSection, JudgeSection, LimitsSection, RunConfig
from offline_agent.config.sandbox import SandboxSection
from offline_agent.sections import key, section


class AuditConfig(RunConfig):
    """Keys of `audit`."""

    about: ClassVar[str] = (
        "Audit an environment and its verifier before training: what it leaks, and what it pays for. Exit status 1 "
        "where a check fails."
    )
    main_keys: ClassVar[tuple[str, ...]] = (
        "env", "judge", "tasks", "repeats", "max_steps", "seconds", "margin", "near", "prompts", "answers", "checks",
        "accept", "limits.step_seconds", "limits.reset_seconds", "limits.max_observation_chars", "run_dir",
        "tracking.uri",
    )  # fmt: skip
    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("env=shop", "an environment of the catalog"),
        ("env=my_package.my_env:MyEnv tasks=8 repeats=5", "your own, more thoroughly"),
        ("env=my_env:MyEnv judge=exact_match judge.columns={gold:answer}", "a judge in place of its get_reward"),
    )

    env: EnvSection = section(EnvSection, "the environment")
    judge: JudgeSection = section(JudgeSection, "who gives the verdicts")
    limits: LimitsSection = section(LimitsSection, "what an environment may take in a run")
    sandbox: SandboxSection = section(SandboxSection, "where code runs that a policy wrote")
    tasks: int = key(4, "tasks of each split that are played", ge=1)
    repeats: int = key(3, "times that the same actions are played, for noise and flakiness", ge=2, le=1000)
    max_steps: int = key(120, "most actions in one episode; the expert must succeed within them", ge=1)
    seconds: float = key(60.0, "longest any one check may take; after half of it no further task is begun", gt=0)
    margin: float = key(
        0.2, "mean score above chance from which a reward-seeking policy is a fault; half of it warns", gt=0, le=1
    )
    prompts: int = key(200, "tasks of each split whose first observations are compared", ge=1, le=2000)
    near: float = key(0.9, "least similarity (Jaccard of word trigrams) of two that are almost the same", gt=0, le=1)
    answers: tuple[str, ...] = key(
        (), "columns of the tasks that hold a gold answer, for the leak checks, beside those named like one",
        strict=False,
    )
    checks: tuple[str, ...] = key((), "check ids, or their beginnings, that run; [] = all", strict=False)
    accept: tuple[str, ...] = key(
        (), "check ids whose failure is known and explained: they warn, and do not fail the audit", strict=False
    )

    @field_validator("accept", "answers", "checks", mode="before")
    @classmethod
    def _one(cls, names: Any) -> Any:
        return (names,) if isinstance(names, str) else tuple(names) if isinstance(names, list) else names
