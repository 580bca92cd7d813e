"""Writes pairs of one kind out of a run, as a file for `train_dpo`: arms of `arms.py` that learn from those alone.

Run `python benchmarks/_pairs.py WAY ENVIRONMENT RUN FOLDER`, with the keys of ENVIRONMENT in one text; the pairs are in
FOLDER/pairs.jsonl, as messages. WAY is one of `WAYS`.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml

from offline_agent.envs.base import EnvSpec

CONFIDENCE, DRAWS, LIKELY = 0.9, 20_000, 0.2
FIRST = 4  # most pairs of one state

Row = dict[str, Any]


def _steps(run: Path) -> Iterator[Row]:
    """Yield the step pairs of a run."""
    for row in pq.read_table(run / "preferences").to_pylist():
        if row["kind"] == "step":
            sides = {side: [_parsed(message) for message in row[side]] for side in ("prompt", "chosen", "rejected")}
            yield row | sides | {"tools": json.loads(row["tools"])}


def _parsed(message: Any) -> Row:
    return json.loads(message) if isinstance(message, str) else message


def statistical(environment: str, run: Path) -> Iterator[Row]:
    """Yield the step pairs as they are: estimates of two values that differ."""
    yield from _steps(run)


def critical(environment: str, run: Path) -> Iterator[Row]:
    """Yield the step pairs that ends settle: one action replaced, and the policy went on to a verified success."""
    yield from (row for row in _steps(run) if row["confidence"] == 1)


def solver(environment: str, run: Path) -> Iterator[Row]:
    """Yield the pairs of `critical` with the expert's action as the chosen side."""
    name, *rest = (key.partition("=")[2] if key.startswith("env=") else key for key in environment.split())
    spec = EnvSpec.load(name, {key.removeprefix("env."): yaml.safe_load(text) for key, _, text in _split(rest)})
    rows = list(critical(environment, run))
    wanted = {row["task_id"] for row in rows}
    tasks = {}
    for task in spec.tasks("train"):
        if task.task_id in wanted:
            tasks[task.task_id] = task
            if len(tasks) == len(wanted):
                break
    assert spec.demonstrate is not None, f"{name} has no expert"
    for row in rows:
        message = spec.demonstrate(tasks[row["task_id"]].args, row["prompt"], random.Random(0), 0.0)
        if _call(message) != _call(row["rejected"][0]):
            yield row | {"chosen": [message]}


def likely(environment: str, run: Path) -> Iterator[Row]:
    """Yield the step pairs whose rejected action the policy that searched sampled with `LIKELY` or more."""
    yield from (row for row in _steps(run) if math.exp(sum(row["tokens_ref_rejected_logps"])) >= LIKELY)


def pooled(environment: str, run: Path) -> Iterator[Row]:
    """Yield pairs of plain attempts: two actions in the same state of a task, whatever led there.

    The last observation is the state: what Countdown and FrozenLake show is all there is. An action's value is
    Beta(½ + successes, ½ + failures) over the attempts that took it there; a pair's P(Q_w > Q_l) is `CONFIDENCE` or
    more.
    """
    states: dict[tuple[str, str], dict[str, list[Any]]] = {}
    for row in pq.read_table(run / "trajectories").to_pylist():
        messages = [_parsed(message) for message in row["messages"]]
        for place, message in enumerate(messages):
            if message["role"] == "assistant" and message.get("tool_calls"):
                actions = states.setdefault((row["task_id"], messages[place - 1]["content"]), {})
                tally = actions.setdefault(_call(message), [0, 0, messages[:place], message, json.loads(row["tools"])])
                tally[0 if row["success"] else 1] += 1
    rng = np.random.default_rng(0)
    for (task, _), actions in states.items():
        drawn = [rng.beta(0.5 + won, 0.5 + lost, DRAWS) for won, lost, *_ in actions.values()]
        taken = list(actions.values())
        best = int(np.argmax([one.mean() for one in drawn]))
        found = []
        for other, values in enumerate(drawn):
            sure = float((drawn[best] > values).mean())
            if other != best and taken[best][0] and sure >= CONFIDENCE:
                found.append((sure, other))
        for sure, other in sorted(found, reverse=True)[:FIRST]:
            _, _, prompt, message, tools = taken[best]
            yield {
                "prompt": prompt, "chosen": [message], "rejected": [taken[other][3]], "tools": tools, "task_id": task,
                "confidence": sure,
            }  # fmt: skip


def _split(keys: list[str]) -> Iterator[tuple[str, str, str]]:
    return (key.partition("=") for key in keys)


def _call(message: Row) -> str:
    return json.dumps([call["function"] for call in message.get("tool_calls") or ()], sort_keys=True)


WAYS = {way.__name__: way for way in (statistical, critical, solver, likely, pooled)}
"""By name."""

if __name__ == "__main__":
    way, environment, run, folder = sys.argv[1:]
    columns = ("prompt", "chosen", "rejected", "tools", "task_id", "confidence")
    rows = [json.dumps({column: row[column] for column in columns}) for row in WAYS[way](environment, Path(run))]
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / "pairs.jsonl").write_text("".join(row + "\n" for row in rows))
    (Path(folder) / "manifest.json").write_text('{"status": "done"}')
    print(f"{way}: {len(rows)} pairs")
