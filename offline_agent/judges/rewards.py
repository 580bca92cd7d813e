"""The composite reward: outcome first, shaping that can never overturn it, every part by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from offline_agent.errors import ConfigError
from offline_agent.records import Step, Trajectory

CALL_FAULTS = frozenset({"unknown_tool", "bad_arguments"})
LengthRule = Literal["linear", "sigmoid", "dapo", "none"]
Unit = Literal["steps", "tokens", "characters"]


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward and what it is made of.

    Attributes:
        value: Scaled to [0, 1] over the reward's whole range; None where there is no score.
        raw: The weighted sum itself; None likewise.
        parts: Unweighted terms by name: `outcome` and `format` in [0, 1], `tool` in [-cap, 1], `length` in [0, 1]
            (how much of the greatest length penalty is due).
        error: Why there is no score; None where there is one.
    """

    value: float | None
    raw: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None


class CompositeReward:
    """r = w_o·outcome + w_f·format + w_t·tool + w_l·length (docs/verifiers.md, "The composite reward").

    Called with a trajectory it returns the reward scaled to [0, 1], as a search backs it up: (r − least) / (greatest −
    least) of what the weights allow. The scaling is affine, so it changes no order and no comparison of means.
    Whatever the parts are, a success gets more than a failure; weights that could not keep this are refused.

    Args:
        outcome: Weight of the verdict: 1 for a success, min(score, failure_ceiling) for a failure.
        format: Weight of the share of turns that parse.
        tool: Weight of tool shaping: a tool is right if it exists, and arguments if they fit its schema.
        length: Weight of the length penalty; at most 0.
        failure_ceiling: Most that partial credit gives a failure, in [0, 1).
        duplicate_penalty: Per call equal to the one before it.
        unknown_tool_penalty: Per call to a tool that does not exist.
        cap: Least value of the tool term is −cap.
        length_rule: `linear`: λ·max(0, T − target), at most 1. `sigmoid`: outcome·σ((T − target)/τ), which with
            length = −outcome is the form r·σ(−(T − target)/τ). `dapo`: linear inside the last `cache` before
            `longest`, 1 beyond (DAPO, Yu et al. 2025, eq. 13). `none`.
        unit: The unit of T: `steps`, `tokens` (no score where an action has no ids) or `characters`.
        target, slope, tau: T_target, λ and τ.
        longest, cache: L_max and L_cache of `dapo`.

    Raises:
        ConfigError: Every fault found; among them shaping whose largest possible sum could overturn the outcome.
    """

    def __init__(
        self,
        outcome: float = 1.0,
        format: float = 0.2,
        tool: float = 0.1,
        length: float = -0.05,
        *,
        failure_ceiling: float = 0.5,
        duplicate_penalty: float = 0.05,
        unknown_tool_penalty: float = 0.3,
        cap: float = 1.0,
        length_rule: LengthRule = "linear",
        unit: Unit = "steps",
        target: float = 10.0,
        slope: float = 0.1,
        tau: float = 5.0,
        longest: float = 4096.0,
        cache: float = 1024.0,
    ) -> None:
        self.weights = {"outcome": outcome, "format": format, "tool": tool, "length": length}
        self.failure_ceiling = failure_ceiling
        self.duplicate_penalty = duplicate_penalty
        self.unknown_tool_penalty = unknown_tool_penalty
        self.cap = cap
        self.length_rule = length_rule
        self.unit = unit
        self.target, self.slope, self.tau = target, slope, tau
        self.longest, self.cache = longest, cache
        faults = self._faults()
        if faults:
            raise ConfigError(faults)
        self.least = -tool * cap + length
        self.greatest = outcome + format + tool

    def __call__(self, trajectory: Trajectory) -> float | None:
        """Return the reward in [0, 1]; None where there is no score."""
        return self.judge(trajectory).value

    def judge(self, trajectory: Trajectory) -> Reward:
        """Return the reward with its parts; no score, and why, where the verdict has none or the length is unknown."""
        verdict = trajectory.verdict
        if verdict is None or verdict.score is None:
            why = "nobody judged the end state" if verdict is None else verdict.error
            return Reward(None, None, error=f"no outcome: {why}")
        size = self._size(trajectory.steps)
        if size is None:
            return Reward(None, None, error="an action has no token ids; set unit to steps or characters")
        outcome = 1.0 if verdict.success else min(verdict.score, self.failure_ceiling)
        parts = {
            "outcome": outcome,
            "format": _parsed(trajectory.steps),
            "tool": self._tool(trajectory.steps),
            "length": self._length(size, outcome),
        }
        raw = sum(self.weights[name] * part for name, part in parts.items())
        value = (raw - self.least) / (self.greatest - self.least)
        return Reward(min(1.0, max(0.0, value)), raw, parts)

    def _tool(self, steps: Sequence[Step]) -> float:
        """Return half for the right tools and half for the right arguments, less the penalties."""
        calls = [step for step in steps if step.action.call is not None]
        unknown = sum(step.fault == "unknown_tool" for step in calls)
        repeated = sum(a.key == b.key for a, b in zip(calls, calls[1:], strict=False))
        fitting = sum(step.fault not in CALL_FAULTS for step in calls)
        right = (len(calls) - unknown + fitting) / (2 * len(calls)) if calls else 0.0
        value = right - self.duplicate_penalty * repeated - self.unknown_tool_penalty * unknown
        return min(1.0, max(-self.cap, value))

    def _length(self, size: float, outcome: float) -> float:
        over = size - self.target
        if self.length_rule == "linear":
            return min(1.0, self.slope * max(0.0, over))
        if self.length_rule == "sigmoid":
            return outcome / (1 + math.exp(-max(-700.0, min(700.0, over / self.tau))))
        if self.length_rule == "dapo":
            return min(1.0, max(0.0, (size - (self.longest - self.cache)) / self.cache))
        return 0.0

    def _size(self, steps: Sequence[Step]) -> float | None:
        if self.unit == "steps":
            return float(len(steps))
        if self.unit == "characters":
            return float(sum(len(step.action.text) for step in steps))
        if any(step.action.token_ids is None for step in steps):
            return None
        return float(sum(len(step.action.token_ids or ()) for step in steps))

    def _faults(self) -> list[str]:
        given = {**vars(self), **self.weights}
        faults = [
            f"reward.{name}: got {given[name]!r}, must be {allowed}"
            for (names, allowed), fits in _ALLOWED.items() for name in names.split() if not fits(given[name])
        ]  # fmt: skip
        for name, choices in (("length_rule", get_args(LengthRule)), ("unit", get_args(Unit))):
            if given[name] not in choices:
                faults.append(f"reward.{name}: got {given[name]!r}, allowed: {', '.join(choices)}")
        if faults:
            return faults
        weights = self.weights
        margin = weights["outcome"] * (1 - self.failure_ceiling)
        swing = weights["format"] + weights["tool"] * (1 + self.cap) - weights["length"]
        if swing < margin:
            return []
        return [
            f"reward: shaping could overturn the outcome: format {weights['format']:g} + tool {weights['tool']:g} × "
            f"(1 + cap {self.cap:g}) + |length| {-weights['length']:g} = {swing:g}, which must stay below outcome "
            f"{weights['outcome']:g} × (1 − failure_ceiling {self.failure_ceiling:g}) = {margin:g}; raise outcome, or "
            "lower the others or failure_ceiling"
        ]


_ALLOWED: dict[tuple[str, str], Callable[[float], bool]] = {
    ("outcome format tool", "a number of at least 0"): lambda value: 0 <= value < math.inf,
    ("length", "at most 0 (it weighs a penalty)"): lambda value: -math.inf < value <= 0,
    ("failure_ceiling", "in [0, 1)"): lambda value: 0 <= value < 1,
    ("duplicate_penalty unknown_tool_penalty cap slope target", "at least 0"): lambda value: value >= 0,
    ("tau longest cache", "above 0"): lambda value: value > 0,
}
"""(Arguments, what they must be) → whether a value is that."""


def _parsed(steps: Sequence[Step]) -> float:
    """Return the share of turns that parse."""
    return sum(step.action.fault is None for step in steps) / len(steps) if steps else 0.0
