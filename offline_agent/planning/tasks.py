"""Costs of a run on tasks: tokens, calls, rows, disk, and time where generation, tools and bookkeeping overlap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from offline_agent.planning.figures import Figure, Forecast, exactly, grown, rows, total, unknown

LACKING = "needs a probe (plan.probe=20), a finished run (plan.rates)"


@dataclass(frozen=True, slots=True)
class TaskCosts:
    """The costs of a finished run on tasks.

    Attributes:
        tokens, prompts, calls: By task: tokens sampled; prompt tokens, each computed once; tool calls.
        sizes: By task: a measure in proportion to its disk space.
        rows: By table: all rows, and rows by task.
        size: Bytes on disk.
        without_cache, computed: Prompt tokens of all requests; those that were computed; None = not known.
        replayed: Calls executed to restore states or to check pairs; None = not known.
        seconds: Wall seconds of the work on tasks; None = not known.
        generation, tools, driver: Busy seconds of the generators, of the environment threads (summed), of bookkeeping.
        threads: Number of threads that stepped environments.
        known: The planned run begins with the same tasks.
    """

    tokens: Sequence[float]
    prompts: Sequence[float]
    calls: Sequence[float]
    sizes: Sequence[float]
    rows: Mapping[str, tuple[float, Sequence[float]]] = field(default_factory=dict)
    size: float = 0.0
    without_cache: float | None = None
    computed: float | None = None
    replayed: float | None = None
    seconds: float | None = None
    generation: float = 0.0
    tools: float = 0.0
    driver: float = 0.0
    threads: int = 1
    known: bool = True

    @property
    def effort(self) -> Sequence[float]:
        """Return a measure of each task in proportion to its time: tokens, or calls where there are no tokens."""
        return self.tokens if sum(self.tokens) else self.calls


def figures(config: Any, tasks: int, found: TaskCosts | None, most_calls: int, most_tokens: int | None) -> list[Figure]:
    """Return the figures of a run on so many tasks.

    Args:
        config: The configuration; its sections `plan` and `limits` are used.
        tasks: Number of tasks.
        found: Costs of a reference run; None = the configuration and the values in `plan`.
        most_calls: Most tool calls of a task without faults.
        most_tokens: Most tokens sampled for a task without faults; None = the policy has no limit.
    """
    out = {figure.name: figure for figure in _amounts(config.plan, tasks, found, most_calls, most_tokens)}
    out["seconds_working"] = _seconds(config, tasks, found, {name: one.forecast for name, one in out.items()})
    if found is None:
        out["disk"] = unknown("disk", "bytes", LACKING)
    else:
        out["disk"] = Figure("disk", grown(found.size, found.sizes, tasks, found.known), "bytes", "the run directory")
    out |= {figure.name: figure for figure in _rows(config.plan, tasks, found)}
    return list(out.values())


def _amounts(
    plan: Any, tasks: int, found: TaskCosts | None, most_calls: int, most_tokens: int | None
) -> Iterator[Figure]:
    bound = "at most: every simulation or attempt as long as allowed, none of it repeated"
    if plan.tokens is not None:
        yield Figure("tokens_sampled", Forecast(tasks * plan.tokens), "tokens", "plan.tokens a task")
    elif found is not None:
        yield Figure("tokens_sampled", total(found.tokens, tasks, found.known), "tokens")
    elif most_tokens is None:
        yield unknown("tokens_sampled", "tokens", f"{LACKING} or plan.tokens")
    else:
        yield Figure("tokens_sampled", Forecast(high=tasks * most_tokens), "tokens", bound)
    yield from _prompts(plan, tasks, found)
    if plan.tool_calls is not None:
        yield Figure("tool_calls", Forecast(tasks * plan.tool_calls), "calls", "plan.tool_calls a task")
    elif found is not None:
        yield Figure("tool_calls", total(found.calls, tasks, found.known), "calls")
    else:
        yield Figure("tool_calls", Forecast(high=tasks * most_calls), "calls", bound)
    if found is not None and found.replayed is not None:
        replayed = grown(found.replayed, found.calls, tasks, found.known)
        yield Figure("calls_replayed", replayed, "calls", "to restore states and to check pairs")


def _prompts(plan: Any, tasks: int, found: TaskCosts | None) -> Iterator[Figure]:
    whole, name = Forecast(), "prompt_tokens_without_cache"
    if plan.prompt_tokens is not None:
        whole = Forecast(tasks * plan.prompt_tokens)
        yield Figure(name, whole, "tokens", "plan.prompt_tokens a task")
    elif found is not None and found.without_cache is not None:
        whole = grown(found.without_cache, found.prompts, tasks, found.known)
        yield Figure(name, whole, "tokens", "the prompts of all requests")
    else:
        yield unknown(name, "tokens", f"{LACKING} or plan.prompt_tokens" if found is None else "the run was resumed")
    name = "prompt_tokens_computed"
    if plan.cached is not None and whole.expected is not None:
        yield Figure(name, whole.times(1 - plan.cached), "tokens", f"with a prefix cache that spares {plan.cached:.0%}")
    elif found is not None and found.computed is not None and plan.prompt_tokens is None:
        computed = grown(found.computed, found.prompts, tasks, found.known)
        yield Figure(name, computed, "tokens", "with a prefix cache as it was there")
    else:
        yield unknown(name, "tokens", f"{LACKING} or plan.prompt_tokens with plan.cached")
    if found is not None:
        once = total(found.prompts, tasks, found.known)
        yield Figure("prompt_tokens_once", once, "tokens", "with a cache that forgets nothing, each task for itself")


def _rows(plan: Any, tasks: int, found: TaskCosts | None) -> Iterator[Figure]:
    if found is not None:
        for name, (amount, each) in found.rows.items():
            if name != "pairs" or plan.pairs is None:
                yield Figure(name, rows(amount, each, tasks, found.known), "rows")
    if plan.pairs is not None:
        yield Figure("pairs", Forecast(tasks * plan.pairs), "rows", "plan.pairs a task")
    elif found is None:
        yield unknown("pairs", "rows", f"{LACKING} or plan.pairs")


def _seconds(config: Any, tasks: int, found: TaskCosts | None, amounts: Mapping[str, Forecast]) -> Figure:
    """Return the wall time of the work on tasks, without start-up.

    Lower bound: generation, tools and bookkeeping overlap perfectly, so the longest of them counts. Expected: they
    overlap as little as they did in the reference run.
    """
    name, plan = "seconds_working", config.plan
    growth = Forecast(1.0) if found is None else _growth(found, tasks)
    generation = _generation(plan, found, growth, amounts)
    workers = plan.workers or config.limits.workers
    tools = _tools(plan, found, growth, amounts)
    if found is None:
        if generation is None or tools is None:
            lacking = "plan.tokens with plan.tokens_per_second, plan.tool_calls with plan.tool_seconds"
            return unknown(name, "seconds", f"{LACKING} or {lacking}")
        longest = max(generation / plan.generators, tools / workers)
        note = "if generation and tools overlap; the search's own work is not counted"
        return Figure(name, Forecast(longest), "seconds", note)
    if found.seconds is None:
        return unknown(name, "seconds", "the run was resumed: its seconds are not all known")
    assert generation is not None and tools is not None and growth.expected is not None  # there is a run to go by
    parts = {
        "generation": generation / plan.generators,
        "tools": tools / workers,
        "bookkeeping": found.driver * growth.expected,
    }
    rest = max(0.0, found.seconds - max(found.generation, found.tools / found.threads, found.driver))
    which, longest = max(parts.items(), key=lambda part: part[1])
    expected = longest + rest * growth.expected
    low = None if growth.low is None else longest * growth.low / growth.expected
    high = None if growth.high is None else expected * growth.high / growth.expected
    note = f"start-up not counted; longest part: {which} {longest / expected:.0%}" if expected else ""
    return Figure(name, Forecast(expected, low, high), "seconds", note)


def _growth(found: TaskCosts, tasks: int) -> Forecast:
    """Return the ratio of the planned work to the work of the reference run."""
    effort = found.effort
    return total(effort, tasks, found.known).times(1 / sum(effort)) if sum(effort) else exactly(tasks / len(effort))


def _generation(plan: Any, found: TaskCosts | None, growth: Forecast, amounts: Mapping[str, Forecast]) -> float | None:
    """Return the busy seconds of a single generator; None = not known."""
    if plan.tokens_per_second is None:
        if found is None or growth.expected is None:
            return None
        return found.generation * growth.expected
    sampled, computed = amounts["tokens_sampled"].expected, amounts["prompt_tokens_computed"].expected
    if sampled is None:
        return None
    prompt = 0.0
    if plan.prompt_tokens_per_second is not None:
        if computed is None:
            return None
        prompt = computed / plan.prompt_tokens_per_second
    return sampled / plan.tokens_per_second + prompt


def _tools(plan: Any, found: TaskCosts | None, growth: Forecast, amounts: Mapping[str, Forecast]) -> float | None:
    """Return the busy seconds of a single environment thread; None = not known."""
    if plan.tool_seconds is None:
        return None if found is None or growth.expected is None else found.tools * growth.expected
    calls = amounts["tool_calls"].expected
    replayed = amounts.get("calls_replayed", Forecast()).expected or 0.0
    return None if calls is None else (calls + replayed) * plan.tool_seconds
