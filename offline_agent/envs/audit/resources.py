"""Resources of an environment: seconds of its calls against the limits of a run, memory, sizes of observations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from offline_agent.envs.audit.plays import Plays
from offline_agent.envs.audit.report import Doubt
from offline_agent.envs.checks.suite import Checks
from offline_agent.envs.checks.trial import holding_of_one

NEARLY = 0.25  # share of a limit from which the audit warns
MOST_MEMORY = 2**30  # bytes of one instance from which it warns: a search keeps dozens


class Resources:
    """Checks of time and size, on the plays that the other checks made.

    Args:
        checks: Tasks and costs.
        plays: The plays, with their timings.
        reset_seconds, step_seconds: Limits of a run.
        measured: Figures of the present check are put here.
    """

    def __init__(
        self, checks: Checks, plays: Plays, reset_seconds: float, step_seconds: float, measured: dict[str, Any]
    ) -> None:
        self.checks = checks
        self.plays = plays
        self.limits = {"reset": reset_seconds, "call": step_seconds, "verdict": step_seconds}
        self.measured = measured

    def bounds(self) -> Iterator[str]:
        """No reset, call or verdict takes longer than a run waits for it."""
        self._play()
        timings = self.plays.timings
        for what, seconds in (("reset", timings.resets), ("call", timings.calls), ("verdict", timings.verdicts)):
            if not seconds:
                continue
            most, limit = max(seconds), self.limits[what]
            self.measured[what] = _spread([1000 * one for one in seconds], "ms")
            detail = f"a {what} took {most:.3g} s, the limit of a run is {limit:g} s"
            if most > limit:
                yield detail
            elif most > NEARLY * limit:
                yield Doubt(detail)

    def envelope(self) -> Iterator[str]:
        """The costs of one instance are known, and it is small enough to keep many."""
        self._play()
        costs, calls = self.checks.costs, self.plays.timings.calls
        if costs is not None:
            self.measured |= {
                "opening_ms": _ms(costs.opening), "reset_ms": _ms(costs.reset), "call_ms": _ms(costs.call),
                "copy_ms": None if costs.copy is None else _ms(costs.copy),
            }  # fmt: skip
        if calls and sum(calls):
            self.measured["steps_per_second"] = round(len(calls) / sum(calls))
        for task in self.checks.some():
            holding = holding_of_one(self.checks.spec, task)
            self.measured |= {"memory_bytes": holding.memory, "handles": holding.handles,
                              "processes": holding.processes}  # fmt: skip
            if holding.memory > MOST_MEMORY:
                yield Doubt(f"one instance holds {holding.memory / 2**20:.0f} MiB, so few states can be kept")
            break

    def sizes(self) -> Iterator[str]:
        """No observation of the expert or of random calls is cut."""
        texts = [
            context.observation
            for task in self.checks.some()
            for play in (self.plays.expert(task), *self.plays.chance(task)) if play is not None
            for context in play.context.lineage() if context.observation is not None
        ]  # fmt: skip
        cut = sum("\n[cut here: " in text[-120:] for text in texts)
        self.measured |= {"observations": len(texts), "cut": cut, "characters": _spread(list(map(len, texts)), "chars")}
        if cut:
            limit = self.checks.spec.max_observation_chars
            yield (
                f"{cut} of {len(texts)} observations are longer than limits.max_observation_chars={limit:,} and were "
                "cut: the policy does not see the rest"
            )

    def _play(self) -> None:
        """Make some plays where no other check did."""
        if not self.plays.timings.calls:
            for task in self.checks.some():
                self.plays.chance(task)


def _spread(values: Sequence[float], unit: str) -> dict[str, float]:
    ordered = sorted(values)
    return {
        f"median_{unit}": round(median(ordered), 3), f"p95_{unit}": round(ordered[int(0.95 * (len(ordered) - 1))], 3),
        f"most_{unit}": round(ordered[-1], 3),
    }  # fmt: skip


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
