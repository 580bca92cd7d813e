"""The keys of `refine_grpo`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import model_validator

from offline_agent.config.build_prefs import (
    EnvSection,
    JudgeSection,
    LimitsSection,
    OnlineRewardSection,
    TasksSection,
)
from offline_agent.config.sandbox import SandboxSection
from offline_agent.config.training import TrainableConfig
from offline_agent.envs.settings import OWN_STEPS
from offline_agent.sections import Section, key, section
from offline_agent.training.settings import AdamWSection, PassSection

CORRECTIONS = Literal["off", "token_truncate", "sequence_truncate", "token_mask", "sequence_mask"]


class RefineTasks(TasksSection):
    """The choice of tasks."""

    split: Literal["train"] = key("train", "the environment's split")
    n: int | None = key(400, "number of tasks that rounds are drawn from; null = all", ge=1)


class RolloutsSection(Section):
    """The roll-outs of a round, which one version of the weights plays."""

    tasks: int = key(8, "groups, one task each", ge=1)
    size: int = key(8, "roll-outs of a group; 16 is markedly more stable than 4", ge=2)
    temperature: float = key(1.0, "sampling temperature", gt=0)
    last_temperature: float | None = key(None, "that of the last round, linear in between; null = the same", gt=0)
    epsilon: float = key(
        0.0, "chance of each turn that the tool is drawn at random among those of a few samples", ge=0, le=1
    )
    last_epsilon: float | None = key(None, "that of the last round, linear in between; null = the same", ge=0, le=1)
    max_steps: int = key(0, f"actions in one episode; one that uses them up failed; {OWN_STEPS}", ge=0)
    max_tokens: int = key(
        0, "most tokens of one action; an episode with a longer one failed; 0 = the model's own, as policy.max_tokens",
        ge=0,
    )  # fmt: skip
    branches: float = key(0.0, "share of a group that branches from another member's history", ge=0, lt=1)
    credit: Literal["trajectory", "turn", "turn_reward", "state"] = key(
        "trajectory",
        "turn = the value of an action over that of its history, from the branches; turn_reward = what the "
        "environment says that it and later ones earned, compared within the group; state = the episode's, and the "
        "turn's return over its state's",
    )
    turn_discount: float = key(1.0, "credit=turn_reward: discount of what later turns earned, a turn", ge=0, le=1)
    outcome: float = key(
        1.0, "credit=turn_reward: share of the episode's reward that its last turn earns besides; 0 where the rewards "
        "of turns add up to it", ge=0,
    )  # fmt: skip
    state_weight: float = key(1.0, "credit=state: weight of the comparison within a state", ge=0)
    state_discount: float = key(0.95, "credit=state: discount of the episode's reward, a turn", ge=0, le=1)
    turn_judge: str | None = key(
        None, "credit=turn_reward: module:callable that takes a trajectory and returns what each turn earned, in "
        "[0, 1], in place of the environment's turn_reward; it is divided by the number of turns"
    )  # fmt: skip
    reward: Literal["score", "success"] = key("score", "what an episode is worth: its score, or 1 for success, else 0")
    choice: Literal["learnability", "uniform"] = key(
        "learnability", "how tasks are drawn: by p(1-p) of their success rate p, or all alike"
    )
    rest: int = key(20, "rounds that a task stays away after its whole group succeeded", ge=0)
    redraws: int = key(2, "rounds' worth of tasks that may take the place of groups without spread (dynamic)", ge=0)
    in_flight: int = key(64, "episodes played at once", ge=1, free=True)


class ObjectiveSection(Section):
    """The objective."""

    name: str = key("grpo", "grpo, dapo, dr_grpo, rloo, cispo, gspo, starpo_s, reinforce, ppo (docs/objectives.md)")
    baseline: Literal["mean", "leave_one_out", "none", "value"] | None = key(
        None, "what is taken off a reward; null = the name's"
    )
    scale: Literal["group_std", "batch_std", "none"] | None = key(
        None, "what an advantage is divided by; null = the name's"
    )
    ratio: Literal["token", "sequence"] | None = key(None, "importance ratios; null = the name's")
    surrogate: Literal["clip", "cispo", "none"] | None = key(None, "what is summed; null = the name's")
    clip_low: float | None = key(None, "least ratio is 1 - this; null = the name's", ge=0)
    clip_high: float | None = key(None, "largest ratio is 1 + this; null = the name's", ge=0)
    average: Literal["trajectory", "token", "budget"] | None = key(None, "over what; null = the name's")
    budget: int | None = key(
        None, "agent tokens of average=budget; null = rollouts.max_steps * rollouts.max_tokens", ge=1
    )
    kl: float | None = key(None, "weight of K3 against the model as it was given; null = the name's", ge=0)
    dynamic: bool | None = key(None, "other tasks take the place of groups without spread; null = the name's")
    keep_spread: float | None = key(
        None, "share of the groups, of largest spread, that are kept; null = the name's", gt=0
    )
    overlong_soft: int | None = key(None, "agent tokens beyond which a trajectory loses reward; null = none", ge=1)
    overlong_hard: int | None = key(None, "agent tokens at which it has lost 1", ge=1)
    overlong_filter: bool = key(
        False, "learn nothing from episodes that their steps, tokens or context cut; they stay in the group's mean"
    )
    passes: int = key(1, "passes over a round's trajectories", ge=1)
    minibatches: int = key(1, "updates of one pass", ge=1)


class CriticSection(Section):
    """The value head of objectives with a critic (ppo)."""

    gamma: float = key(1.0, "discount a token", gt=0, le=1)
    lam: float = key(
        1.0, "lambda of generalised advantage estimation, a token; below 1 a verdict fades over the tokens before it",
        ge=0, le=1,
    )  # fmt: skip
    coefficient: float = key(0.5, "weight of the value loss", gt=0)
    clip: float | None = key(0.2, "how far a value may move in a round; null = any", gt=0)
    learning_rate: float | None = key(None, "of the value head; null = ten times optimizer.learning_rate", gt=0)
    trunk: bool = key(False, "whether the value loss also trains the model below the head")


class RefineOptimizer(AdamWSection):
    """AdamW and its schedule."""

    learning_rate: float = key(1e-4, "highest learning rate", gt=0, le=1e38)
    schedule: Literal["constant", "linear", "cosine"] = key("constant", "what follows the warm-up")
    warmup: float = key(0.0, "share of the updates in which the rate rises from 0", ge=0, le=1)
    weight_decay: float = key(0.0, "of AdamW", ge=0)


class SamplerSection(Section):
    """The sampler of the actions."""

    name: Literal["hf", "server", "colocated"] = key("hf", "hf: here; server: a vLLM server; colocated: vLLM in here")
    url: str | None = key(
        None, "server: the endpoint, e.g. http://localhost:8000/v1; several with commas between them", free=True
    )
    served: str | None = key(None, "server: the served model's name; null = the only one")
    correction: CORRECTIONS | None = key(
        None,
        "importance weights for samplers whose log-probabilities differ from the trainer's; they are known at "
        "rollouts.temperature=1 alone; null = token_truncate, off for hf, which computes as the trainer does",
    )
    cap: float = key(3.0, "largest importance weight", gt=0)
    tolerance: float | None = key(
        None, "server, colocated: largest log-probability difference of a probe, nats, at which new weights count as "
        "arrived; null = 0.01, with model.dtype=bfloat16 0.5", gt=0,
    )  # fmt: skip
    memory: float = key(0.3, "colocated: share of the GPU's memory that vLLM takes", gt=0, le=1)
    sleep: int = key(0, "colocated: 1 or 2 = what vLLM gives back while the model is trained", ge=0, le=2)

    @model_validator(mode="after")
    def _has_an_address(self) -> SamplerSection:
        if self.name == "server" and not self.url:
            raise ValueError("sampler.url: sampler.name=server needs the endpoint, e.g. http://localhost:8000/v1")
        return self


class WatchSection(Section):
    """The collapse watch; `docs/online.md` has its rules and their limits."""

    enabled: bool = key(True, "warn of collapse, and stop where the rules say so; false = keep quiet")
    window: int = key(5, "observations of a window; the latest is compared with the first", ge=2)
    patience: int = key(3, "updates in a row that a rule must hold; at most watch.window", ge=1)
    stop: tuple[str, ...] | None = key(
        None,
        "rules that stop the run, which then takes the newest checkpoint from before; null = mask, nothing_scored, "
        "echo_trap, collapse: after these going on is worthless; [] = none. The others: mask_shift, not_finite, "
        "unscored, reward, entropy, entropy_rise, spread, zero_spread, solved, gradient, kl, mismatch, length, short, "
        "truncated, invalid_calls, repeated_calls, tools",
        strict=False,
    )


class RefineCheckpoints(Section):
    """Checkpoints a stopped run goes on from."""

    every: int = key(5, "rounds between two", ge=1, free=True)
    keep: int = key(4, "how many are kept; where the watch stops the run, it goes back to one of them", ge=1, free=True)


class OfflineSection(Section):
    """Verified successes of earlier runs beside the roll-outs."""

    rows: int = key(0, "trajectories of filtered/ in every update; 0 = none", ge=0)
    weight: float = key(0.1, "weight of their mean negative log-likelihood", ge=0)
    runs: tuple[str, ...] = key((), "run directories whose filtered/ is replayed", strict=False)


class RefinedSection(Section):
    """The successes that offline stages may fine-tune on afterwards."""

    per_task: int = key(2, "most successes of one task in filtered/, shortest first; no two of the same calls", ge=1)


class RefineGrpoConfig(TrainableConfig):
    """Keys of `refine_grpo`."""

    about: ClassVar[str] = (
        "Refine a policy online: play rounds of episodes and train on them, by GRPO or another of its family."
    )
    main_keys: ClassVar[tuple[str, ...]] = (
        "model.path", "env", "tasks.n", "rounds", "rollouts.tasks", "rollouts.size", "rollouts.temperature",
        "rollouts.max_steps", "rollouts.max_tokens", "rollouts.credit", "rollouts.reward", "objective.name",
        "objective.kl", "objective.passes", "optimizer.learning_rate", "batch.tokens", "sampler.name", "sampler.url",
        "offline.rows", "offline.runs", "watch.stop", "lora.rank", "launcher", "seed", "run_dir", "tracking.uri",
    )  # fmt: skip
    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("", "eight rounds with the embedded shop and model"),
        ("model.path=runs/dpo/model rounds=100 objective.name=dapo run_dir=runs/online", "another objective, longer"),
        ("model.path=my/model sampler.name=server sampler.url=http://localhost:8000/v1", "a vLLM server plays"),
    )

    env: EnvSection = section(EnvSection, "the environment")
    judge: JudgeSection = section(JudgeSection, "who gives the verdicts")
    limits: LimitsSection = section(LimitsSection, "what an environment may take")
    sandbox: SandboxSection = section(SandboxSection, "where code runs that a policy wrote")
    tasks: RefineTasks = section(RefineTasks, "which tasks")
    rounds: int = key(8, "batches of roll-outs, each played with one version of the weights", ge=1)
    rollouts: RolloutsSection = section(RolloutsSection, "what is played in a round")
    reward: OnlineRewardSection = section(
        OnlineRewardSection, "weights of the composite reward, and the ranking of a group's attempts"
    )
    objective: ObjectiveSection = section(ObjectiveSection, "what is maximised")
    critic: CriticSection = section(CriticSection, "the value head")
    optimizer: RefineOptimizer = section(RefineOptimizer, "AdamW and its schedule")
    batch: PassSection = section(PassSection, "what one forward pass sees")
    sampler: SamplerSection = section(SamplerSection, "who samples the actions")
    offline: OfflineSection = section(OfflineSection, "verified successes beside the roll-outs")
    filtered: RefinedSection = section(RefinedSection, "successes for rejection fine-tuning")
    watch: WatchSection = section(WatchSection, "the collapse watch")
    checkpoints: RefineCheckpoints = section(RefineCheckpoints, "checkpoints")

    @model_validator(mode="after")
    def _goes_together(self) -> RefineGrpoConfig:
        if self.offline.rows and not self.offline.runs:
            raise ValueError("offline.runs: offline.rows asks for trajectories, but no run directory is named")
        return self
