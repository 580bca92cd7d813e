"""Conditions of the collapse watch: each returns the figures to report where its rule holds."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

from offline_agent.training.collapse.history import History

if TYPE_CHECKING:
    from offline_agent.training.collapse.watch import WatchSettings

Condition = Callable[[History, "WatchSettings"], str | None]
"""Returns this run's figures where the rule holds, None where it does not or cannot be told."""

Stays = Callable[[History, "WatchSettings"], bool]
"""Whether a rule's own figure is still bad, whatever excuses it."""

_RISEN = 1.2  # a reward this many times its start has risen
_IMPROVES = 1.02  # a reward this many times its best so far still improves
_SHIFT = 3.0  # odds of a token being trained on; longer episodes change them slowly
_TOOLS_LEFT = 0.5  # of the start's entropy of the tool histogram
_LONG = 10  # windows of history a gradient is compared with


def _change(history: History, name: str, words: str) -> str:
    """Say a figure's first and latest median."""
    both = history.apart(name)
    if both is None:
        recent = history.recent(name) or list(history.values(name))
        return f"{words} {median(recent):.3g}" if recent else f"{words} not measured"
    return f"{words} {median(both[0]):.3g} -> {median(both[1]):.3g}"


def _reward(history: History) -> str:
    return _change(history, "reward_mean", "mean reward")


def _solved(history: History, settings: WatchSettings) -> bool | None:
    """Return whether nearly every roll-out succeeds; None where it is not known."""
    recent = history.recent("success_mean") or history.recent("reward_mean")
    return median(recent) >= settings.solved if recent else None


def _risen(history: History) -> bool | None:
    both = history.apart("reward_mean")
    if both is None:
        return None
    return history.grew("reward_mean", _RISEN) or median(both[0]) <= 0 < min(both[1])


def _improves(history: History) -> bool:
    best = history.best("reward_mean")
    return best is not None and median(history.recent("reward_mean")) > _IMPROVES * best[0]


def fell(name: str, share: str) -> Stays:
    """A figure is below a share of its start; the share is named by its setting."""
    return lambda history, settings: history.fell(name, getattr(settings, share))


def exceeds(name: str, ceiling: str) -> Stays:
    """A figure's latest median is above a ceiling, which is named by its setting."""

    def stays(history: History, settings: WatchSettings) -> bool:
        recent = history.recent(name)
        return bool(recent) and median(recent) > getattr(settings, ceiling)

    return stays


def entropy_rose(history: History, settings: WatchSettings) -> bool:
    """Entropy is above a multiple of its start."""
    return history.grew("entropy", settings.entropy_factor)


def shorter(history: History, settings: WatchSettings) -> bool:
    """Trajectories are shorter by the factor of lengths."""
    return history.fell("length", 1 / settings.length_factor)


def both_fell(history: History, settings: WatchSettings) -> bool:
    """Entropy and the spread within groups are below their shares of the start."""
    return history.fell("entropy", settings.entropy_floor) and history.fell("group_spread", settings.spread_floor)


def less_reward(history: History, settings: WatchSettings) -> bool:
    """The reward is below its best."""
    return reward_fell(history, settings) is not None


def _entropy_fell(history: History, settings: WatchSettings) -> bool:
    return history.fell("entropy", settings.entropy_floor) and not _solved(history, settings)


def entropy(history: History, settings: WatchSettings) -> str | None:
    """Entropy a token fell below its share of the start, and the tasks are not solved."""
    if not _entropy_fell(history, settings):
        return None
    figures = _change(history, "entropy", "entropy a token fell")
    return f"{figures} nats, below {settings.entropy_floor:g} of its start; {_reward(history)}"


def entropy_rise(history: History, settings: WatchSettings) -> str | None:
    """Entropy a token rose above a multiple of its start, and the reward did not rise."""
    if not entropy_rose(history, settings) or _risen(history) is not False:
        return None
    figures = _change(history, "entropy", "entropy a token rose")
    return f"{figures} nats, more than {settings.entropy_factor:g} times its start; {_reward(history)}"


def _spread_fell(history: History, settings: WatchSettings) -> bool:
    """Raw, and beside what the mean reward allows where rewards are in [0, 1]."""
    if _solved(history, settings) is not False or not history.fell("group_spread", settings.spread_floor):
        return False
    return history.apart("relative_spread") is None or history.fell("relative_spread", settings.spread_floor)


def spread(history: History, settings: WatchSettings) -> str | None:
    """The spread of rewards within a group fell below its share of the start."""
    if not _spread_fell(history, settings):
        return None
    figures = _change(history, "group_spread", "spread of the rewards within a group fell")
    return f"{figures}, below {settings.spread_floor:g} of its start; {_reward(history)}"


def zero_spread(history: History, settings: WatchSettings) -> str | None:
    """Too many groups have equal rewards, and the tasks are not solved."""
    recent = history.recent("zero_spread")
    if not recent or median(recent) <= settings.zero_spread_ceiling or _solved(history, settings) is not False:
        return None
    success = median(history.recent("success_mean") or history.recent("reward_mean"))
    failed = success <= 1 - settings.solved
    kind = "and nearly all fail" if failed else "some solved and others failed by every roll-out"
    return f"{median(recent):.0%} of the groups have no spread of rewards, {kind}; {_reward(history)}"


def all_solved(history: History, settings: WatchSettings) -> str | None:
    """Too many groups have equal rewards because the tasks are solved."""
    recent = history.recent("zero_spread")
    if not recent or median(recent) <= settings.zero_spread_ceiling or not _solved(history, settings):
        return None
    return f"{median(recent):.0%} of the groups have no spread of rewards because all is solved; {_reward(history)}"


def gradient(history: History, settings: WatchSettings) -> str | None:
    """Several recent gradient norms are far above the usual one."""
    values, window = history.values("gradient"), history.window
    if len(values) < 2 * window:
        return None
    # later history counts too: a run whose first groups had no spread starts with hardly any gradient
    usual = max(median(values[:window]), median(values[:-window][-_LONG * window :]))
    spikes = [value for value in values[-window:] if usual > 0 and value > settings.gradient_factor * usual]
    if len(spikes) < settings.patience:
        return None
    return (
        f"{len(spikes)} of the last {window} gradient norms are more than {settings.gradient_factor:g} times the usual "
        f"{usual:.3g}, up to {max(spikes):.3g}; {_reward(history)}"
    )


def length(history: History, settings: WatchSettings) -> str | None:
    """Trajectories grew by the factor of lengths."""
    if not history.grew("length", settings.length_factor):
        return None
    return f"{_change(history, 'length', 'agent tokens a trajectory')}; {_reward(history)}"


def short(history: History, settings: WatchSettings) -> str | None:
    """Trajectories shrank by the factor of lengths, and the reward did not rise."""
    if not shorter(history, settings) or _risen(history) is not False:
        return None
    return f"{_change(history, 'length', 'agent tokens a trajectory')}; {_reward(history)}, not risen"


def tools(history: History, settings: WatchSettings) -> str | None:
    """One tool takes nearly all calls, which it did not at the start."""
    both = history.apart("tool_top")
    if both is None or median(both[0]) >= settings.tool_ceiling or median(both[1]) < settings.tool_ceiling:
        return None
    if not history.fell("tool_entropy", _TOOLS_LEFT) or _solved(history, settings):
        return None
    return (
        f"the most used tool takes {median(both[1]):.0%} of the calls, at first {median(both[0]):.0%} (now "
        f"{history.top_tool}); {_change(history, 'tool_entropy', 'entropy of the tools')} nats; {_reward(history)}"
    )


def reward_fell(history: History, settings: WatchSettings) -> str | None:
    """The mean reward is below its best window by the share `reward_drop`."""
    best, recent = history.best("reward_mean"), history.recent("reward_mean")
    # no recent value may reach the best window's least: the best of many windows is partly luck
    if best is None or best[0] <= 0 or max(recent) >= best[1]:
        return None
    if median(recent) >= (1 - settings.reward_drop) * best[0]:
        return None
    return f"mean reward {median(recent):.3g}, in its best window {best[0]:.3g}"


def echo_trap(history: History, settings: WatchSettings) -> str | None:
    """Entropy and spread within groups both fell while the reward does not improve (RAGEN, arXiv 2504.20073)."""
    if not (_entropy_fell(history, settings) and _spread_fell(history, settings)) or _improves(history):
        return None
    return (
        f"{_change(history, 'entropy', 'entropy a token')} nats and "
        f"{_change(history, 'group_spread', 'spread within a group')} both fell while the reward does not improve; "
        f"{_reward(history)}"
    )


def collapse(history: History, settings: WatchSettings) -> str | None:
    """The mean reward fell, and at least one other sign of a collapse is there."""
    fell = reward_fell(history, settings)
    if fell is None:
        return None
    signs = {
        "entropy fell": history.fell("entropy", settings.entropy_floor),
        "entropy rose": entropy_rose(history, settings),
        "the spread within groups fell": _spread_fell(history, settings),
        "gradients spike": gradient(history, settings) is not None,
        "KL is above its ceiling": KL_ABOVE(history, settings) is not None,
    }
    found = [sign for sign, holds in signs.items() if holds]
    return f"{fell}, and {', '.join(found)}" if found else None


def mask(history: History, settings: WatchSettings) -> str | None:
    """No token or every token is trained on."""
    share = history.values("trained_share")[-1]
    return None if 0 < share < 1 else f"{share:.4g} of all tokens are trained on, allowed: more than 0 and less than 1"


def mask_shift(history: History, settings: WatchSettings) -> str | None:
    """The odds of a token being trained on changed by more than a factor within few updates."""
    values, window = history.values("trained_share"), history.window
    before = values[: -settings.patience][-window:]
    if len(before) < window:
        return None
    usual, now = median(before), values[-1]
    if not (0 < usual < 1 and 0 < now < 1):
        return None
    factor = (now / (1 - now)) / (usual / (1 - usual))
    if 1 / _SHIFT <= factor <= _SHIFT:
        return None
    return f"{now:.3g} of all tokens are trained on, a few updates ago {usual:.3g}"


def nothing_scored(history: History, settings: WatchSettings) -> str | None:
    """No trajectory of the last updates was scored."""
    return "no trajectory of the last updates was scored" if history.values("unscored")[-1] >= 1 else None


def not_finite(history: History, settings: WatchSettings) -> str | None:
    """A figure is not a finite number."""
    return f"not a finite number: {', '.join(history.broken)}" if history.broken else None


def above(name: str, key: str, words: str, form: str = ".0%") -> Condition:
    """Return the condition that a figure's latest median is above the ceiling of the setting `key`."""

    def holds(history: History, settings: WatchSettings) -> str | None:
        recent, ceiling = history.recent(name), getattr(settings, key)
        if not recent or median(recent) <= ceiling:
            return None
        return f"{words.format(format(median(recent), form))}, watch.{key} is {ceiling:g}; {_reward(history)}"

    return holds


KL_ABOVE = above("kl", "kl_ceiling", "KL to the reference is {} nats an agent token", ".3g")
