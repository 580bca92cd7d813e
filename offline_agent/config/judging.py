"""The keys of `audit`, `rejudge` and `train_reward`."""

from __future__ import annotations

from typing import ClassVar, Literal

from offline_agent.config.build_prefs import EnvConfig, JudgeSection, RunConfig
from offline_agent.config.import_logs import LogFilteredSection, LogPairsSection
from offline_agent.envs.checks.registry import AuditSection
from offline_agent.sections import OneOrMore, confidence_key, key, section
from offline_agent.training.settings import RewardModelSection


class AuditConfig(EnvConfig, AuditSection):
    """Keys of `audit`."""

    about: ClassVar[str] = (
        "Audit an environment and its verifier before training: what it leaks, and what it pays for. Exit status 1 "
        "where a check fails."
    )
    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("env=shop", "an environment of the catalog"),
        ("env=my_package.my_env:MyEnv tasks=8 repeats=5", "your own, more thoroughly"),
        ("env=my_env:MyEnv judge=exact_match judge.columns={gold:answer}", "a judge in place of its get_reward"),
    )


class RejudgeConfig(RunConfig):
    """Keys of `rejudge`."""

    about: ClassVar[str] = (
        "Give the trajectories of a run another judge's verdicts, and build its pairs anew; the run stays as it is."
    )
    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("run_dir=runs/logs judge=f1 judge.threshold=0.8", "another verifier for an imported run"),
        ("run_dir=runs/search judge=my_module:judge", "a judge of your own for a search"),
        ("run_dir=runs/logs judge=llm out=runs/graded judge.rubric=RUBRIC judge.url=URL judge.model=MODEL",
         "a model with a rubric"),
    )

    source: str | None = key(None, "the run that is judged: where `run_dir` of the command stands afterwards")
    out: str | None = key(None, "where the new run is written; null = RUN_DIR/verdicts/JUDGE-VERSION", free=True)
    judge: JudgeSection = section(JudgeSection, "who gives the new verdicts")
    tokenizer: str | None = key(
        None, "path or hub name of the tokenizer of the run's token ids; null = that of the run's own configuration"
    )
    chat_template: str | None = key(None, "replaces the tokenizer's: compact, qwen, llama3, plain, a file, or its text")
    pairs: LogPairsSection = section(LogPairsSection, "which preference pairs are built")
    filtered: LogFilteredSection = section(LogFilteredSection, "trajectories for rejection fine-tuning")
    workers: int = key(4, "tasks that are judged at once: more where the judge is a server", ge=1, le=4096, free=True)


class TrainRewardConfig(RunConfig, RewardModelSection):
    """Keys of `train_reward`."""

    about: ClassVar[str] = (
        "Train a reward model, a sequence classifier, on the verdicts of a run, or a step model on the values of a "
        "search; measure it on held-out tasks."
    )
    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("source=runs/search run_dir=runs/reward", "the embedded model, on the verdicts of a search"),
        ("source=[runs/a,runs/b] model=my/model epochs=2", "a model of your own, on those of two"),
        ("source=runs/search held_out=0.4 seed=1", "more tasks held out, and others"),
        ("source=runs/search labels=steps", "a step model, of the values of the search's edges"),
    )

    source: OneOrMore = key((), "run directories whose trees hold judged trajectories", strict=False)
    labels: Literal["outcome", "steps"] = key(
        "outcome", "outcome = the verdict, of the whole trajectory; steps = of each turn its edge's value in the tree, "
        "weighted by its visits: for search.critic, rollouts.turn_judge and test_time.judge"
    )  # fmt: skip
    model: str | None = key(None, "path or hub name of the model that gets a head; null = the embedded default")
    chat_template: str | None = key(None, "replaces the tokenizer's: compact, qwen, llama3, plain, a file, or its text")
    held_out: float = key(0.25, "share of the tasks that are held out, whole", gt=0, lt=1)
    max_length: int | None = key(
        None, "most tokens of a trajectory; of a longer one the middle is left out; null = the model's positions", ge=16
    )
    threads: int | None = key(None, "of torch; null = one for a small model on a CPU", ge=1, le=4096, free=True)
    confidence: float = confidence_key(0.95, "coverage of the intervals")
