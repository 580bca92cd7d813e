"""The rules of the collapse watch: what each needs, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

from offline_agent.training.collapse import conditions
from offline_agent.training.collapse.conditions import Condition, Stays


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        name: Its name in settings and findings.
        needs: Figures that must be new for it to be looked at.
        holds: The condition.
        meaning: Its meaning, the figures to look at, the key to change.
        at_once: Its condition needs no patience.
        stays: Where it no longer holds: whether its own figure is still as bad (the run is merely excused, say by a
            reward that rose), so that it is not over; None = it is over when it no longer holds.
    """

    name: str
    needs: tuple[str, ...]
    holds: Condition
    meaning: str
    at_once: bool = False
    stays: Stays | None = None


RULES = (
    Rule(
        "mask", ("trained_share",), conditions.mask,
        "0 = nothing is learnt, 1 = the environment's tokens are learnt too: the action mask is wrong; look at one "
        "batch token by token, and at the chat template",
        at_once=True,
    ),
    Rule(
        "mask_shift", ("trained_share",), conditions.mask_shift,
        "so sudden a change is rarely the policy's: look at the action mask of one batch, at the chat template and at "
        "how long the environment's observations are",
    ),
    Rule(
        "not_finite", (), conditions.not_finite,
        "look at the rows of this update; lower optimizer.learning_rate",
        at_once=True,
    ),
    Rule(
        "nothing_scored", ("unscored",), conditions.nothing_scored,
        "there is nothing to learn from; look at the errors beside the missing scores, the judge's server and "
        "limits.step_seconds",
    ),
    Rule(
        "unscored", ("unscored",),
        conditions.above("unscored", "unscored_ceiling", "{} of the trajectories were not scored"),
        "what is learnt is biased to what could be judged; look at the errors beside the missing scores, the judge's "
        "server, limits.step_seconds and rollouts.max_tokens",
    ),
    Rule(
        "echo_trap", ("entropy", "group_spread"), conditions.echo_trap,
        "the policy repeats what was rewarded once and its groups have nothing left to compare; the reward falls next "
        "(RAGEN, 2504.20073); go back to the last good checkpoint with a lower optimizer.learning_rate, a higher "
        "objective.kl, objective.clip_high or rollouts.temperature, or a lower objective.keep_spread",
        stays=conditions.both_fell,
    ),
    Rule(
        "collapse", ("reward_mean",), conditions.collapse,
        "the policy is losing what it could do; go back to the last good checkpoint with a lower "
        "optimizer.learning_rate and a higher objective.kl, and look at its latest trajectories beside the best ones",
        stays=conditions.less_reward,
    ),
    Rule(
        "reward", ("reward_mean",), conditions.reward_fell,
        "harder tasks from the curriculum do this too; compare the success on the same tasks, and read the latest "
        "trajectories with their verdicts",
    ),
    Rule(
        "entropy", ("entropy",), conditions.entropy,
        "the policy hardly varies what it tries and stops exploring; raise objective.clip_high, objective.kl or "
        "rollouts.temperature, or lower optimizer.learning_rate",
        stays=conditions.fell("entropy", "entropy_floor"),
    ),
    Rule(
        "entropy_rise", ("entropy", "reward_mean"), conditions.entropy_rise,
        "the policy drifts into noise; read a few trajectories; lower optimizer.learning_rate or objective.clip_high, "
        "or raise objective.kl",
        stays=conditions.entropy_rose,
    ),
    Rule(
        "spread", ("group_spread",), conditions.spread,
        "the roll-outs of a task end alike, so that little is left to compare; set objective.dynamic=true, lower "
        "objective.keep_spread, raise rollouts.temperature, or take tasks of success near one half "
        "(rollouts.choice=learnability)",
        stays=conditions.fell("group_spread", "spread_floor"),
    ),
    Rule(
        "zero_spread", ("zero_spread",), conditions.zero_spread,
        "such groups teach nothing; where all fail, the tasks are too hard or the reward rule is wrong; set "
        "objective.dynamic=true, raise rollouts.size, or take tasks of success near one half "
        "(rollouts.choice=learnability)",
        stays=conditions.exceeds("zero_spread", "zero_spread_ceiling"),
    ),
    Rule(
        "solved", ("zero_spread",), conditions.all_solved,
        "this is no collapse: these tasks have nothing left to teach; end the run or take harder tasks",
        stays=conditions.exceeds("zero_spread", "zero_spread_ceiling"),
    ),
    Rule(
        "gradient", ("gradient",), conditions.gradient,
        "spikes that come again mark a collapse that does not heal (RAGEN, 2504.20073); lower "
        "optimizer.learning_rate or optimizer.clip, and look at KL and mismatch",
        at_once=True,
    ),
    Rule(
        "kl", ("kl",), conditions.KL_ABOVE,
        "the policy is far from the offline checkpoint; raise objective.kl or lower optimizer.learning_rate, and check "
        "that KL counts agent tokens only",
    ),
    Rule(
        "mismatch", ("mismatch",),
        conditions.above(
            "mismatch", "mismatch_ceiling", "sampler and trainer differ by {} nats of log-probability a token", ".3g"
        ),
        "the updates are off-policy; check that the sampler has the newest weights, the same number format, template "
        "and temperature, and set sampler.correction",
    ),
    Rule(
        "length", ("length",), conditions.length,
        "a reward that grows with length invites this; look whether the longer trajectories succeed more; set "
        "objective.overlong_soft, or lower rollouts.max_steps",
    ),
    Rule(
        "short", ("length", "reward_mean"), conditions.short,
        "the policy gives up early or answers without trying; read a few trajectories with their verdicts",
        stays=conditions.shorter,
    ),
    Rule(
        "truncated", ("truncated",),
        conditions.above("truncated", "truncation_ceiling", "{} of the trajectories were cut off"),
        "the policy cannot finish within its limits; look for loops, or raise rollouts.max_steps or "
        "rollouts.max_tokens",
    ),
    Rule(
        "invalid_calls", ("invalid_calls",),
        conditions.above("invalid_calls", "invalid_ceiling", "{} of the calls are invalid"),
        "the policy calls tools that are not there, or with wrong arguments; train on refusals first "
        "(data.negatives of train_sft), and let an invalid call cost reward",
    ),
    Rule(
        "repeated_calls", ("repeated_calls",),
        conditions.above("repeated_calls", "repeat_ceiling", "{} of the calls repeat an earlier one of the trajectory"),
        "the policy runs in circles; let a repeated call cost reward, raise rollouts.temperature, or choose some tools "
        "at random",
    ),
    Rule(
        "tools", ("tool_top",), conditions.tools,
        "the policy relies on one tool; look whether the reward can be had by it alone; choose some tools at random, "
        "or raise rollouts.temperature",
        stays=conditions.exceeds("tool_top", "tool_ceiling"),
    ),
)  # fmt: skip
"""In the order findings of one update are told: what makes the rest meaningless first."""

NAMES = tuple(rule.name for rule in RULES)
