"""The keys of `iterate`, beside those of its stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import field_validator, model_validator

from offline_agent.config.build_prefs import (
    BuildPrefsConfig,
    JudgeSection,
    PolicySection,
    TasksSection,
)
from offline_agent.config.training import DpoOptimizerSection, NumberFormat, Paths
from offline_agent.evaluation.settings import CurriculumSection, GateSection
from offline_agent.preferences.settings import ALL_KINDS, DEFAULT_ORIGINS, FilteredSection, PairKinds, PairsSection
from offline_agent.search.settings import SearchSection
from offline_agent.sections import Section, key, other_default, section
from offline_agent.training.settings import (
    AnchorSection,
    BatchSection,
    DpoSection,
    LoraSection,
    OptimizerSection,
)


def built_kinds(used: Sequence[str], origins: Sequence[str]) -> PairKinds:
    """Return the kinds of pairs that must be built for the pairs and the successes that are trained on.

    Args:
        used: Kinds of pairs that are trained on.
        origins: Origins of the successes that are; relabelled and shortened ones come with pairs of their own.
    """
    with_pairs = {"hindsight": "hindsight", "minimal": "pruned"}
    return tuple(kind for kind in ALL_KINDS if kind in used or with_pairs.get(kind) in origins)


LOOP_KINDS: PairKinds = ("step", "trajectory")  # with decisive pairs: the arm `states, then dpo`

# Defaults are those of the arm `states, thrice the updates` of benchmarks/arms.py, and those of pairs of the arm
# `states, then dpo`: no suite showed a gain of pairs over as many updates of fine-tuning (docs/what_pays.md).
# The number of tasks is for one round in minutes, from a validation run of the shop.


class LoopTasks(TasksSection):
    """The choice of tasks."""

    n: int | None = other_default(TasksSection, "n", 100)


class LoopSearch(SearchSection):
    """The search over tool calls: plain attempts, and a tree over states where they all failed."""

    simulations: int = other_default(SearchSection, "simulations", 16)
    until: Literal["spent", "success", "contrast"] = other_default(SearchSection, "until", "success")
    value: Literal["reward", "success"] = other_default(SearchSection, "value", "success")
    repeated_states: Literal["close", "keep"] = other_default(SearchSection, "repeated_states", "close")


class LoopPairs(PairsSection):
    """The preference pairs to build: few rollouts go through a state, so decisive ones count."""

    decisive: bool = other_default(PairsSection, "decisive", True)
    per_node: int = other_default(PairsSection, "per_node", 4)
    per_task: int = other_default(PairsSection, "per_task", 32)
    per_depth: int = other_default(PairsSection, "per_depth", 16)


class LoopFiltered(FilteredSection):
    """Trajectories for rejection fine-tuning."""

    per_task: int = other_default(FilteredSection, "per_task", 6)


class LoopSftOptimizer(OptimizerSection):
    """AdamW and its schedule."""

    epochs: float = other_default(OptimizerSection, "epochs", 6.0)  # three times the suite's


class LoopDpo(DpoSection):
    """The preference loss."""

    sft: float = other_default(DpoSection, "sft", 0.3)


class SftStage(Section):
    """The rejection fine-tuning of each iteration."""

    enabled: bool = key(True, "fine-tune on filtered/, the verified successes")
    begin: Literal["incumbent", "start"] = key(
        "incumbent", "the model that is fine-tuned on the successes of all iterations: the incumbent, or anew the "
        "loop's first one, so that no success is trained on more often than another",
    )  # fmt: skip
    optimizer: LoopSftOptimizer = section(LoopSftOptimizer, "AdamW and its schedule")
    batch: BatchSection = section(BatchSection, "what one optimizer update sees")
    per_task: int | None = key(None, "most rows of one task; null = all", ge=1)


class DpoStage(Section):
    """The preference training of each iteration."""

    enabled: bool = key(
        False, "build pairs, too, and train on them after the fine-tuning; not shown to gain over as many updates of it"
    )
    kinds: PairKinds = key(
        LOOP_KINDS,
        "kinds of pairs that are used (docs/pairs.md); others are not built, unless pairs.kinds names them",
        strict=False,
    )
    optimizer: DpoOptimizerSection = section(DpoOptimizerSection, "AdamW and its schedule")
    batch: BatchSection = section(BatchSection, "what one optimizer update sees")
    loss: LoopDpo = section(LoopDpo, "the preference loss")
    anchor: AnchorSection = section(AnchorSection, "replay of verified successes")


class HeldOutSection(Section):
    """The held-out tasks that the gate uses: never the test split."""

    split: Literal["validation"] = key("validation", "the split")
    n: int = key(50, "number of tasks of each iteration, others each time until there are no others", ge=2)
    pool: int = key(2000, "they are drawn from the first so many tasks of the split", ge=2)
    attempts: int = key(4, "sampled attempts of each", ge=1)
    judge: Literal["environment"] | None = key(
        None, "who judges them at the gate: environment = the environment's own verifier, whoever judges the searches; "
        "null = the judge of the searches",
    )  # fmt: skip

    @model_validator(mode="after")
    def _enough(self) -> HeldOutSection:
        if self.pool < self.n:
            raise ValueError(f"held_out.pool: got {self.pool}, allowed: held_out.n={self.n} or more; raise it")
        return self


class IterateConfig(BuildPrefsConfig):
    """Keys of `iterate`."""

    about: ClassVar[str] = (
        "Search, fine-tune on verified successes, evaluate on held-out tasks, and promote what is not worse."
    )
    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("", "one iteration with the embedded shop and model"),
        ("iterations=3 tasks.n=200 run_dir=runs/loop", "three iterations of 200 tasks each"),
        ("dpo.enabled=true sft.optimizer.epochs=4", "train on preference pairs after the fine-tuning"),
        ("policy.model=my/model env=my_package.my_env:MyEnv lora.rank=16", "your own model and environment, adapters"),
    )

    tasks: LoopTasks = section(LoopTasks, "which tasks")
    search: LoopSearch = section(LoopSearch, "the search")
    pairs: LoopPairs = section(LoopPairs, "which preference pairs are built")
    filtered: LoopFiltered = section(LoopFiltered, "trajectories for rejection fine-tuning")
    iterations: int = key(1, "how often the loop is gone through; a finished run goes on with more", ge=1, free=True)
    sft: SftStage = section(SftStage, "rejection fine-tuning")
    dpo: DpoStage = section(DpoStage, "preference training")
    buffer: Paths = key(
        (), "run directories of refine_grpo, build_prefs or import_logs whose verified successes are used too",
        strict=False,
    )  # fmt: skip
    lora: LoraSection = section(LoraSection, "low-rank adapters")
    held_out: HeldOutSection = section(HeldOutSection, "what the gate looks at")
    gate: GateSection = section(GateSection, "when a candidate replaces the incumbent")
    curriculum: CurriculumSection = section(CurriculumSection, "which tasks an iteration searches")
    dtype: NumberFormat = key("float32", "number format of the weights while they are trained, as model.dtype")
    threads: int | None = key(None, "of torch while it trains; null = as train_sft", ge=1, le=4096, free=True)

    @model_validator(mode="before")
    @classmethod
    def _builds_what_is_used(cls, data: Any) -> Any:
        # what nothing learns from costs replays, which are calls of tools
        sections = {name: data.get(name, {}) for name in ("pairs", "dpo", "filtered")} if isinstance(data, dict) else {}
        if not sections or not all(isinstance(each, dict) for each in sections.values()):
            return data
        used = sections["dpo"].get("kinds", LOOP_KINDS) if sections["dpo"].get("enabled") else ()
        origins = sections["filtered"].get("origins", DEFAULT_ORIGINS)
        if "kinds" in sections["pairs"] or not isinstance(used, list | tuple) or not isinstance(origins, list | tuple):
            return data
        return data | {"pairs": sections["pairs"] | {"kinds": list(built_kinds(used, origins))}}

    @field_validator("policy")
    @classmethod
    def _trainable(cls, policy: PolicySection) -> PolicySection:
        if policy.name != "hf":
            raise ValueError(f"policy: iterate trains the policy, got {policy.name!r}; allowed: hf")
        return policy

    @model_validator(mode="after")
    def _train_only(self) -> IterateConfig:
        if self.tasks.split != "train":
            raise ValueError(f"tasks.split: iterate learns from it, got {self.tasks.split!r}; allowed: train")
        if not self.sft.enabled and not self.dpo.enabled:
            raise ValueError("sft.enabled, dpo.enabled: nothing to train; enable one of them")
        if self.held_out.judge is None and judges_itself(self.judge):
            raise ValueError(
                "held_out.judge: got null with judge.path=self; set held_out.judge=environment. A model that judges "
                "its own promotion is promoted because it rates itself highly"
            )
        given = self.dpo.model_fields_set
        if given and "enabled" not in given:
            named = ", ".join(f"dpo.{name}" for name in sorted(given))
            raise ValueError(
                f"dpo.enabled: got {named}, and no training on pairs, which is off by default; set dpo.enabled=true, "
                "or leave these keys out"
            )
        if self.dpo.enabled and not set(self.dpo.kinds) & set(self.pairs.kinds):
            raise ValueError(
                f"dpo.kinds: none of {', '.join(self.dpo.kinds) or 'none'} is built; "
                f"pairs.kinds builds {', '.join(self.pairs.kinds)}"
            )
        return self


def judges_itself(judge: JudgeSection) -> bool:
    """Return whether a judge, or a member of it, has `path=self`."""
    return with_model(judge, lambda: "") != judge


def with_model(judge: JudgeSection, folder: Callable[[], str]) -> JudgeSection:
    """Return the judge with a model's folder in place of `path=self`, in its members too.

    Args:
        judge: The section.
        folder: Returns the folder; called where there is something to replace.
    """
    return JudgeSection.model_validate(_replaced(judge.model_dump(), folder))


def _replaced(value: Any, folder: Callable[[], str]) -> Any:
    if isinstance(value, Mapping):
        found = {name: _replaced(each, folder) for name, each in value.items()}
        if found.get("name") == "llm" and found.get("path") == "self":
            found["path"] = folder()
        return found
    return type(value)(_replaced(each, folder) for each in value) if isinstance(value, list | tuple) else value
