"""Toolformer's filter: gains are those of separate passes; turns that gain too little are not learnt, and no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from offline_agent.policies.base import DEFAULT_MODEL
from offline_agent.rendering.renderer import Renderer
from offline_agent.training import useful_calls
from offline_agent.training.data.conversations import Encoder
from offline_agent.training.data.rows import load_trajectories
from offline_agent.training.models import load_trainable


def _call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": name, "arguments": arguments}}]}


MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Find the code."},
    {"role": "user", "content": "Which code has the red box?"},
    {"role": "assistant", "content": "I look."},
    {"role": "user", "content": "Do."},
    _call("look", box="red"),
    {"role": "tool", "content": "The code is 48153."},
    _call("look", box="blue"),
    {"role": "tool", "content": "nothing"},
    _call("answer", code="48153"),
    {"role": "tool", "content": "right"},
]


def test_turns_that_are_answered_and_followed_by_another_may_be_left_out() -> None:
    assert list(useful_calls.answered(MESSAGES)) == [(4, 6), (6, 8)]  # not what calls nothing, and not the last
    marked, empty, without = useful_calls.variants(MESSAGES, useful_calls.Turn(4, 6))
    assert [place for place, one in enumerate(marked) if one.get("train") is False] == [2, 4]
    assert [one["content"] for one in empty[4:8]] == ["", "", "", "nothing"]
    assert without == marked[:4] + marked[6:]
    for mark in ("weight", "loss", "train"):  # nothing that is learnt follows the second call, then neither
        unlearnt = [*MESSAGES[:8], {**MESSAGES[8], mark: 0}]
        assert list(useful_calls.answered(unlearnt)) == [(4, 6)]
        unlearnt[6] = {**unlearnt[6], mark: 0}
        assert list(useful_calls.answered(unlearnt)) == []


def test_gains_are_the_differences_of_separate_passes() -> None:
    model, _, renderer = load_trainable(None)
    encoder = Encoder(renderer)

    def later(messages: list[dict[str, Any]]) -> float:
        made = encoder.trajectory(messages, None, False)
        ids = torch.tensor([made["input_ids"]])
        with torch.no_grad():
            logps = model(ids).logits[0, :-1].double().log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        return float((logps * torch.tensor(made["action_mask"][1:])).sum())

    got = useful_calls.gains(model, renderer, [(MESSAGES, None), (MESSAGES[:2], None), (MESSAGES[:8], None)], 64)
    assert [sorted(one) for one in got] == [[4, 6], [], [4]]
    for place, end in ((4, 6), (6, 8)):
        marked = useful_calls.variants(MESSAGES, useful_calls.Turn(place, end))
        whole, empty, without = map(later, marked)
        assert got[0][place] == pytest.approx(whole - max(empty, without), abs=1e-3)


def test_marked_turns_are_in_the_history_and_in_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = tmp_path / "log.jsonl", tmp_path / "marked.jsonl"
    source.write_text(json.dumps({"messages": MESSAGES, "success": True, "mine": 1}) + "\n\n")
    renderer = Renderer.load(DEFAULT_MODEL)
    for threshold, left in (("-1000000", 4), ("1000000", 2)):
        given = [str(DEFAULT_MODEL), str(source), "--out", str(out), "--threshold", threshold]
        monkeypatch.setattr("sys.argv", ["", *given])
        useful_calls.main()
        row = json.loads(out.read_text())
        assert row["mine"] == 1 and list(row["gains"]) == ["4", "6"]
        (learnt,), _ = load_trajectories([], [str(out)], renderer, max_length=4096)
        (plain,), _ = load_trajectories([], [str(source)], renderer, max_length=4096)
        assert learnt.input_ids == plain.input_ids
        said = [learnt.action_mask[place] for place in range(1, len(learnt.action_mask))
                if plain.action_mask[place] and not plain.action_mask[place - 1]]  # fmt: skip
        assert len(said) == 4 and sum(said) == left


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "No such file"),
        ("no JSON", "line 1: got"),
        ('{"messages": []}\n{"prompt": 1}', "line 2: got KeyError"),
        ('{"messages": [], "input_ids": [1]}', "a policy has played it"),
    ],
)
def test_other_files_are_refused(text: str | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.jsonl"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr("sys.argv", ["", str(DEFAULT_MODEL), str(path), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match=told):
        useful_calls.main()
