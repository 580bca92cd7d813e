"""The keys of `train_reward`."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import field_validator

from offline_agent.config.build_prefs import RunConfig
from offline_agent.sections import confidence_key, key
from offline_agent.training.settings import RewardModelSection


class TrainRewardConfig(RunConfig, RewardModelSection):
    """Keys of `train_reward`."""

    about: ClassVar[str] = (
        "Train a reward model, a sequence classifier, on the verdicts of a run; measure it on held-out tasks."
    )
    main_keys: ClassVar[tuple[str, ...]] = (
        "source", "model", "chat_template", "held_out", "epochs", "learning_rate", "rows", "max_length", "threads",
        "seed", "run_dir", "tracking.uri",
    )  # fmt: skip
    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("source=runs/search run_dir=runs/reward", "the embedded model, on the verdicts of a search"),
        ("source=[runs/a,runs/b] model=my/model epochs=2", "a model of your own, on those of two"),
        ("source=runs/search held_out=0.4 seed=1", "more tasks held out, and others"),
    )

    source: tuple[str, ...] = key((), "run directories whose trees hold judged trajectories", strict=False)
    model: str | None = key(None, "path or hub name of the model that gets a head; null = the embedded default")
    chat_template: str | None = key(None, "replaces the tokenizer's: compact, qwen, llama3, plain, a file, or its text")
    held_out: float = key(0.25, "share of the tasks that are held out, whole", gt=0, lt=1)
    max_length: int | None = key(
        None, "most tokens of a trajectory; of a longer one the middle is left out; null = the model's positions", ge=16
    )
    threads: int | None = key(None, "of torch; null = one for a small model on a CPU", ge=1, le=4096, free=True)
    confidence: float = confidence_key(0.95, "coverage of the intervals")

    @field_validator("source", mode="before")
    @classmethod
    def _one(cls, source: Any) -> Any:
        return (source,) if isinstance(source, str) else tuple(source) if isinstance(source, list) else source
