"""The keys of `train_sft` and `train_dpo`, beside those of `build_prefs`."""

from __future__ import annotations

from typing import ClassVar, Literal

from offline_agent.config.build_prefs import EnvSection, JudgeSection, RunConfig, TasksSection
from offline_agent.envs.settings import DemonstrationsSection
from offline_agent.preferences.settings import PairKinds
from offline_agent.sections import Section, key, other_default, section
from offline_agent.training.settings import (
    AnchorSection,
    BatchSection,
    CheckpointSection,
    DpoSection,
    GuardSection,
    LoraSection,
    OptimizerSection,
    ScratchSection,
)

Paths = tuple[str, ...]
NumberFormat = Literal["float32", "bfloat16", "mixed"]


class ModelSection(Section):
    """The model that is trained."""

    path: str | None = key(None, "a folder or hub name; null = the embedded default")
    tokenizer: str | None = key(None, "path or name, where it is not the model's own")
    chat_template: str | None = key(None, "replaces the tokenizer's: compact, qwen, llama3, plain, a file, or its text")
    dtype: NumberFormat = key(
        "float32", "number format of the weights while they are trained; mixed = float32, with passes in bfloat16"
    )

    @property
    def weights_dtype(self) -> str:
        """Return the number format of the weights."""
        return "float32" if self.dtype == "mixed" else self.dtype

    @property
    def compute_dtype(self) -> str:
        """Return the number format of forward and backward passes, and of a policy that plays beside the training."""
        return "bfloat16" if self.dtype == "mixed" else self.dtype


class DpoOptimizerSection(OptimizerSection):
    """AdamW and its schedule."""

    learning_rate: float = other_default(OptimizerSection, "learning_rate", 1e-4)
    epochs: float = other_default(OptimizerSection, "epochs", 4.0)


class TrainableConfig(RunConfig):
    """Keys of everything that trains a model."""

    model: ModelSection = section(ModelSection, "the model that is trained")
    lora: LoraSection = section(LoraSection, "low-rank adapters")
    guard: GuardSection = section(GuardSection, "when training stops")
    threads: int | None = key(
        None, "of torch; null = one for a small model on a CPU, else its own", ge=1, le=4096, free=True
    )


class TrainConfig(TrainableConfig):
    """Keys of both offline trainers."""

    optimizer: OptimizerSection = section(OptimizerSection, "AdamW and its schedule")
    batch: BatchSection = section(BatchSection, "what one optimizer update sees")
    checkpoints: CheckpointSection = section(CheckpointSection, "checkpoints")


class SftTasks(TasksSection):
    """The choice of tasks."""

    n: int | None = key(400, "number of tasks; null = all", ge=1)


class SftDataSection(Section):
    """The training data."""

    runs: Paths = key((), "run directories whose filtered/ is trained on; none = demonstrations of `env`", strict=False)
    files: Paths = key(
        (), "parquet or JSON-lines files with `messages`, or with `input_ids` and `action_mask`", strict=False
    )
    success: str = key("success", "column of data.files with the outcome: true or 1, false or 0, null = unknown")
    unknown: Literal["refuse", "leave_out", "take"] = key(
        "refuse", "rows of data.files whose outcome is unknown: refuse the file, leave them out, or learn from them too"
    )
    per_task: int | None = key(None, "most rows of one task, first come; null = all", ge=1)
    negatives: bool = key(True, "use rows that teach to refuse impossible calls, where there are any")


class TrainSftConfig(TrainConfig):
    """Keys of `train_sft`."""

    about: ClassVar[str] = "Train on demonstrations (warm start), or on verified successes (rejection fine-tuning)."
    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("", "the embedded model on demonstrations of the shop's scripted expert"),
        ("model.path=my/model data.runs=[runs/search] run_dir=runs/sft", "verified successes of a search"),
        ("model.path=my/model 'data.files=[rows.jsonl]' lora.rank=16", "rows of your own, low-rank adapters"),
    )

    data: SftDataSection = section(SftDataSection, "what is learnt from")
    env: EnvSection = section(EnvSection, "the environment that demonstrations are of")
    judge: JudgeSection = section(JudgeSection, "who gives the verdicts on demonstrations")
    tasks: SftTasks = section(SftTasks, "the tasks that are demonstrated")
    demonstrations: DemonstrationsSection = section(DemonstrationsSection, "demonstrations by the scripted expert")
    scratch: ScratchSection = section(ScratchSection, "a new model in place of model.path")


DEFAULT_KINDS: PairKinds = ("step",)  # all kinds at once lost to these alone: docs/results.md, "Reasons for keys"


class DpoDataSection(Section):
    """The preference pairs."""

    runs: Paths = key((), "run directories whose pairs are trained on", strict=False)
    files: Paths = key((), "parquet or JSON-lines files of preference rows", strict=False)
    kinds: PairKinds = key(
        DEFAULT_KINDS,
        "kinds of pairs that are used: step, trajectory, hindsight, minimal (docs/pairs.md)",
        strict=False,
    )




class TrainDpoConfig(TrainConfig):
    """Keys of `train_dpo`."""

    about: ClassVar[str] = (
        "Train on preference pairs; every loss and log-probability is over the policy's own tokens alone."
    )
    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("model.path=runs/sft/model data.runs=[runs/search] run_dir=runs/dpo", "the pairs of a search"),
        ("data.runs=[runs/search] dpo.loss=ipo dpo.beta=0.3 lora.rank=16", "another loss, low-rank adapters"),
        ("model.path=my/model 'data.files=[pairs.jsonl]'", "pairs of your own"),
    )

    data: DpoDataSection = section(DpoDataSection, "the preference pairs")
    dpo: DpoSection = section(DpoSection, "the preference loss")
    anchor: AnchorSection = section(AnchorSection, "replay of verified successes")
    optimizer: DpoOptimizerSection = section(DpoOptimizerSection, "AdamW and its schedule")
