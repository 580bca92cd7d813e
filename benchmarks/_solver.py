"""Countdown's exact solver as the critic of a search, `search.critic=benchmarks/_solver.py:critic`."""

from __future__ import annotations

from collections.abc import Sequence

from offline_agent.envs.countdown import Numbers, after, result, shortest, without
from offline_agent.records import Action, Context


def state(context: Context) -> tuple[Numbers, int]:
    """Return the numbers that are left after a history, and the target."""
    shown = next(one.observation for one in reversed(context.lineage()) if (one.observation or "").startswith("left: "))
    numbers, _, target = str(shown).removeprefix("left: ").partition(" target ")
    return tuple(map(int, numbers.split())), int(target)


def moved(left: Numbers, action: Action) -> Numbers:
    """Return the numbers after an action; those before it where it is no legal move."""
    call = action.call
    if call is None or call.name != "combine":
        return left
    a, op, b = (call.arguments.get(name) for name in ("a", "op", "b"))
    if not isinstance(a, int) or not isinstance(b, int) or without(left, a, b) is None or not result(a, str(op), b):
        return left
    return after(left, (a, str(op), b))


def critic(context: Context, actions: Sequence[Action], seed: int) -> list[float]:
    """Return 1 for each action after which the target can still be made, else 0."""
    left, target = state(context)
    return [float(shortest(moved(left, action), target) is not None) for action in actions]
