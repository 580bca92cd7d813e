"""Episodes under a chat template that drops the thoughts of answered turns, and what each turn was given."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from offline_agent.preferences.dataset.export import pair_row, trajectory_row
from offline_agent.preferences.records import PreferencePair
from offline_agent.records import Action, Context, Step, Task, ToolCall, Trajectory, Verdict
from offline_agent.rendering.renderer import Renderer
from tests.helpers import rendering as kit

GOOD = Verdict(1.0, True, "kit")
TOOLS = ({"type": "function", "function": {"name": "search", "description": "Find.", "parameters": {}}},)
Turn = tuple[list[int], list[int]]


@cache
def renderer() -> Renderer:
    """Return a renderer with Qwen 3's own chat template."""
    return Renderer(kit.of_trl("qwen3"))


def act(thought: str, query: str | None = None) -> Action:
    """Return a turn as if it had been sampled, with a thought before it."""
    call = None if query is None else ToolCall("search", {"query": query})
    text = f"<think>\n{thought}\n</think>\n\nI say {thought}."
    ids = renderer().encode_action(Action(renderer().write(text, call), text, call))
    return renderer().parse(ids, [-0.1 * (1 + n % 7) for n in range(len(ids))])


def start(number: int = 0) -> Context:
    return Context(Task(f"train-{number}", "train", {}), "Buy.", TOOLS, f"Buy tea {number}.")


def steps(words: str) -> tuple[Step, ...]:
    """Return a turn for each word; one in capitals makes no call, and the user answers it."""
    return tuple(
        Step(act(word), word, f"user on {word}", "user")
        if word.isupper()
        else Step(act(word, word), word, f"page of {word}")
        for word in words.split()
    )


def follow(context: Context, done: Sequence[Step]) -> Context:
    for step in done:
        context = context.child(step.action, step.observation, step.role)
    return context


def trajectory(number: int = 0, words: str = "red SO tea OK cup") -> tuple[dict[str, Any], Context]:
    """Return a row of `filtered` by the program's own names, and its last context."""
    done = steps(words)
    last = follow(start(number), done)
    return trajectory_row(Trajectory(last, done, GOOD, True, False, "search"), renderer()), last


def pair(number: int = 0, before: str = "red SO", chosen: str = "tea OK cup", rejected: str = "mug") -> Any:
    """Return a pair's row, and the last context of its sides."""
    prefix = follow(start(number), steps(before))
    sides = steps(chosen), steps(rejected)
    made = PreferencePair("trajectory", prefix, *sides, 0.75, 0.25, 4, 4, 0.9, GOOD, GOOD, tree_id="t")
    return pair_row(made, renderer(), None), [follow(prefix, side) for side in sides]


def given(last: Context, first: int = 0) -> list[Turn]:
    """Return what each turn after the first ones was given, and its sampled ids."""
    nodes = last.lineage()[first + 1 :]
    return [(renderer().context_ids(node.parent), list(node.action.token_ids)) for node in nodes]


def shown(sequences: Sequence[Any]) -> list[Turn]:
    """Return the same as sequences of ids and flags say it: what stands before each run of flagged ids, and the run."""
    out = []
    for ids, flags in sequences:
        edges = [at for at in range(len(ids) + 1) if [*flags, 0][at] != [0, *flags][at]]
        out += [(list(ids[:a]), list(ids[a:b])) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    return out


def messages(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without ids."""
    return {"messages": json.loads(json.dumps(row["messages"])), "tools": row["tools"], "success": True}
