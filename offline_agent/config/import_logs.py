"""The keys of `import_logs`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import field_validator

from offline_agent.config.build_prefs import EnvSection, JudgeSection, RunConfig, known_name
from offline_agent.logs.episode import LogSection
from offline_agent.logs.repository import RepositorySection
from offline_agent.preferences.settings import PairKinds, PairRules
from offline_agent.sections import OneOrMore, Section, key, section


class LogEnvSection(EnvSection):
    """The environment in which the episodes of a log are replayed."""

    _known = field_validator("name")(lambda name: name if name == "none" else known_name("env", name))
    name: str = key(
        "none", "none, or the environment of the log (as build_prefs takes it): its episodes are replayed, and what is "
        "answered or judged differently is put in quarantine; tasks are found by their ids",
    )  # fmt: skip


class LabelSection(Section):
    """The inverse-dynamics model of logs without actions."""

    model: str | None = key(None, "folder of a model that learnt the rows of export format=inverse: it names the calls "
                            "of records of observations alone; null = there are none")  # fmt: skip
    least: float = key(0.5, "least probability of a call; an episode is cut before its first call below", ge=0, le=1)
    held_out: str | None = key(None, "held_out.jsonl of that export, of whose calls the share named right is told")


class LogLimitsSection(Section):
    """Limits of replays."""

    step_seconds: float = key(30.0, "a step that takes longer is given up, and its episode is not replayed", gt=0)
    reset_seconds: float = key(60.0, "the same of opening and resetting the environment", gt=0)
    max_observation_chars: int = key(8000, "as in the run that wrote the log: longer observations are cut", ge=100)


class LogPairsSection(PairRules):
    """The preference pairs to build."""

    kinds: PairKinds = key(("step", "trajectory"), "rules that are applied: step, trajectory", strict=False)

    @field_validator("kinds")
    @classmethod
    def _without_replay(cls, kinds: PairKinds) -> PairKinds:
        if set(kinds) - {"step", "trajectory"}:
            raise ValueError(
                f"pairs.kinds: got {', '.join(kinds)}, allowed: step, trajectory; the other kinds need replays, and a "
                "log has no environment"
            )
        return kinds


class LogFilteredSection(Section):
    """Trajectories for rejection fine-tuning."""

    per_task: int = key(8, "most trajectories of one task, shortest first", ge=1)


class ImportLogsConfig(RunConfig):
    """Keys of `import_logs`."""

    about: ClassVar[str] = (
        "Turn logs of agents into a run: trees of equal prefixes, preference pairs, verified trajectories."
    )
    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("source=logs run_dir=runs/logs", "all logs in a folder"),
        ("source=log.jsonl log.outcome=info.reward log.threshold=0.5", "an outcome under another name"),
        ("source=~/.claude/projects log.task=cwd", "sessions of a coding agent, those of one folder compared"),
        ("source=~/.codex/sessions log.rules=[tests,undone]", "outcomes of coding sessions, by their tests"),
        ("source=~/.codex/sessions replay.repository=. replay.test='python3 -m pytest -q'", "by replays of them"),
        ("source=[logs,outcomes.csv]", "outcomes apart, in a table of session and outcome"),
        ("source=log.jsonl format=my_module:reader", "a function of your own reads the records"),
        ("source=log.jsonl judge=exact_match log.args=[gold]", "a verifier for logs without outcomes"),
        ("source=seen.jsonl label.model=runs/inverse/model", "observations without actions, which a model names"),
        ("source=log.jsonl env=shop", "replays in the environment of the log, which confirm it"),
    )

    source: OneOrMore = key(
        (), "files, or folders that are searched for files: JSON lines, JSON, gzip, Parquet, Arrow, .eval, .traj; a "
        ".csv of outcomes where it is named"
    )
    format: str = key(
        "auto", "what the records are: a format of docs/logs.md, or module:function of your own; auto = recognised by "
        "their fields, record by record",
    )  # fmt: skip
    tokenizer: str | None = key(
        None, "path or hub name of the tokenizer whose ids the logs have: rows get token columns and certificates "
        "where these ids prove what was sampled; null = messages alone",
    )  # fmt: skip
    chat_template: str | None = key(None, "replaces the tokenizer's: compact, qwen, llama3, plain, a file, or its text")
    log: LogSection = section(LogSection, "the fields that tell of an episode")
    label: LabelSection = section(LabelSection, "the calls of logs that have observations alone, named by a model")
    split: Literal["train", "validation", "test"] = key("train", "the split of episodes whose log does not say")
    judge: JudgeSection = section(JudgeSection, "who judges episodes without an outcome; environment = nobody")
    env: LogEnvSection = section(LogEnvSection, "where the log's episodes are replayed")
    replay: RepositorySection = section(RepositorySection, "coding sessions done again in their repository")
    limits: LogLimitsSection = section(LogLimitsSection, "what a replay may take")
    pairs: LogPairsSection = section(LogPairsSection, "which preference pairs are built")
    filtered: LogFilteredSection = section(LogFilteredSection, "trajectories for rejection fine-tuning")
