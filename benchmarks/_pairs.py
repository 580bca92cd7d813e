"""Writes pairs of one kind out of a run, as a file for `train_dpo`: arms of `arms.py` that learn from those alone.

Run `python benchmarks/_pairs.py WAY ENVIRONMENT RUN FOLDER`, with the keys of ENVIRONMENT in one text; the pairs are in
FOLDER/pairs.jsonl, as messages. WAY is one of `WAYS`. Every pair is of two actions in the same state of a task,
whatever led there: what Countdown and FrozenLake show is the whole state. Calls that are refused are left out.
"""

from __future__ import annotations

import json
import math
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pyarrow.parquet as pq
import yaml

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.countdown import after, shortest

CONFIDENCE, DRAWS, LIKELY = 0.95, 20_000, 0.2  # one success against one failure is 0.905
MOST = 4  # pairs of one state
_STATE = re.compile(r"left: .* target \d+|You are in row \d+, column \d+")  # an error shows no state

Message = dict[str, Any]


@dataclass
class Taken:
    """An action that branches of a task took in a state.

    Attributes:
        prompt, message: The history and the turn of the first of these branches.
        tools: Schemas of the tools.
        probability: With which the policy sampled the turn then.
        won, lost: Branches that went on to a verified success, and to a verified failure; one that a limit cut is
            neither.
    """

    prompt: list[Message]
    message: Message
    tools: list[Any]
    probability: float
    won: int = 0
    lost: int = 0


Pair = tuple[Taken, Taken, float]
"""Chosen, rejected, P(Q_w > Q_l)."""


def states(run: Path) -> Iterator[tuple[str, list[Taken]]]:
    """Yield the task and the actions of each state of a run; an action counts once a branch."""
    found: dict[tuple[str, str], dict[str, Taken]] = {}
    for row in pq.read_table(run / "trajectories").to_pylist():
        messages = [json.loads(one) if isinstance(one, str) else one for one in row["messages"]]
        tools, sampled = json.loads(row["tools"]), _sampled(row["tokens_action_mask"], row["tokens_logps"])
        shown, seen = "", set()
        for place, message in enumerate(messages):
            if message["role"] != "assistant":
                state = _STATE.search(message["content"])
                shown = state.group() if state else shown
                continue
            probability, answer = next(sampled), messages[place + 1 : place + 2]
            if not message.get("tool_calls") or not answer or not _STATE.search(answer[0]["content"]):
                continue
            actions = found.setdefault((row["task_id"], shown), {})
            new = Taken(messages[:place], message, tools, probability)
            action = actions.setdefault(_call(message), new)
            if (shown, _call(message)) not in seen:
                seen.add((shown, _call(message)))
                action.won += row["success"] is True
                action.lost += row["success"] is False
    for (task, _), actions in found.items():
        yield task, list(actions.values())


def _sampled(mask: list[int], logps: list[float | None]) -> Iterator[float]:
    """Yield the probability of each turn: of each run of ids that the policy sampled."""
    for sampled, ids in groupby(zip(mask, logps, strict=True), key=lambda pair: pair[0]):
        if sampled:
            yield math.exp(sum(logp or 0.0 for _, logp in ids))


def estimated(environment: str, run: Path) -> Iterator[tuple[str, Pair]]:
    """Yield pairs of the best action of a state and one that is worse with `CONFIDENCE` or more.

    The value of an action is Beta(½ + won, ½ + lost), as if branches were independent.
    """
    rng = np.random.default_rng(0)
    for task, actions in states(run):
        drawn = [rng.beta(0.5 + one.won, 0.5 + one.lost, DRAWS) for one in actions]
        best = int(np.argmax([one.mean() for one in drawn]))
        sure = [float((drawn[best] > values).mean()) for values in drawn]
        pairs = [(actions[best], one, sure[n]) for n, one in enumerate(actions) if sure[n] >= CONFIDENCE]
        if actions[best].won:
            yield from ((task, pair) for pair in sorted(pairs, key=lambda pair: -pair[2])[:MOST])


def critical(environment: str, run: Path) -> Iterator[tuple[str, Pair]]:
    """Yield pairs of an action after which the policy succeeded and one after which it never did.

    A failed branch, one action replaced, and the policy went on to a verified success (CSO, arXiv:2602.03412).
    """
    for task, actions in states(run):
        best = max(actions, key=lambda one: one.won)
        failed = sorted((one for one in actions if one.lost and not one.won), key=lambda one: -one.lost)
        if best.won:
            yield from ((task, (best, one, 1.0)) for one in failed[:MOST])


def likely(environment: str, run: Path) -> Iterator[tuple[str, Pair]]:
    """Yield the pairs of `critical` whose rejected action the policy sampled with `LIKELY` or more."""
    return ((task, pair) for task, pair in critical(environment, run) if pair[1].probability >= LIKELY)


def solver(environment: str, run: Path) -> Iterator[tuple[str, Pair]]:
    """Yield the pairs of `critical` with the action of the environment's own expert as the chosen side."""
    name, *keys = environment.removeprefix("env=").split()
    arguments = (key.removeprefix("env.").split("=", 1) for key in keys)
    spec = EnvSpec.load(name, {key: yaml.safe_load(text) for key, text in arguments})
    assert spec.demonstrate is not None, f"{name} has no expert"
    pairs = list(critical(environment, run))
    wanted = {task for task, _ in pairs}
    tasks = {task.task_id: task for task in spec.tasks("train") if task.task_id in wanted}
    for task, (chosen, rejected, sure) in pairs:
        message = spec.demonstrate(tasks[task].args, chosen.prompt, random.Random(0), 0.0)
        if _call(message) != _call(rejected.message):
            yield task, (Taken(chosen.prompt, message, chosen.tools, 0.0), rejected, sure)


def solvable(taken: Taken) -> bool:
    """Return whether a task of Countdown can be solved after a legal action, by exhaustive search."""
    told = (_STATE.search(str(message["content"])) for message in reversed(taken.prompt))
    shown = next(state.group() for state in told if state).removeprefix("left: ").split(" target ")
    left, target = tuple(sorted(map(int, shown[0].split()))), int(shown[1])
    call = taken.message["tool_calls"][0]["function"]["arguments"]
    return shortest(after(left, (call["a"], call["op"], call["b"])), target) is not None


def far(taken: Taken) -> float:
    """Return how many moves the goal of FrozenLake is away after a move; infinite in a hole."""
    told = [str(message["content"]) for message in taken.prompt if message["role"] in ("user", "tool")]
    rows = next(filter(None, (re.findall(r"^[SFHG]+$", text, re.MULTILINE) for text in told)))
    at = next(found for text in reversed(told) if (found := re.search(r"row (\d+), column (\d+)", text)))
    moves = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
    moved = moves[taken.message["tool_calls"][0]["function"]["arguments"]["direction"]]
    place = tuple(min(max(int(n) + way, 0), len(rows) - 1) for n, way in zip(at.groups(), moved, strict=True))
    ice = networkx.grid_2d_graph(len(rows), len(rows))
    ice.remove_nodes_from([place for place in list(ice) if rows[place[0]][place[1]] == "H"])
    return networkx.single_source_shortest_path_length(ice, (len(rows) - 1, len(rows) - 1)).get(place, math.inf)


def _call(message: Message) -> str:
    return json.dumps([call["function"] for call in message.get("tool_calls") or ()], sort_keys=True)


WAYS = {way.__name__: way for way in (estimated, critical, likely, solver)}
"""By name."""

if __name__ == "__main__":
    way, environment, run, folder = sys.argv[1:]
    pairs = list(WAYS[way](environment, Path(run)))
    rows = [
        {"prompt": chosen.prompt, "chosen": [chosen.message], "rejected": [rejected.message], "tools": chosen.tools,
         "task_id": task, "confidence": sure}
        for task, (chosen, rejected, sure) in pairs
    ]  # fmt: skip
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    facts: dict[str, Any] = {"pairs": len(pairs)}
    if environment.startswith("env=countdown"):
        facts["right"] = sum(solvable(chosen) and not solvable(rejected) for _, (chosen, rejected, _) in pairs)
    else:
        facts["right"] = sum(far(chosen) < far(rejected) for _, (chosen, rejected, _) in pairs)
        facts["into holes"] = sum(far(rejected) == math.inf for _, (_, rejected, _) in pairs)
    (Path(folder) / "manifest.json").write_text(json.dumps({"status": "done", **facts}))
    print(way, facts)
