"""Pairs of equal states, out of the branches of a run."""

from __future__ import annotations

import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_agent.records import call_message

START = {"role": "user", "content": "left: 2 3 4 target 14"}
ADD, TIMES, WRONG = (2, "+", 3), (3, "*", 4), (9, "+", 9)


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    sys.modules.pop("_pairs", None)
    import _pairs

    return _pairs


def branch(success: bool | None, *turns: tuple[tuple[int, str, int], str]) -> dict[str, Any]:
    """Return a row: a turn is a move and what came back; each turn has two ids, sampled with 0.5."""
    messages: list[dict[str, Any]] = [START]
    for (a, op, b), answer in turns:
        messages += [call_message("combine", {"a": a, "op": op, "b": b}), {"role": "tool", "content": answer}]
    mask = [0, *([1, 1, 0] * len(turns))]
    return {
        "task_id": "t", "success": success, "messages": [json.dumps(one) for one in messages], "tools": "[]",
        "tokens_action_mask": mask, "tokens_logps": [math.log(0.5) if one else None for one in mask],
    }  # fmt: skip


def test_actions_of_a_state_are_pooled_without_cut_branches_and_refused_calls(pairs: Any, tmp_path: Path) -> None:
    """Alone catches a cut branch as a failure, a refused call as an action, and a repeat that is counted twice."""
    won, lost, no = "left: 2 12 target 14", "left: 4 5 target 14", "9 and 9 are not both left."
    end = ((2, "+", 12), "left: 14 target 14")
    rows = [
        branch(True, (WRONG, no), (TIMES, won), end),  # after a refusal the state is the one before
        *[branch(False, (ADD, lost))] * 2,
        branch(None, ((2, "*", 3), "left: 4 6 target 14")),
        branch(False, (ADD, lost), (ADD, START["content"]), (ADD, lost)),
    ]
    (tmp_path / "trajectories").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "trajectories" / "0000.parquet")
    _, actions = next(iter(pairs.states(tmp_path)))
    judged = (one for one in actions if one.won or one.lost)
    found = {one.message["tool_calls"][0]["function"]["arguments"]["op"]: one for one in judged}
    assert {op: (one.won, one.lost, one.probability) for op, one in found.items()} == {
        "*": (1, 0, pytest.approx(0.25)), "+": (0, 3, pytest.approx(0.25)),
    }  # fmt: skip
    for way in ("estimated", "critical", "likely"):
        ((task, (chosen, rejected, sure)),) = pairs.WAYS[way]("", tmp_path)
        assert task == "t" and sure >= pairs.CONFIDENCE
        assert pairs.solvable(chosen) and not pairs.solvable(rejected)


@pytest.mark.parametrize(("direction", "moves"), [("down", math.inf), ("right", 3), ("left", 4)])
def test_the_moves_to_the_goal_are_counted_around_holes(pairs: Any, direction: str, moves: float) -> None:
    """Alone catches a hole that is walked through, and a state that is read off an error."""
    start = {"role": "user", "content": "SFF\nHFF\nFFG\nYou are in row 0, column 0, on S."}
    move = call_message("move", {"direction": direction})
    refused = {"role": "tool", "content": "Error: no such direction."}
    assert pairs.far(pairs.Taken([start, move, refused], move, [], 0.5)) == moves


def test_the_expert_of_frozen_lake_ignores_errors_and_the_words_of_the_policy() -> None:
    """Alone catches an expert that fails after a refused call, of which a chosen side would be made."""
    from examples.frozen_lake import FrozenLake

    task = {"map_seed": 0}
    said = FrozenLake().reset(**task)
    words = {"role": "assistant", "content": "You are in row two."}
    told = [{"role": "user", "content": said}, words, {"role": "tool", "content": "Error: no such direction."}]
    first = FrozenLake.demonstrate(task, told[:1], random.Random(0), 0.0)
    assert FrozenLake.demonstrate(task, told, random.Random(0), 0.0) == first
