"""The keys of `rejudge`."""

from __future__ import annotations

from typing import ClassVar

from offline_agent.config.build_prefs import JudgeSection, RunConfig
from offline_agent.config.import_logs import LogFilteredSection, LogPairsSection
from offline_agent.sections import key, section


class RejudgeConfig(RunConfig):
    """Keys of `rejudge`."""

    about: ClassVar[str] = (
        "Give the trajectories of a run another judge's verdicts, and build its pairs anew; the run stays as it is."
    )
    main_keys: ClassVar[tuple[str, ...]] = (
        "run_dir", "judge", "out", "tokenizer", "pairs.kinds", "pairs.min_visits", "pairs.confidence",
        "filtered.per_task", "workers", "tracking.uri",
    )  # fmt: skip
    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("run_dir=runs/logs judge=f1 judge.threshold=0.8", "another verifier for an imported run"),
        ("run_dir=runs/search judge=my_module:judge", "a judge of your own for a search"),
        ("run_dir=runs/logs judge=my_module:Ranking out=runs/ranked", "attempts compared with one another"),
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
