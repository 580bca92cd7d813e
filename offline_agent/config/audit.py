"""The keys of `audit`."""

from __future__ import annotations

from typing import ClassVar

from offline_agent.config.build_prefs import EnvSection, JudgeSection, RunConfig
from offline_agent.config.sandbox import SandboxSection
from offline_agent.envs.checks.registry import AuditSection
from offline_agent.sections import section


class AuditConfig(RunConfig, AuditSection):
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
    sandbox: SandboxSection = section(SandboxSection, "where code runs that a policy wrote")
