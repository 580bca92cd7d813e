from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offline_agent.errors import DataError
from offline_agent.preferences.dataset import export
from offline_agent.preferences.dataset.export import (
    pair_row,
    pair_rows,
    storable,
    trajectory_row,
    trajectory_rows,
)
from offline_agent.preferences.mining import Miner
from offline_agent.preferences.pairs.trajectory import TrajectoryPairs, trajectories
from offline_agent.preferences.records import PreferencePair, Refusal
from offline_agent.records import Action
from offline_agent.rendering.renderer import Renderer
from offline_agent.store.columns import PAIR_COLUMNS, TRAJECTORY_COLUMNS, known, table_of, table_schema
from tests.helpers import preferences as kit
from tests.helpers import rendering as rendering_kit


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(rendering_kit.qwen())


def sampled(renderer: Renderer, words: str, logp: float | None = -0.5) -> list[Action]:
    """Actions as a policy with this tokenizer samples them."""
    out = []
    for action in kit.acts(words):
        ids = renderer.encode_action(action)
        out.append(renderer.parse(ids, None if logp is None else [logp] * len(ids)))
    return out


def pair(renderer: Renderer | None = None) -> PreferencePair:
    rollouts: Any = ["A look B leave", "A look C leave"]
    if renderer is not None:
        rollouts = [sampled(renderer, words) for words in rollouts]
    return TrajectoryPairs().mine(kit.grow(rollouts))[0][0]


def test_columns_are_those_of_the_contract() -> None:
    assert set(pair_row(pair(), None)) == set(PAIR_COLUMNS)
    assert set(trajectory_row(next(trajectories(kit.grow(["A B leave"]))), None)) == set(TRAJECTORY_COLUMNS)


def test_messages_of_a_pair() -> None:
    row = pair_row(pair(), None)
    assert [m["role"] for m in row["prompt"]] == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert [m["role"] for m in row["chosen"]] == ["assistant", "tool", "assistant"]
    assert row["chosen"][0]["tool_calls"][0]["function"] == {"name": "press", "arguments": {"button": "B"}}
    assert row["chosen"][1] == {"role": "tool", "content": "B is down", "name": "press"}
    assert [tool["function"]["name"] for tool in json.loads(row["tools"])] == list(kit.SPEC.tools.names)
    assert json.loads(row["verdict_chosen"])["success"] is True and json.loads(row["verdict_rejected"])["score"] == 0.5
    assert row["task_id"] == "vault-AB" and row["split"] == "train" and row["kind"] == "trajectory"
    assert row["prompt_ids"] is None and "prompt" not in json.loads(row["certificate"])


def test_token_columns_hold_the_sampled_ids(renderer: Renderer) -> None:
    made = pair(renderer)
    row = pair_row(made, renderer)
    for side, steps in (("chosen", made.chosen), ("rejected", made.rejected)):
        ids, mask, logps = row[f"{side}_ids"], row[f"{side}_mask"], row[f"ref_{side}_logps"]
        wanted = [token for step in steps for token in step.action.token_ids or ()]
        assert [token for token, m in zip(ids, mask, strict=True) if m] == wanted
        assert len(logps) == len(ids) and {x for x, m in zip(logps, mask, strict=True) if m} == {-0.5}
        assert mask[-1] == 1 and 0 in mask
    assert row["prompt_ids"] == renderer.context_ids(made.prefix)
    assert json.loads(row["certificate"])


def test_a_shortened_success_keeps_ids_without_log_probabilities(renderer: Renderer) -> None:
    tree = kit.grow([sampled(renderer, "A look B leave")])
    mined = Miner(kit.SPEC, step_seconds=None).mine(tree)
    (minimal,) = [p for p in mined.pairs if p.kind == "minimal"]
    row = pair_row(minimal, renderer)
    assert row["ref_chosen_logps"] is None and row["ref_rejected_logps"] is not None
    assert sum(row["chosen_mask"]) == len(minimal.chosen[0].action.token_ids or ())
    (shorter,) = [t for t in mined.trajectories if t.origin == "pruned"]
    assert trajectory_row(shorter, renderer)["logps"] is None


def test_trajectory_rows(renderer: Renderer) -> None:
    tree = kit.grow([sampled(renderer, "A look B leave"), sampled(renderer, "B leave")])
    good, bad = trajectories(tree)
    row = trajectory_row(good, renderer)
    assert (row["reward"], row["success"], row["steps"], row["terminated"]) == (1.0, True, 4, True)
    assert sum(row["action_mask"]) > 4
    assert trajectory_row(bad, renderer)["reward"] == 0.0
    unscored = trajectory_row(replace(good, verdict=None), None)
    assert unscored["reward"] is None and unscored["success"] is None and unscored["verdict"] is None


def test_a_row_that_fails_its_certificate_is_refused_and_named(renderer: Renderer) -> None:
    made = pair(renderer)
    step = made.chosen[0]
    bad = replace(made, chosen=(replace(step, action=replace(step.action, text="something else")), *made.chosen[1:]))
    with pytest.raises(DataError):
        pair_row(bad, renderer)
    refusals: list[Refusal] = []
    rows = list(pair_rows([made, bad], renderer, refusals))
    assert len(rows) == 1 and len(refusals) == 1
    assert refusals[0].kind == "row" and "vault-AB" in refusals[0].name and "something else" in refusals[0].reason

    tree = kit.grow([sampled(renderer, "A B leave")])
    good = next(trajectories(tree))
    torn = good.context.parent.child(replace(good.context.action, text="torn"), "bye")  # type: ignore[union-attr]
    refusals = []
    assert list(trajectory_rows([replace(good, context=torn)], renderer, refusals)) == [] and len(refusals) == 1


def test_every_row_is_checked_again(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    def disagree(renderer: Renderer, row: Any) -> None:
        raise DataError("row: it disagrees")

    made, whole = pair(renderer), next(trajectories(kit.grow([sampled(renderer, "A B leave")])))
    assert pair_row(made, renderer) and trajectory_row(whole, renderer)
    monkeypatch.setattr(export, "check_row", disagree)
    refusals: list[Refusal] = []
    assert not list(pair_rows([made], renderer, refusals)) and not list(trajectory_rows([whole], renderer, refusals))
    assert [refusal.reason for refusal in refusals] == ["row: it disagrees"] * 2


def test_what_readers_cannot_take_is_made_storable() -> None:
    arguments = {"n": 2**70, "x": float("nan"), "y": float("-inf"), "s": "a\ud800b", 3: [True, None, -(2**63)]}
    (message,) = storable([{"role": "assistant", "content": "", "tool_calls": [{"arguments": arguments}]}])
    out = message["tool_calls"][0]["arguments"]
    assert out == {"n": float(2**70), "x": "nan", "y": "-inf", "s": "a\ufffdb", "3": [True, None, -(2**63)]}
    json.dumps(message, allow_nan=False).encode()
    nested: Any = 1
    for _ in range(1000):
        nested = [nested]
    with pytest.raises(DataError, match="nests deeper"):
        storable([{"role": "assistant", "content": nested}])


def table(tmp_path: Path, renderer: Renderer | None, name: str = "multiturn_preferences") -> Path:
    from offline_agent.store.tables import write_table

    rollouts = ("A look B leave", "A C leave", "B leave", "X look leave")
    tree = kit.grow([sampled(renderer, words) if renderer else words for words in rollouts])
    pairs = Miner(kit.SPEC, step_seconds=None).mine(tree).pairs
    refusals: list[Refusal] = []
    rows = [row for row in pair_rows(pairs, renderer, refusals) if table_of(row["chosen"], row["rejected"]) == name]
    path = tmp_path / f"{name}.parquet"
    write_table(path, name, rows, table_schema(name))
    assert not refusals
    return path


def test_a_plain_trainer_reads_what_was_said(tmp_path: Path, renderer: Renderer) -> None:
    """TRL tokenises the message columns to exactly the ids of the token columns."""
    import datasets

    path = table(tmp_path, renderer)
    data = datasets.load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    tokenizer = rendering_kit.qwen()
    kinds = set()
    for row in map(known, data):
        kinds.add(row["kind"])
        tools = json.loads(row["tools"])
        for side in ("chosen", "rejected"):
            text = tokenizer.apply_chat_template(row["prompt"] + row[side], tools=tools, tokenize=False)
            ids = row["prompt_ids"] + row[f"{side}_ids"]
            assert text.removesuffix("\n") == tokenizer.decode(ids)
    assert {"trajectory", "hindsight", "minimal"} <= kinds
