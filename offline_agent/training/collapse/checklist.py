"""The order in which to look when an online run goes wrong, with this run's figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from offline_agent.training.collapse.history import arrow, read, span

_WINDOW = 5
_TOOLS = 3
_LINES: tuple[tuple[str, tuple[tuple[str, str, str], ...], str], ...] = (
    ("reward", (("mean", "reward_mean", ".3g"), ("success", "success_mean", ".0%"), ("unscored", "unscored", ".0%")),
     "do most trajectories get 0? is the rule wrong, or is it being gamed?"),
    ("length", (("agent tokens", "length", ".3g"), ("steps", "steps", ".3g"), ("truncated", "truncated", ".0%")),
     "are most cut off? then the policy cannot finish"),
    ("mask", (("share of all tokens that is trained on", "trained_share", ".3g"),),
     "does it leave out prompt, observations and padding? it must be between 0 and 1, steady"),
    ("KL", (("KL", "kl", ".3g"), ("entropy", "entropy", ".3g"), ("clipped low", "clip_low_fraction", ".1%"),
            ("high", "clip_high_fraction", ".1%"), ("gradient norm", "gradient", ".3g"),
            ("mismatch", "mismatch", ".3g")),
     "KL blows up: raise objective.kl; entropy collapses: raise objective.clip_high or rollouts.temperature"),
    ("group spread", (("within a group", "group_spread", ".3g"), ("groups without any", "zero_spread", ".0%")),
     "are many groups all 0 or all 1? set objective.dynamic=true, or choose other tasks"),
    ("tool histogram", (("invalid", "invalid_calls", ".0%"), ("repeated", "repeated_calls", ".0%")),
     "one tool for everything? choose some tools at random; let repeats cost"),
    ("sample efficiency", (("spread of all rewards", "reward_std", ".3g"),),
     "do roll-outs of one task differ too much? then the offline checkpoint is too weak"),
)  # fmt: skip
"""Name, figures (words, name, format) and question of each line."""


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
    numbers = [read(record)[0] for record in told]

    def values(name: str) -> list[float]:
        return [each[name] for each in numbers if name in each]

    first = {
        "tool histogram": _tools([record["tools"] for record in told if record.get("tools")], window),
        "sample efficiency": _efficiency(values("success_mean"), values("reward_mean"), values("env_steps"), window),
    }
    lines = []
    for name, figures, question in _LINES:
        said = [first[name]] if name in first else []
        said += [f"{words} {arrow(span(values(figure), window), form)}" for words, figure, form in figures]
        if name == "reward" and (rewards := values("reward_mean")):
            size = max(1, min(window, len(rewards) // 2))
            best = max(median(rewards[end - size : end]) for end in range(size, len(rewards) + 1))
            said.insert(1, f"best {best:.3g}")
        lines.append((name, f"{', '.join(said)} - {question}"))
    return lines


def _tools(histograms: list[Mapping[str, float | None]], window: int) -> str:
    """Return the most used tools of the latest updates, with their shares at the start and now."""
    # a tool that an update never called has share 0 in it
    series = {name: [histogram.get(name) or 0.0 for histogram in histograms] for each in histograms for name in each}
    spans = {name: both for name, values in series.items() if (both := span(values, window)) is not None}
    if not spans:
        return "calls not measured"
    used = sorted(spans, key=lambda name: (-spans[name][1], name))
    more = f" and {len(used) - _TOOLS} more" if len(used) > _TOOLS else ""
    return "calls " + ", ".join(f"{name} {arrow(spans[name], '.0%')}" for name in used[:_TOOLS]) + more


def _efficiency(success: list[float], reward: list[float], env_steps: list[float], window: int) -> str:
    """Return the gain for the environment steps taken."""
    both, steps = span(success or reward, window), max(env_steps, default=0.0)
    if both is None or not steps:
        return "gain for each environment step not measured"
    gain, word = both[1] - both[0], "success" if success else "reward"
    return f"{word} {gain:+.3g} in {steps:.0f} environment steps ({gain / steps * 1000:+.3g} a thousand)"
