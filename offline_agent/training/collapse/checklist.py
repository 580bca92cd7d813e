"""The order in which to look when an online run goes wrong, with this run's figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from offline_agent.training.collapse.history import read

_WINDOW = 5
_TOOLS = 3
Span = tuple[float, float]


def checklist(records: Iterable[Mapping[str, Any]], window: int = _WINDOW) -> list[tuple[str, str]]:
    """Return seven lines, in the order in which to look: reward first, sample efficiency last.

    Args:
        records: Of the updates so far, first to last.
        window: Updates whose median stands for the start, and for now.

    Returns:
        Name and line of each: figures at the start -> now (`not measured` where there are none), then what to ask.

    Raises:
        DataError: A figure is neither a number nor None.
    """
    told = list(records)
    read_ = [read(record).numbers for record in told]

    def values(name: str) -> list[float]:
        return [numbers[name] for numbers in read_ if name in numbers]

    def show(words: str, name: str, form: str = ".3g") -> str:
        return f"{words} {_arrow(_span(values(name), window), form)}"

    reward = [show("mean", "reward_mean"), show("success", "success_mean", ".0%"), show("unscored", "unscored", ".0%")]
    best = _best(values("reward_mean"), window)
    if best is not None:
        reward.insert(1, f"best {best:.3g}")
    length = [show("agent tokens", "length"), show("steps", "steps"), show("truncated", "truncated", ".0%")]
    mask = [show("share of all tokens that is trained on", "trained_share")]
    kl = [
        show("KL", "kl"),
        show("entropy", "entropy"),
        show("clipped low", "clip_low_fraction", ".1%"),
        show("high", "clip_high_fraction", ".1%"),
        show("gradient norm", "gradient"),
        show("mismatch", "mismatch"),
    ]
    spread = [show("within a group", "group_spread"), show("groups without any", "zero_spread", ".0%")]
    tools = [
        _tools(told, window),
        show("invalid", "invalid_calls", ".0%"),
        show("repeated", "repeated_calls", ".0%"),
    ]
    efficiency = [_efficiency(read_, window), show("spread of all rewards", "reward_std")]
    return [
        ("reward", _line(reward, "do most trajectories get 0? is the rule wrong, or is it being gamed?")),
        ("length", _line(length, "are most cut off? then the policy cannot finish")),
        ("mask", _line(mask, "does it leave out prompt, observations and padding? it must be between 0 and 1, steady")),
        (
            "KL",
            _line(
                kl,
                "KL blows up: raise objective.kl; entropy collapses: raise objective.clip_high or rollouts.temperature",
            ),
        ),
        (
            "group spread",
            _line(spread, "are many groups all 0 or all 1? set objective.dynamic=true, or choose other tasks"),
        ),
        ("tool histogram", _line(tools, "one tool for everything? choose some tools at random; let repeats cost")),
        (
            "sample efficiency",
            _line(efficiency, "do roll-outs of one task differ too much? then the offline checkpoint is too weak"),
        ),
    ]


def _line(figures: list[str], question: str) -> str:
    return f"{', '.join(figures)} - {question}"


def _span(values: list[float], window: int) -> Span | None:
    """Medians of the first and the last window; smaller ones where these would overlap."""
    if not values:
        return None
    size = max(1, min(window, len(values) // 2))
    return median(values[:size]), median(values[-size:])


def _arrow(span: Span | None, form: str) -> str:
    if span is None:
        return "not measured"
    start, now = (format(value, form) for value in span)
    return now if start == now else f"{start} -> {now}"


def _best(values: list[float], window: int) -> float | None:
    size = max(1, min(window, len(values) // 2))
    return max((median(values[end - size : end]) for end in range(size, len(values) + 1)), default=None)


def _tools(records: list[Mapping[str, Any]], window: int) -> str:
    """The most used tools of the latest updates, with their shares at the start and now."""
    histograms = [record["tools"] for record in records if record.get("tools")]
    names = {tool for histogram in histograms for tool in histogram}
    # a tool that an update never called has share 0 in it
    series = {name: [_number(histogram.get(name)) for histogram in histograms] for name in names}
    spans = {name: span for name, values in series.items() if (span := _span(values, window)) is not None}
    if not spans:
        return "calls not measured"
    used = sorted(spans, key=lambda name: (-spans[name][1], name))
    more = f" and {len(used) - _TOOLS} more" if len(used) > _TOOLS else ""
    return "calls " + ", ".join(f"{name} {_arrow(spans[name], '.0%')}" for name in used[:_TOOLS]) + more


def _number(value: Any) -> float:
    number = float(value or 0)
    return number if math.isfinite(number) else 0.0


def _efficiency(numbers: list[dict[str, float]], window: int) -> str:
    """Return the gain for the environment steps taken."""
    steps = max((each["env_steps"] for each in numbers if "env_steps" in each), default=0.0)
    measured = "success_mean" if any("success_mean" in each for each in numbers) else "reward_mean"
    span = _span([each[measured] for each in numbers if measured in each], window)
    if span is None or not steps:
        return "gain for each environment step not measured"
    gain, word = span[1] - span[0], measured.removesuffix("_mean")
    return f"{word} {gain:+.3g} in {steps:.0f} environment steps ({gain / steps * 1000:+.3g} a thousand)"
