"""Objectives of the policy-gradient family: their fields, keys, and the table of named objectives.

Their losses are in `online.losses`; docs/objectives.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Literal

from pydantic import model_validator

from offline_agent.errors import ConfigError, did_you_mean
from offline_agent.sections import Section, key

Baseline = Literal["mean", "leave_one_out", "none", "value"]
Scale = Literal["group_std", "batch_std", "none"]
Ratio = Literal["token", "sequence"]
Surrogate = Literal["clip", "cispo", "none"]
Average = Literal["trajectory", "token", "budget"]
Correction = Literal["off", "token_truncate", "sequence_truncate", "token_mask", "sequence_mask"]


@dataclass(frozen=True)
class Objective:
    """The objective; every member of the family is a combination of these settings.

    Attributes:
        name: The entry of `OBJECTIVES` that it was made from, for manifests.
        baseline: The value subtracted from a reward: the group's mean, the mean of the group's others (RLOO), nothing,
            or a critic's value (advantages come from `advantages.gae`).
        scale: The divisor of an advantage: the standard deviation of the group's rewards or of the whole round's,
            or nothing. With `baseline="value"`, batch_std whitens the advantages of the round's agent tokens.
        ratio: Of each token, or one for a trajectory: exp of the mean log-ratio of its tokens (GSPO).
        surrogate: clip: min(r A, clip(r, 1 - clip_low, 1 + clip_high) A). cispo: sg(clip(r, ...)) A log pi. none:
            A log pi, whatever the ratio is.
        clip_low, clip_high: Distances from 1. clip_low = 1 is no lower bound.
        average: trajectory: the mean over the update's N trajectories of the means over their n_i tokens. token: the
            mean over all tokens. budget: the sum over all tokens / (N budget).
        budget: Tokens; only, and always, with `average="budget"`.
        kl: Weight of K3 against the reference; 0 = no reference is needed.
        dynamic: Groups without spread are not trained on; the roll-outs put other tasks in their place (DAPO).
        keep_spread: Share of the groups that are trained on, those of the largest spread; 1 = all (StarPO-S).
        overlong_soft, overlong_hard: A trajectory of more agent tokens than `overlong_soft` is punished, linearly down
            to -1 at `overlong_hard` and beyond (DAPO); None = never.
        teacher: Who says of every token how likely it would have been; None = nobody. See `online.distillation`.
        distil: Share of an advantage that is the teacher's, where there is one; the rest is the baseline's.
        overlong_filter: Nothing is learnt from the tokens of a trajectory that a limit of the policy's own cut; its
            reward stays in the group's mean (DAPO, section 3.4).
    """

    name: str
    baseline: Baseline = "mean"
    scale: Scale = "group_std"
    ratio: Ratio = "token"
    surrogate: Surrogate = "clip"
    clip_low: float = 0.2
    clip_high: float = 0.2
    average: Average = "trajectory"
    budget: int | None = None
    kl: float = 0.0
    dynamic: bool = False
    keep_spread: float = 1.0
    overlong_soft: int | None = None
    overlong_hard: int | None = None
    overlong_filter: bool = False
    teacher: str | None = None
    distil: float = 1.0

    @property
    def needs_reference(self) -> bool:
        """Whether the loss asks for log-probabilities of the reference."""
        return self.kl != 0

    @property
    def needs_values(self) -> bool:
        """Whether advantages come from a critic's values."""
        return self.baseline == "value"


OBJECTIVES: Mapping[str, Objective] = MappingProxyType(
    {
        made.name: made
        for made in (
            # Shao et al. 2024, arXiv 2402.03300, with K3 on agent tokens alone
            Objective("grpo", kl=0.01),
            # Yu et al. 2025, arXiv 2503.14476; the lengths of the overlong shaping are the run's
            Objective("dapo", clip_high=0.28, average="token", dynamic=True),
            # Liu et al. 2025, arXiv 2503.20783; the budget is the run's
            Objective("dr_grpo", scale="none", average="budget"),
            # Ahmadian et al. 2024, arXiv 2402.14740; budget=1 with average="budget" is the paper's scale
            Objective("rloo", "leave_one_out", "none", surrogate="none", average="token", kl=0.01),
            # MiniMax 2025, arXiv 2506.13585: weights have no lower bound; upper bound 5 as in arXiv 2510.13786
            Objective("cispo", surrogate="cispo", clip_low=1.0, clip_high=4.0, average="token"),
            # Zheng et al. 2025, arXiv 2507.18071
            Objective("gspo", ratio="sequence", clip_low=3e-4, clip_high=4e-4),
            # Wang et al. 2025, arXiv 2504.20073, on the group baseline instead of a critic
            Objective("starpo_s", clip_high=0.28, keep_spread=0.25),
            # Williams 1992
            Objective("reinforce", "none", "none", surrogate="none", average="token"),
            # Schulman et al. 2017, arXiv 1707.06347
            Objective("ppo", "value", "batch_std", average="token", kl=0.01),
        )
    }
)


class ObjectiveSection(Section):
    """The objective."""

    name: str = key("grpo", "grpo, dapo, dr_grpo, rloo, cispo, gspo, starpo_s, reinforce, ppo (docs/objectives.md)")
    baseline: Baseline | None = key(
        None, "what is taken off a reward; null = the name's"
    )
    scale: Scale | None = key(
        None, "what an advantage is divided by; null = the name's"
    )
    ratio: Ratio | None = key(None, "importance ratios; null = the name's")
    surrogate: Surrogate | None = key(None, "what is summed; null = the name's")
    clip_low: float | None = key(None, "least ratio is 1 - this; null = the name's", ge=0, le=1)
    clip_high: float | None = key(None, "largest ratio is 1 + this; null = the name's", ge=0)
    average: Average | None = key(None, "over what; null = the name's")
    budget: int | None = key(
        None, "agent tokens of average=budget; null = rollouts.max_steps * rollouts.max_tokens", ge=1
    )
    kl: float | None = key(None, "weight of K3 against the model as it was given; null = the name's", ge=0)
    dynamic: bool | None = key(None, "other tasks take the place of groups without spread; null = the name's")
    keep_spread: float | None = key(
        None, "share of the groups, of largest spread, that are kept; null = the name's", gt=0, le=1
    )
    overlong_soft: int | None = key(None, "agent tokens beyond which a trajectory loses reward; null = none", ge=1)
    overlong_hard: int | None = key(None, "agent tokens at which it has lost 1", ge=1)
    overlong_filter: bool = key(
        False, "learn nothing from episodes that their steps, tokens or context cut; they stay in the group's mean"
    )
    teacher: str | None = key(
        None, "on-policy distillation: a model's folder or hub name, or a vLLM server's address, with the tokenizer of "
        "model.path; or sibling: the policy itself, shown what its group's success did (docs/objectives.md)"
    )  # fmt: skip
    distil: float | None = key(
        None, "share of an advantage that is the teacher's, the rest is the group's; null = 1, the teacher alone",
        gt=0, le=1,
    )  # fmt: skip
    passes: int = key(1, "passes over a round's trajectories", ge=1)
    minibatches: int = key(1, "updates of one pass", ge=1)

    def chosen(self, budget: int | None = None) -> Objective:
        """Return the objective: the name's, with the keys that are set.

        Args:
            budget: Agent tokens of average=budget where no key says it.
        """
        given = {field.name: getattr(self, field.name) for field in fields(Objective)}
        made = replace(OBJECTIVES[self.name], **{name: value for name, value in given.items() if value is not None})
        return replace(made, budget=budget) if made.average == "budget" and made.budget is None else made

    @model_validator(mode="after")
    def _goes_together(self) -> ObjectiveSection:
        if self.name not in OBJECTIVES:
            near = did_you_mean(self.name, OBJECTIVES)
            raise ValueError(f"objective.name: got {self.name!r}, allowed: {', '.join(OBJECTIVES)}.{near}")
        made, faults = self.chosen(), []
        if made.average != "budget" and made.budget is not None:
            faults.append(
                f"objective.budget: got {made.budget} and average={made.average}; only objective.average=budget has one"
            )
        if made.baseline == "none" and made.scale != "none":
            faults.append(
                f"objective.scale: got {made.scale} without a baseline, allowed: none; a group without spread would be "
                "divided by almost 0"
            )
        if made.baseline == "value" and made.scale == "group_std":
            faults.append("objective.scale: group_std does not go with baseline=value; allowed: batch_std, none")
        if self.distil is not None and made.teacher is None:
            faults.append(f"objective.distil: got {self.distil:g} and no objective.teacher; name one, or leave it out")
        soft, hard = made.overlong_soft, made.overlong_hard
        if (soft is None) != (hard is None):
            faults.append(
                f"objective.overlong_soft: got {soft} with objective.overlong_hard={hard}; give both or neither"
            )
        elif soft is not None and hard is not None and soft >= hard:
            faults.append(
                f"objective.overlong_soft: got {soft}, allowed: less than objective.overlong_hard ({hard})"
            )
        if faults:
            raise ValueError("\n".join(faults))
        return self


def objective(name: str, /, **changes: Any) -> Objective:
    """Return an objective by name, with some fields changed.

    Args:
        name: A key of `OBJECTIVES`.
        changes: Keys of `ObjectiveSection`; `budget` is needed where the average is by one.

    Raises:
        ValidationError: No such name or key, a value that is not allowed, or keys that do not go together.
        ConfigError: There is no budget.
    """
    made = ObjectiveSection(name=name, **changes).chosen()
    if made.average == "budget" and made.budget is None:
        raise ConfigError(f"objective {name}: average=budget needs budget, a number of agent tokens")
    return made
