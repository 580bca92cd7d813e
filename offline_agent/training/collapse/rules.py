"""The rules of the collapse watch, one table: figures, how each is compared, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from offline_agent.training.collapse.history import History, arrow, span

Condition = Callable[[History], bool]
Fault = tuple[tuple[str, str, float], ...]
"""Comparisons that all hold: figure, one of `COMPARISONS`, limit."""

_LONG = 10  # windows of history a gradient is compared with
_SOLVED = 0.9  # success from which all counts as solved
_TOP_TOOL = 0.9  # one tool's share of the calls


def _above(history: History, name: str, limit: float) -> bool:
    return bool(recent := history.recent(name)) and median(recent) > limit


def _dropped(history: History, name: str, limit: float) -> bool:
    """Return whether the mean reward lost this share of its best window."""
    if history.best is None:
        return False
    (best, least), recent = history.best, history.recent(name)
    # no recent value may reach the best window's least: the best of many windows is partly luck
    return best > 0 and max(recent) < least and median(recent) < (1 - limit) * best


def _spiked(history: History, name: str, limit: float) -> bool:
    """Return whether several values of the latest window are this many times the usual."""
    values, window = history.values(name), history.window
    if len(values) < 2 * window:
        return False
    # later history counts too: a run whose first groups had no spread starts with hardly any gradient
    usual = max(median(values[:window]), median(values[:-window][-_LONG * window :]))
    return sum(usual > 0 and value > limit * usual for value in values[-window:]) >= history.patience


def _jumped(history: History, name: str, limit: float) -> bool:
    """Return whether the odds of the latest share are this many times the usual, or less by as much."""
    values = history.values(name)
    before = values[: -history.patience][-history.window :]
    if len(before) < history.window or not (0 < (usual := median(before)) < 1 and 0 < values[-1] < 1):
        return False
    factor = (values[-1] / (1 - values[-1])) / (usual / (1 - usual))
    return not 1 / limit <= factor <= limit


COMPARISONS: Mapping[str, Callable[[History, str, float], bool]] = {
    "above": _above,
    "dropped": _dropped,
    "spiked": _spiked,
    "jumped": _jumped,
    "moved": History.moved,
    "shrank": lambda history, name, limit: history.moved(name, 1 / limit),
    "at_least": lambda history, name, limit: bool(recent := history.recent(name)) and median(recent) >= limit,
    "no_share": lambda history, name, limit: not 0 < history.values(name)[-1] < limit,
    "latest_at_least": lambda history, name, limit: history.values(name)[-1] >= limit,
    "not_finite": lambda history, name, limit: len(history.broken) > limit,
}

# What a model's size decides (entropy, spread, length, gradient norm) is measured against the run's own start.
_ENTROPY_FELL: Fault = (("entropy", "moved", 0.3),)
_ENTROPY_ROSE: Fault = (("entropy", "moved", 3.0),)
_SPREAD_FELL: Fault = (("group_spread", "moved", 0.4),)
_REWARD_FELL: Fault = (("reward_mean", "dropped", 0.4),)
_EQUAL: Fault = (("zero_spread", "above", 0.8),)
_SPIKES: Fault = (("gradient", "spiked", 10.0),)
_KL_HIGH: Fault = (("kl", "above", 1.0),)


def holds(fault: Fault, history: History) -> bool:
    """Return whether all comparisons hold."""
    return all(COMPARISONS[how](history, name, limit) for name, how, limit in fault)


def _solved(history: History) -> bool | None:
    """Return whether all tasks are as good as solved; None where nobody knows."""
    recent = history.recent("success_mean") or history.recent("reward_mean")
    return median(recent) >= _SOLVED if recent else None


def _not_risen(history: History) -> bool:
    """Return whether it is known that the reward did not rise, by a fifth or from nothing."""
    both = history.apart("reward_mean")
    return both is not None and not history.moved("reward_mean", 1.2) and not median(both[0]) <= 0 < min(both[1])


def _improves(history: History) -> bool:
    return history.best is not None and median(history.recent("reward_mean")) > 1.02 * history.best[0]


def _comparable(history: History) -> bool:
    """Return whether there is more to learn, and the spread is small beside what the mean reward allows, too."""
    little = history.apart("relative_spread") is None or history.moved("relative_spread", 0.4)
    return _solved(history) is False and little


def _more_tools_before(history: History) -> bool:
    both = history.apart("tool_top")
    return both is not None and median(both[0]) < _TOP_TOOL and history.moved("tool_entropy", 0.5)


def _another_sign(history: History) -> bool:
    """Return whether something beside the reward collapses."""
    if any(holds(sign, history) for sign in (_ENTROPY_FELL, _ENTROPY_ROSE, _SPIKES, _KL_HIGH)):
        return True
    return holds(_SPREAD_FELL, history) and _comparable(history)


@dataclass(frozen=True)
class Rule:
    """One rule; it holds where there is a fault that nothing excuses.

    Attributes:
        name: Its name in settings and findings.
        fault: Its own figures are bad. They must be new for it to be looked at, and a finding tells them with their
            limits. The rule is not over while they are, whatever excuses it.
        advice: What it means, which figures to look at, which key to change.
        given: What else must be so, else the run is excused, say by a reward that rose.
        also: One more figure that must be new.
        more_limits: Of `given`.
        at_once: It needs no patience.
        latest: It is about the latest value, not about a window.
        tells: More figures that a finding tells.
    """

    name: str
    fault: Fault
    advice: str
    given: Condition = lambda history: True
    also: str = ""
    more_limits: tuple[float, ...] = ()
    at_once: bool = False
    latest: bool = False
    tells: tuple[str, ...] = ()

    @property
    def needs(self) -> tuple[str, ...]:
        """Figures that must be new for it to be looked at."""
        return tuple(name for name in (*(name for name, _, _ in self.fault), self.also) if name)

    @property
    def limits(self) -> tuple[float, ...]:
        """The thresholds that a finding tells."""
        return () if self.latest else (*(limit for _, _, limit in self.fault), *self.more_limits)

    def text(self, history: History) -> str:
        """Return this run's figures, start -> now, the limits, and the advice."""
        names = dict.fromkeys((*self.needs, *self.tells, "reward_mean"))
        spans = {name: span(history.values(name), history.window) for name in names}
        if self.latest:
            spans = {name: both and (both[0], history.values(name)[-1]) for name, both in spans.items()}
        said = [f"not finite {name}" for name in history.broken] + [f"{k} {arrow(both)}" for k, both in spans.items()]
        if self.fault is _REWARD_FELL and history.best is not None:
            said.append(f"in its best window {history.best[0]:.3g}")
        limits = f" (limit {', '.join(f'{limit:g}' for limit in self.limits)})" if self.limits else ""
        return f"{', '.join(said)}{limits}: {self.advice}"


RULES = (
    Rule("mask", (("trained_share", "no_share", 1.0),),
         "none of all tokens are trained on (nothing is learnt) or all (the environment's too): the action mask is "
         "wrong; look at one batch token by token, and at the chat template",
         at_once=True, latest=True),
    Rule("mask_shift", (("trained_share", "jumped", 3.0),),
         "so sudden a change is rarely the policy's: look at the action mask of one batch, at the chat template and at "
         "how long the environment's observations are",
         latest=True),
    Rule("not_finite", (("", "not_finite", 0.0),),
         "look at the rows of this update; lower optimizer.learning_rate",
         at_once=True, latest=True),
    Rule("nothing_scored", (("unscored", "latest_at_least", 1.0),),
         "no trajectory was scored, there is nothing to learn from; look at the errors beside the missing scores, the "
         "judge's server and limits.step_seconds",
         latest=True),
    Rule("unscored", (("unscored", "above", 0.2),),
         "what is learnt is biased to what could be judged; look at the errors beside the missing scores, the judge's "
         "server, limits.step_seconds and rollouts.max_tokens"),
    Rule("echo_trap", (*_ENTROPY_FELL, *_SPREAD_FELL),
         "the policy repeats what was rewarded once and its groups have nothing left to compare; the reward falls next "
         "(RAGEN, 2504.20073); go back to the last good checkpoint with a lower optimizer.learning_rate, a higher "
         "objective.kl, objective.clip_high or rollouts.temperature, or a lower objective.keep_spread",
         given=lambda history: _comparable(history) and not _improves(history)),
    Rule("collapse", _REWARD_FELL,
         "the policy is losing what it could do; go back to the last good checkpoint with a lower "
         "optimizer.learning_rate and a higher objective.kl, and look at its latest trajectories beside the best ones",
         given=_another_sign, tells=("entropy", "group_spread", "gradient", "kl")),
    Rule("reward", _REWARD_FELL,
         "harder tasks from the curriculum do this too; compare the success on the same tasks, and read the latest "
         "trajectories with their verdicts"),
    Rule("entropy", _ENTROPY_FELL,
         "the policy hardly varies what it tries and stops exploring; raise objective.clip_high, objective.kl or "
         "rollouts.temperature, or lower optimizer.learning_rate",
         given=lambda history: not _solved(history)),
    Rule("entropy_rise", _ENTROPY_ROSE,
         "the policy drifts into noise; read a few trajectories; lower optimizer.learning_rate or objective.clip_high, "
         "or raise objective.kl",
         given=_not_risen, also="reward_mean"),
    Rule("spread", _SPREAD_FELL,
         "the roll-outs of a task end alike, so that little is left to compare; set objective.dynamic=true, lower "
         "objective.keep_spread, raise rollouts.temperature, or take tasks of success near one half "
         "(rollouts.choice=learnability)",
         given=_comparable),
    Rule("zero_spread", _EQUAL,
         "such groups teach nothing; where all fail, the tasks are too hard or the reward rule is wrong; set "
         "objective.dynamic=true, raise rollouts.size, or take tasks of success near one half "
         "(rollouts.choice=learnability)",
         given=lambda history: _solved(history) is False),
    Rule("solved", _EQUAL,
         "this is no collapse: these tasks have nothing left to teach; end the run or take harder tasks",
         given=lambda history: _solved(history) is True, more_limits=(_SOLVED,)),
    Rule("gradient", _SPIKES,
         "spikes that come again mark a collapse that does not heal (RAGEN, 2504.20073); lower "
         "optimizer.learning_rate or optimizer.clip, and look at KL and mismatch",
         at_once=True),
    Rule("kl", _KL_HIGH,
         "the policy is far from the offline checkpoint; raise objective.kl or lower optimizer.learning_rate, and "
         "check that KL counts agent tokens only"),
    Rule("mismatch", (("mismatch", "above", 0.1),),
         "the updates are off-policy; check that the sampler has the newest weights, the same number format, template "
         "and temperature, and set sampler.correction"),
    Rule("length", (("length", "moved", 3.0),),
         "a reward that grows with length invites this; look whether the longer trajectories succeed more; set "
         "objective.overlong_soft, or lower rollouts.max_steps"),
    Rule("short", (("length", "shrank", 3.0),),
         "the policy gives up early or answers without trying; read a few trajectories with their verdicts",
         given=_not_risen, also="reward_mean"),
    Rule("truncated", (("truncated", "above", 0.5),),
         "the policy cannot finish within its limits; look for loops, or raise rollouts.max_steps or "
         "rollouts.max_tokens"),
    Rule("invalid_calls", (("invalid_calls", "above", 0.3),),
         "the policy calls tools that are not there, or with wrong arguments; train on refusals first "
         "(data.negatives of train_sft), and let an invalid call cost reward"),
    Rule("repeated_calls", (("repeated_calls", "above", 0.5),),
         "the policy runs in circles; let a repeated call cost reward, raise rollouts.temperature, or choose some "
         "tools at random"),
    Rule("tools", (("tool_top", "at_least", _TOP_TOOL),),
         "the policy relies on one tool; look whether the reward can be had by it alone; choose some tools at random, "
         "or raise rollouts.temperature",
         given=lambda history: _more_tools_before(history) and not _solved(history), tells=("tool_entropy",)),
)  # fmt: skip
"""In the order findings of one update are told: what makes the rest meaningless first."""

RULE_NAMES = tuple(rule.name for rule in RULES)
"""Every rule a finding can be of, and `watch.stop` can name."""
