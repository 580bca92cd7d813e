"""A second round with hints: what the search did not solve is tried again, and no row shows the hint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from offline_agent.pipelines import build_prefs
from offline_agent.pipelines.entry import main
from offline_agent.policies.scripted import ScriptedPolicy
from offline_agent.records import Action, Context, ToolCall


class Locked:
    """A lock of two buttons; the hint names them, and there is none for BC."""

    hindsight = "a wrong combination opens no other lock"

    @classmethod
    def tasks(cls, split: str) -> Iterator[dict[str, Any]]:
        return iter([{"wanted": name} for name in {"train": ("AB", "BC", "CA", "BA")}.get(split, (split,))])

    @classmethod
    def hint(cls, wanted: str) -> str | None:
        return None if wanted == "BC" else f"Hint: press {wanted}."

    def reset(self, wanted: str) -> str:
        self._wanted, self._pressed, self.terminated = wanted, "", False
        return "Open the lock."

    def press(self, button: str) -> str:
        """Press a button.

        Args:
            button: A, B or C.
        """
        self._pressed += button
        self.terminated = len(self._pressed) == 2
        return f"{button} is down"

    def get_reward(self) -> float:
        return float(self._pressed == self._wanted)


class Obedient(ScriptedPolicy):
    """Presses C until it is told better.

    Args:
        talks: Say in the thoughts where that is from.
    """

    name = "obedient"

    def __init__(self, talks: bool = False) -> None:
        super().__init__()
        self._talks = talks

    def _act(self, context: Context, rng: Any) -> Action:
        told = str(context.lineage()[0].observation).partition("Hint: press ")[2].rstrip(".")
        call = ToolCall("press", {"button": (told or "CC")[context.depth]})
        thought = "As the hint says." if self._talks and told else "I press."
        return Action(f"{thought} {call}", thought, call)


def _run(run_dir: Path, *keys: str) -> dict[str, Any]:
    always = [
        f"env={__file__}:Locked", f"policy={__file__}:Obedient", "tasks.n=4", "search.simulations=4",
        "tracking.uri=null", f"run_dir={run_dir}",
    ]  # fmt: skip
    assert main(build_prefs.COMMAND, [*always, *keys]) == 0
    found: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return found


def test_tasks_that_were_not_solved_are_tried_again_with_a_hint_that_no_row_shows(tmp_path: Path) -> None:
    plain = _run(tmp_path / "plain")
    assert plain["filtered"] == 0 and "guided" not in plain
    found = _run(tmp_path / "run", "guidance.attempts=2")
    assert found["success"]["best_of_search"] == 0.0
    assert found["guided"] == {"tasks": 3, "attempts": 6, "successes": 6, "tasks_solved": 3}
    tables = {file.parent.name: pq.read_table(file).to_pylist() for file in (tmp_path / "run").rglob("*.parquet")}
    assert [row["origin"] for row in tables["filtered"]] == ["guided"] * 3
    assert "Open the lock." in json.dumps(tables, default=str) and "Hint" not in json.dumps(tables, default=str)
    log = tmp_path / "run" / "events" / "guided.jsonl"
    before = log.read_text()
    assert "Hint: press AB." in before  # what was played is kept as it was played
    (tmp_path / "run" / "summary.json").unlink()
    again = _run(tmp_path / "run", "guidance.attempts=2")
    assert again["guided"] == found["guided"] and log.read_text() == before and again["filtered"] == 3


def test_a_thought_that_names_the_hint_is_refused(tmp_path: Path) -> None:
    found = _run(tmp_path / "run", "guidance.attempts=1", "policy.talks=true")
    assert found["guided"]["successes"] == 3 and found["filtered"] == 0 and found["refused"]["guided"] == 3


def test_hints_that_cannot_be_given_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = ["env=shop", "policy=noisy", "guidance.attempts=1", "tracking.uri=null", f"run_dir={tmp_path / 'run'}"]
    assert main(build_prefs.COMMAND, keys) == 2 and not (tmp_path / "run").exists()
    assert "environment shop has no hints" in " ".join(capsys.readouterr().err.split())
