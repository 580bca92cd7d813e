"""The keys of `refine_grpo`."""

from __future__ import annotations

from typing import ClassVar, Literal

from offline_agent.config.build_prefs import EnvConfig, RewardSection, TasksSection
from offline_agent.config.training import TrainableConfig
from offline_agent.sections import Section, key, other_default, section
from offline_agent.training.collapse import WatchSection
from offline_agent.training.online.objectives import ObjectiveSection
from offline_agent.training.online.settings import CriticSection, RolloutsSection, SamplerSection
from offline_agent.training.settings import AdamWSection, PassSection


class RefineTasks(TasksSection):
    """The choice of tasks."""

    split: Literal["train"] = key("train", "the environment's split")
    n: int | None = key(400, "number of tasks that rounds are drawn from; null = all", ge=1)


class RefineOptimizer(AdamWSection):
    """AdamW and its schedule."""

    learning_rate: float = other_default(AdamWSection, "learning_rate", 1e-4)
    schedule: Literal["constant", "linear", "cosine"] = other_default(AdamWSection, "schedule", "constant")
    warmup: float = other_default(AdamWSection, "warmup", 0.0)
    weight_decay: float = other_default(AdamWSection, "weight_decay", 0.0)


class RefineCheckpoints(Section):
    """Checkpoints a stopped run goes on from."""

    every: int = key(5, "rounds between two", ge=1, free=True)
    keep: int = key(4, "how many are kept; where the watch stops the run, it goes back to one of them", ge=1, free=True)


class RefinedSection(Section):
    """The successes that offline stages may fine-tune on afterwards."""

    per_task: int = key(2, "most successes of one task in filtered/, shortest first; no two of the same calls", ge=1)


class RefineGrpoConfig(TrainableConfig, EnvConfig):
    """Keys of `refine_grpo`."""

    about: ClassVar[str] = (
        "Refine a policy online: play rounds of episodes and train on them, by GRPO or another of its family."
    )
    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("", "eight rounds with the embedded shop and model"),
        ("model.path=runs/dpo/model rounds=100 objective.name=dapo run_dir=runs/online", "another objective, longer"),
        ("model.path=my/model sampler.name=server sampler.url=http://localhost:8000/v1", "a vLLM server plays"),
    )

    tasks: RefineTasks = section(RefineTasks, "which tasks")
    reward: RewardSection = section(RewardSection, "weights of the composite reward")
    rounds: int = key(8, "batches of roll-outs, each for updates of its own", ge=1)
    rollouts: RolloutsSection = section(RolloutsSection, "what is played in a round")
    objective: ObjectiveSection = section(ObjectiveSection, "what is maximised")
    critic: CriticSection = section(CriticSection, "the value head")
    optimizer: RefineOptimizer = section(RefineOptimizer, "AdamW and its schedule")
    batch: PassSection = section(PassSection, "what one forward pass sees")
    sampler: SamplerSection = section(SamplerSection, "who samples the actions")
    filtered: RefinedSection = section(RefinedSection, "successes for rejection fine-tuning")
    watch: WatchSection = section(WatchSection, "the collapse watch")
    checkpoints: RefineCheckpoints = section(RefineCheckpoints, "checkpoints")
