"""Run directories with a few rows, made through the same code that `build_prefs` uses."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from offline_agent.policies.base import DEFAULT_MODEL
from offline_agent.preferences.dataset.export import pair_row, trajectory_row
from offline_agent.preferences.dataset.filters import impossible
from offline_agent.preferences.records import PreferencePair
from offline_agent.records import Action, Context, Step, Task, ToolCall, Trajectory, Verdict
from offline_agent.rendering import certificate
from offline_agent.rendering.renderer import Renderer
from offline_agent.store.columns import PAIR_TABLES, PREFERENCES, table_of
from offline_agent.store.run_directory import RunDirectory
from tests.helpers.rendering import TOOLS

MODEL = "0123456789abcdef"
GOOD = Verdict(1.0, True, "kit")


@cache
def renderer() -> Renderer:
    """Return the embedded tokenizer's renderer."""
    return Renderer.load(DEFAULT_MODEL)


def schemas() -> tuple[Any, ...]:
    """Return two tools, so that one can be taken away."""
    other = json.loads(json.dumps(TOOLS[0]).replace('"search"', '"buy"'))
    plain = json.loads(json.dumps([TOOLS[0], other]).replace("<|im_end|> or <|eot_id|>", "much"))
    return tuple(plain)


def start(number: int = 0, split: str = "train") -> Context:
    return Context(Task(f"{split}-{number}", split, {}), "Buy.", schemas(), f"Buy one red herb tea, number {number}.")


def act(query: str, sampled: bool = False) -> Action:
    """Return a search; a sampled one has ids and log-probabilities."""
    call = ToolCall("search", {"query": query})
    action = Action(renderer().write("", call), "", call)
    if not sampled:
        return action
    ids = renderer().encode_action(action)
    return renderer().parse(ids, [-0.1 * (n + 1) for n in range(len(ids))])


def steps(words: str, sampled: bool = False) -> tuple[Step, ...]:
    """Return one search for each word."""
    return tuple(Step(act(word, sampled), f"search {word}", f"page of {word}") for word in words.split())


def pair(
    number: int = 0, chosen: str = "tea", rejected: str = "cup", *, kind: Any = "step", split: str = "train",
    sampled: bool = True, model: str | None = MODEL, tokens: bool = True, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return a pair's row by the program's own names, with token columns or without."""
    facts = {"weight": 0.5, "confidence": 0.9, "tree_id": f"t{number}", "node_id": 3, **more}
    made = PreferencePair(
        kind, start(number, split), steps(chosen, sampled), steps(rejected, sampled), 0.75, 0.25, 4, 4,
        facts.pop("confidence"), GOOD, GOOD, **facts,
    )  # fmt: skip
    return pair_row(made, renderer() if tokens else None, model if sampled else None)


def trajectory(
    number: int = 0, words: str = "red tea", *, split: str = "train", verdict: Verdict | None = GOOD,
    origin: Any = "search", tokens: bool = True, given: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Return a row of `filtered` by the program's own names, with token columns or without."""
    context = start(number, split)
    done = steps(words)
    for step in done:
        context = context.child(step.action, step.observation)
    made = Trajectory(context, done[given:], verdict, True, False, origin)
    return trajectory_row(made, renderer() if tokens else None)


def resealed(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a changed row with a certificate that covers the change, as if it had been written so."""
    data = {name: value for name, value in certificate.parse(row["certificate"]).items() if name != "columns"}
    return {**row, "certificate": certificate.seal(json.dumps(data), row)}


def refusal(number: int = 0) -> dict[str, Any]:
    """Return a row of `filtered` that teaches to refuse."""
    made = impossible(start(number), "buy")
    assert made is not None
    return trajectory_row(made, renderer())


def run(
    path: Path, pairs: Sequence[Mapping[str, Any]] | None = None, filtered: Sequence[Mapping[str, Any]] | None = None,
    status: str | None = "done", executed: Sequence[Mapping[str, Any]] | None = None,
) -> str:  # fmt: skip
    """Write a run directory and return its path; status None leaves it running; `executed` is its trajectories/."""
    with RunDirectory.open(path, config={}, facts={}, command="build_prefs") as made:
        if pairs is not None:
            for table in PAIR_TABLES:
                rows = [row for row in pairs if table_of(row["chosen"], row["rejected"]) == table]
                if rows or table == PREFERENCES:
                    made.write_rows(table, rows)
        if filtered is not None:
            made.write_rows("filtered", filtered)
        if executed is not None:
            made.write_rows("trajectories", executed)
        if status is not None:
            made.finish(status)
    return str(path)


def lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> str:
    """Write JSON lines and return their path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)
