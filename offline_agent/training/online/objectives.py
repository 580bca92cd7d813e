"""Objectives of the policy-gradient family: their fields, checks and the table of named objectives.

Their losses are in `online.losses`; docs/objectives.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import isfinite
from types import MappingProxyType
from typing import Any, Literal, get_args

from offline_agent.errors import ConfigError, did_you_mean

Baseline = Literal["mean", "leave_one_out", "none", "value"]
Scale = Literal["group_std", "batch_std", "none"]
Ratio = Literal["token", "sequence"]
Surrogate = Literal["clip", "cispo", "none"]
Average = Literal["trajectory", "token", "budget"]
Correction = Literal["off", "token_truncate", "sequence_truncate", "token_mask", "sequence_mask"]

_CHOICES = {"baseline": Baseline, "scale": Scale, "ratio": Ratio, "surrogate": Surrogate, "average": Average}


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

    @property
    def needs_reference(self) -> bool:
        """Whether the loss asks for log-probabilities of the reference."""
        return self.kl != 0

    @property
    def needs_values(self) -> bool:
        """Whether advantages come from a critic's values."""
        return self.baseline == "value"

    def faults(self) -> list[str]:
        """Return every reason why this cannot be trained with; empty when it can."""
        found = [choice_fault(name, getattr(self, name), get_args(kind)) for name, kind in _CHOICES.items()]
        found += [
            f"{name} is {getattr(self, name)!r}; allowed: true or false"
            for name in ("dynamic", "overlong_filter")
            if type(getattr(self, name)) is not bool
        ]
        found += [
            number_fault("clip_low", self.clip_low, 0, 1),
            number_fault("clip_high", self.clip_high, 0),
            number_fault("kl", self.kl, 0),
            number_fault("keep_spread", self.keep_spread, 0, 1, above=True),
            *(_count(name, getattr(self, name)) for name in ("budget", "overlong_soft", "overlong_hard")),
        ]
        found = [fault for fault in found if fault]
        if found:  # how fields go together can only be said of fields that are right by themselves
            return found
        if self.average == "budget" and not self.budget:
            found.append(f"budget is {self.budget!r} and average='budget'; give a number of agent tokens of at least 1")
        if self.average != "budget" and self.budget is not None:
            found.append(f"budget is {self.budget} and average={self.average!r}; only average='budget' has a budget")
        if self.baseline == "none" and self.scale != "none":
            found.append(f"scale={self.scale!r} needs a baseline: a group without spread would be divided by almost 0")
        if self.baseline == "value" and self.scale == "group_std":
            found.append("scale='group_std' does not go with baseline='value'; allowed: batch_std, none")
        soft, hard = self.overlong_soft, self.overlong_hard
        if (soft is None) != (hard is None):
            found.append(f"overlong_soft is {soft} and overlong_hard is {hard}; give both or neither")
        elif soft is not None and hard is not None and soft >= hard:
            found.append(f"overlong_soft is {soft} and overlong_hard is {hard}; soft must be the smaller one")
        return found


def choice_fault(name: str, got: Any, allowed: Sequence[str]) -> str:
    """Return why a value is not one of the allowed words; "" where it is."""
    if isinstance(got, str) and got in allowed:
        return ""
    return f"{name} is {got!r}; allowed: {', '.join(allowed)}.{did_you_mean(str(got), allowed)}"


def number_fault(name: str, got: Any, low: float, high: float | None = None, *, above: bool = False) -> str:
    """Return why a value is not a finite number from `low` (or `above` it) to `high`; "" where it is."""
    right = isinstance(got, int | float) and not isinstance(got, bool) and isfinite(got)
    if right and (got > low if above else got >= low) and (high is None or got <= high):
        return ""
    bounds = f"{'above' if above else 'at least'} {low}" + (f", at most {high}" if high is not None else "")
    return f"{name} is {got!r}; allowed: {bounds}"


def _count(name: str, got: Any) -> str:
    if got is None or (isinstance(got, int) and not isinstance(got, bool) and got >= 0):
        return ""
    return f"{name} is {got!r}; allowed: a number of agent tokens, or none"


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


def objective(name: str, /, **changes: Any) -> Objective:
    """Return an objective by name, with some fields changed.

    Args:
        name: A key of `OBJECTIVES`.
        changes: Fields of `Objective`, but not its name.

    Raises:
        ConfigError: No such name or field, a value that is not allowed, or fields that do not go together; every fault
            found is in it.
    """
    if name not in OBJECTIVES:
        raise ConfigError(f"no objective {name!r}; allowed: {', '.join(OBJECTIVES)}.{did_you_mean(name, OBJECTIVES)}")
    known = [field.name for field in fields(Objective) if field.name != "name"]
    faults = [
        f"an objective has no field {key!r}; allowed: {', '.join(known)}.{did_you_mean(key, known)}"
        for key in changes
        if key not in known
    ]
    made = replace(OBJECTIVES[name], **{key: value for key, value in changes.items() if key in known})
    faults += [f"objective {name}: {fault}" for fault in made.faults()]
    if faults:
        raise ConfigError(faults)
    return made
