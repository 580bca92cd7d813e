"""The data card of a run: counts of the tables, rules, limits that its figures show; `datasets` reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from datasets import load_dataset

from offline_agent.report.data_card import _masks, card
from tests.helpers import rows as kit

PAIRS = {"min_visits": 3, "min_gap": 0.2, "confidence": 0.9, "per_task": 16, "length_tolerance": 0.05}


def written(path: Path, pairs: dict[str, int], **more: Any) -> str:
    """Return the card of a run of two pairs and a success, in the given circumstances."""
    kit.run(
        path, [kit.pair(0), kit.pair(1, "tea cup", "mug", kind="trajectory")], [kit.trajectory(0, tokens=False)]
    )
    policy = {"name": "server", "api_key": "sk-secret"}
    manifest = {
        **json.loads((path / "manifest.json").read_text()),
        "config": {"pairs": {**PAIRS, "max_extra_steps": 15}, "filtered": {"per_task": 2}, "policy": policy},
    }
    summary = {
        "policy": "server", "environment": "shop", "tasks": 2, "split": "train", "simulations": 64, "pairs": pairs,
        "rejudged": {"verdicts": 9, "judged": 5, "disagreed": 1}, "filtered": 1, "kept_unmatched": 0,
        "pairs_dropped_by_length_matching": 7, "quarantined": {"trees": 1}, "refused": {"pair": 3},
        "quarantine_reasons": {"a verdict did not repeat": 1}, "refusal_reasons": {"too long": 3}, **more,
    }  # fmt: skip
    return card(path, manifest, summary)


def test_it_says_what_is_there_by_which_rules_and_what_was_left_out(tmp_path: Path) -> None:
    text = written(tmp_path / "run", {"step": 1, "trajectory": 1})
    assert "| `preferences/` | 1 |" in text and "| `multiturn_preferences/` | 1 |" in text
    assert "| `filtered/` | 1 |" in text and "| `trajectories/` | 0 |" in text
    assert "at least 3 roll-outs" in text and "at most 15 actions longer" in text and "5 of 9; 1 differed" in text
    assert "7 pairs were dropped" in text and "trees 1" in text and "3 times: `too long`" in text
    assert "sk-secret" not in text and "api_key" in text


def test_it_counts_what_the_mask_marks(tmp_path: Path) -> None:
    row = kit.trajectory(1, "red tea")
    kit.run(tmp_path / "run", executed=[row, kit.trajectory(2, tokens=False)])
    assert _masks(tmp_path / "run") == [f"| the policy's own | {sum(row['action_mask']):,} | `tokens_action_mask` |"]


def test_limits_are_those_of_this_run(tmp_path: Path) -> None:
    """Alone catches a card that says the same of every run."""
    plain = written(tmp_path / "plain", {"step": 1})
    assert "whole rests" not in plain and "not of a language model" not in plain and "refuse these rows" not in plain
    told = written(
        tmp_path / "told", {"minimal": 1}, policy="random", split="validation", kept_unmatched=40
    )
    for words in ("whole rests", "not of a language model", "refuse these rows", "dropped 40 pairs"):
        assert words in told


def test_datasets_finds_the_tables_by_the_header(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "README.md").write_text(written(run, {"step": 1, "trajectory": 1}), encoding="utf-8")
    loaded = load_dataset(str(run), "filtered", split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded[0]["messages"] == kit.trajectory(0)["messages"]
