"""The rules of the collapse watch, one table: figure, comparison, threshold, what else must be so, what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from offline_agent.training.collapse.history import History, arrow, span

Condition = Callable[[History], bool]

# What a model's size decides (entropy, spread, length, gradient norm) is measured against the run's own start.
_ENTROPY_FLOOR, _ENTROPY_FACTOR, _SPREAD_FLOOR = 0.3, 3.0, 0.4  # of the start
_EQUAL_GROUPS, _SOLVED = 0.8, 0.9  # share of groups without spread; success from which all counts as solved
_SPIKE = 10.0  # a gradient norm this many times the usual
_LENGTH = 3.0  # agent tokens of a trajectory this many times the start, or the inverse
_TOP_TOOL, _REWARD_DROP = 0.9, 0.4  # one tool's share of the calls; of the best window's reward

_RISEN = 1.2  # a reward this many times its start has risen
_IMPROVES = 1.02  # a reward this many times its best so far still improves
_SHIFT = 3.0  # odds of a token being trained on; longer episodes change them slowly
_TOOLS_LEFT = 0.5  # of the start's entropy of the tool histogram
_LONG = 10  # windows of history a gradient is compared with


def _moved(name: str, factor: float) -> Condition:
    """A figure is below a share, or above a multiple, of its start; see `History.moved`."""
    return lambda history: history.moved(name, factor)


def _above(name: str, ceiling: float) -> Condition:
    """The median of a figure's latest window is above a ceiling."""
    return lambda history: bool(recent := history.recent(name)) and median(recent) > ceiling


def _all(*conditions: Condition) -> Condition:
    return lambda history: all(holds(history) for holds in conditions)


def _not(condition: Condition) -> Condition:
    return lambda history: not condition(history)


def _always(history: History) -> bool:
    return True


def _success(history: History) -> float | None:
    recent = history.recent("success_mean") or history.recent("reward_mean")
    return median(recent) if recent else None


def _solved(history: History) -> bool:
    return (success := _success(history)) is not None and success >= _SOLVED


def _unsolved(history: History) -> bool:
    """It is known that not all is solved."""
    return (success := _success(history)) is not None and success < _SOLVED


def _not_risen(history: History) -> bool:
    """It is known that the reward did not rise."""
    both = history.apart("reward_mean")
    if both is None:
        return False
    return not history.moved("reward_mean", _RISEN) and not median(both[0]) <= 0 < min(both[1])


def _improves(history: History) -> bool:
    return history.best is not None and median(history.recent("reward_mean")) > _IMPROVES * history.best[0]


def _reward_fell(history: History) -> bool:
    if history.best is None:
        return False
    (best, least), recent = history.best, history.recent("reward_mean")
    # no recent value may reach the best window's least: the best of many windows is partly luck
    return best > 0 and max(recent) < least and median(recent) < (1 - _REWARD_DROP) * best


def _little_for_the_reward(history: History) -> bool:
    """The spread is also small beside what the mean reward allows, where rewards are in [0, 1]."""
    name = "relative_spread"
    return history.apart(name) is None or history.moved(name, _SPREAD_FLOOR)


def _spikes(history: History) -> bool:
    values, window = history.values("gradient"), history.window
    if len(values) < 2 * window:
        return False
    # later history counts too: a run whose first groups had no spread starts with hardly any gradient
    usual = max(median(values[:window]), median(values[:-window][-_LONG * window :]))
    spikes = [value for value in values[-window:] if usual > 0 and value > _SPIKE * usual]
    return len(spikes) >= history.patience


def _mask_shift(history: History) -> bool:
    values, window = history.values("trained_share"), history.window
    before = values[: -history.patience][-window:]
    if len(before) < window or not (0 < (usual := median(before)) < 1 and 0 < values[-1] < 1):
        return False
    factor = (values[-1] / (1 - values[-1])) / (usual / (1 - usual))
    return not 1 / _SHIFT <= factor <= _SHIFT


def _one_tool(history: History) -> bool:
    return bool(recent := history.recent("tool_top")) and median(recent) >= _TOP_TOOL


def _more_tools_before(history: History) -> bool:
    both = history.apart("tool_top")
    return both is not None and median(both[0]) < _TOP_TOOL and history.moved("tool_entropy", _TOOLS_LEFT)


_ENTROPY_FELL, _ENTROPY_ROSE = _moved("entropy", _ENTROPY_FLOOR), _moved("entropy", _ENTROPY_FACTOR)
_SPREAD_FELL, _KL_HIGH = _moved("group_spread", _SPREAD_FLOOR), _above("kl", 1.0)
_EQUAL, _COMPARABLE = _above("zero_spread", _EQUAL_GROUPS), _all(_unsolved, _little_for_the_reward)
_SIGNS = (_ENTROPY_FELL, _ENTROPY_ROSE, _all(_SPREAD_FELL, _COMPARABLE), _spikes, _KL_HIGH)


def _another_sign(history: History) -> bool:
    return any(sign(history) for sign in _SIGNS)


@dataclass(frozen=True)
class Rule:
    """One rule; it holds where there is a fault that nothing excuses.

    Attributes:
        name: Its name in settings and findings.
        needs: Figures that must be new for it to be looked at, and that a finding tells.
        fault: Whether its own figure is bad. The rule is not over while it is, whatever excuses it.
        limits: Its thresholds, which a finding tells.
        advice: What it means, which figures to look at, which key to change.
        given: What else must be so, else the run is excused, say by a reward that rose.
        at_once: It needs no patience.
        latest: It is about the latest value, not about a window.
        tells: More figures that a finding tells.
    """

    name: str
    needs: tuple[str, ...]
    fault: Condition
    limits: tuple[float, ...]
    advice: str
    given: Condition = _always
    at_once: bool = False
    latest: bool = False
    tells: tuple[str, ...] = ()

    def text(self, history: History) -> str:
        """Return this run's figures, start -> now, the limits, and the advice."""
        names = dict.fromkeys((*self.needs, *self.tells, "reward_mean"))
        spans = {name: span(history.values(name), history.window) for name in names}
        if self.latest:
            spans = {name: both and (both[0], history.values(name)[-1]) for name, both in spans.items()}
        said = [f"not finite {name}" for name in history.broken] + [f"{k} {arrow(both)}" for k, both in spans.items()]
        if self.fault is _reward_fell and history.best is not None:
            said.append(f"in its best window {history.best[0]:.3g}")
        limits = f" (limit {', '.join(f'{limit:g}' for limit in self.limits)})" if self.limits else ""
        return f"{', '.join(said)}{limits}: {self.advice}"


RULES = (
    Rule("mask", ("trained_share",), lambda history: not 0 < history.values("trained_share")[-1] < 1, (),
         "none of all tokens are trained on (nothing is learnt) or all (the environment's too): the action mask is "
         "wrong; look at one batch token by token, and at the chat template",
         at_once=True, latest=True),
    Rule("mask_shift", ("trained_share",), _mask_shift, (),
         "so sudden a change is rarely the policy's: look at the action mask of one batch, at the chat template and at "
         "how long the environment's observations are",
         latest=True),
    Rule("not_finite", (), lambda history: bool(history.broken), (),
         "look at the rows of this update; lower optimizer.learning_rate",
         at_once=True, latest=True),
    Rule("nothing_scored", ("unscored",), lambda history: history.values("unscored")[-1] >= 1, (),
         "no trajectory was scored, there is nothing to learn from; look at the errors beside the missing scores, the "
         "judge's server and limits.step_seconds",
         latest=True),
    Rule("unscored", ("unscored",), _above("unscored", 0.2), (0.2,),
         "what is learnt is biased to what could be judged; look at the errors beside the missing scores, the judge's "
         "server, limits.step_seconds and rollouts.max_tokens"),
    Rule("echo_trap", ("entropy", "group_spread"), _all(_ENTROPY_FELL, _SPREAD_FELL), (_ENTROPY_FLOOR, _SPREAD_FLOOR),
         "the policy repeats what was rewarded once and its groups have nothing left to compare; the reward falls next "
         "(RAGEN, 2504.20073); go back to the last good checkpoint with a lower optimizer.learning_rate, a higher "
         "objective.kl, objective.clip_high or rollouts.temperature, or a lower objective.keep_spread",
         given=_all(_COMPARABLE, _not(_improves))),
    Rule("collapse", ("reward_mean",), _reward_fell, (_REWARD_DROP,),
         "the policy is losing what it could do; go back to the last good checkpoint with a lower "
         "optimizer.learning_rate and a higher objective.kl, and look at its latest trajectories beside the best ones",
         given=_another_sign, tells=("entropy", "group_spread", "gradient", "kl")),
    Rule("reward", ("reward_mean",), _reward_fell, (_REWARD_DROP,),
         "harder tasks from the curriculum do this too; compare the success on the same tasks, and read the latest "
         "trajectories with their verdicts"),
    Rule("entropy", ("entropy",), _ENTROPY_FELL, (_ENTROPY_FLOOR,),
         "the policy hardly varies what it tries and stops exploring; raise objective.clip_high, objective.kl or "
         "rollouts.temperature, or lower optimizer.learning_rate",
         given=_not(_solved)),
    Rule("entropy_rise", ("entropy", "reward_mean"), _ENTROPY_ROSE, (_ENTROPY_FACTOR,),
         "the policy drifts into noise; read a few trajectories; lower optimizer.learning_rate or objective.clip_high, "
         "or raise objective.kl",
         given=_not_risen),
    Rule("spread", ("group_spread",), _SPREAD_FELL, (_SPREAD_FLOOR,),
         "the roll-outs of a task end alike, so that little is left to compare; set objective.dynamic=true, lower "
         "objective.keep_spread, raise rollouts.temperature, or take tasks of success near one half "
         "(rollouts.choice=learnability)",
         given=_COMPARABLE),
    Rule("zero_spread", ("zero_spread",), _EQUAL, (_EQUAL_GROUPS,),
         "such groups teach nothing; where all fail, the tasks are too hard or the reward rule is wrong; set "
         "objective.dynamic=true, raise rollouts.size, or take tasks of success near one half "
         "(rollouts.choice=learnability)",
         given=_unsolved),
    Rule("solved", ("zero_spread",), _EQUAL, (_EQUAL_GROUPS, _SOLVED),
         "this is no collapse: these tasks have nothing left to teach; end the run or take harder tasks",
         given=_solved),
    Rule("gradient", ("gradient",), _spikes, (_SPIKE,),
         "spikes that come again mark a collapse that does not heal (RAGEN, 2504.20073); lower "
         "optimizer.learning_rate or optimizer.clip, and look at KL and mismatch",
         at_once=True),
    Rule("kl", ("kl",), _KL_HIGH, (1.0,),
         "the policy is far from the offline checkpoint; raise objective.kl or lower optimizer.learning_rate, and "
         "check that KL counts agent tokens only"),
    Rule("mismatch", ("mismatch",), _above("mismatch", 0.1), (0.1,),
         "the updates are off-policy; check that the sampler has the newest weights, the same number format, template "
         "and temperature, and set sampler.correction"),
    Rule("length", ("length",), _moved("length", _LENGTH), (_LENGTH,),
         "a reward that grows with length invites this; look whether the longer trajectories succeed more; set "
         "objective.overlong_soft, or lower rollouts.max_steps"),
    Rule("short", ("length", "reward_mean"), _moved("length", 1 / _LENGTH), (_LENGTH,),
         "the policy gives up early or answers without trying; read a few trajectories with their verdicts",
         given=_not_risen),
    Rule("truncated", ("truncated",), _above("truncated", 0.5), (0.5,),
         "the policy cannot finish within its limits; look for loops, or raise rollouts.max_steps or "
         "rollouts.max_tokens"),
    Rule("invalid_calls", ("invalid_calls",), _above("invalid_calls", 0.3), (0.3,),
         "the policy calls tools that are not there, or with wrong arguments; train on refusals first "
         "(data.negatives of train_sft), and let an invalid call cost reward"),
    Rule("repeated_calls", ("repeated_calls",), _above("repeated_calls", 0.5), (0.5,),
         "the policy runs in circles; let a repeated call cost reward, raise rollouts.temperature, or choose some "
         "tools at random"),
    Rule("tools", ("tool_top",), _one_tool, (_TOP_TOOL,),
         "the policy relies on one tool; look whether the reward can be had by it alone; choose some tools at random, "
         "or raise rollouts.temperature",
         given=_all(_more_tools_before, _not(_solved)), tells=("tool_entropy",)),
)  # fmt: skip
"""In the order findings of one update are told: what makes the rest meaningless first."""

NAMES = tuple(rule.name for rule in RULES)
