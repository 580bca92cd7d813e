"""`calibrate` on the trees of a real search: planted biases, a model behind a server, and wrong requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offline_agent.pipelines import build_prefs, calibrate
from offline_agent.pipelines.entry import main
from offline_agent.records import Trajectory
from tests.helpers.fake_server import FakeServer, serving
from tests.helpers.report import page_of

HERE = "tests.e2e.test_calibrate:"
RUBRIC = Path(__file__).parents[2] / "configs" / "judges" / "rubric.yaml"


def longer_is_better(trajectory: Trajectory) -> bool:
    return len(trajectory.steps) > 3


def own(trajectory: Trajectory) -> Any:
    return trajectory.verdict


def first_is_better(first: Trajectory, second: Trajectory) -> float:
    return 1.0


class Right:
    """Knows the truth."""

    def compare(self, first: Trajectory, second: Trajectory) -> float:
        return float(first.verdict is not None and first.verdict.success is True)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("search") / "run"
    keys = ["env=tests.helpers.hostile_environments:Honest", "policy=noisy", "policy.noise=0.6", "tasks.n=7"]
    more = ["search.simulations=24", "tracking.uri=null", "audit=off", "pairs.kinds=[step]"]
    assert main(build_prefs.COMMAND, [*keys, *more, f"run_dir={run_dir}"]) == 0
    return run_dir


def run(searched: Path, run_dir: Path, *keys: str) -> dict[str, Any]:
    assert main(calibrate.COMMAND, [f"source={searched}", "tracking.uri=null", *keys, f"run_dir={run_dir}"]) == 0
    return dict(json.loads((run_dir / "calibration.json").read_text()))


def test_the_verifier_itself_agrees_in_all_and_the_right_comparator_is_always_right(
    searched: Path, tmp_path: Path
) -> None:
    found = run(searched, tmp_path / "run", f"judge={HERE}own", f"compare={HERE}Right")
    assert found["pointwise"]["agreement"]["value"] == 1 and found["pointwise"]["kappa"] == 1
    assert found["pairwise"]["accuracy"]["value"] == 1 and found["biases"] == []
    page = page_of(tmp_path / "run")
    assert "pairs about which the order decided" in page
    rows = [json.loads(line) for line in (tmp_path / "run" / "judged.jsonl").read_text().splitlines()]
    assert len(rows) == found["pointwise"]["judged"] + found["pairwise"]["pairs"]


def test_planted_biases_are_in_the_table(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quiz has three turns at most: a judge that wants more of them never passes one; places decide the rest."""
    monkeypatch.setenv("COLUMNS", "200")  # no line of the table is broken
    found = run(searched, tmp_path / "run", f"judge={HERE}longer_is_better", f"compare={HERE}first_is_better",
                "length=steps")  # fmt: skip
    assert found["pointwise"]["false_negatives"]["value"] == 1
    assert found["pairwise"]["chose_first"]["value"] == found["pairwise"]["swayed_by_order"]["value"] == 1
    shown = capsys.readouterr().out
    assert "position: the first attempt is preferred" in shown and "false negatives" in shown


def test_a_model_behind_a_server_is_asked_once_for_the_same_content(searched: Path, tmp_path: Path) -> None:
    def complete(path: str, body: dict) -> dict:
        passed = 5 * ("3 so far" in body["messages"][1]["content"])
        grades = {name: {"grade": passed, "reason": "so"} for name in ("achieved", "faithful", "direct")}
        return {"choices": [{"message": {"content": json.dumps({"criteria": grades})}}]}

    with serving(FakeServer(complete, ("judge",))) as server:
        keys = ["judge=llm", f"judge.rubric={RUBRIC}", f"judge.url={server.url}", "judge.model=judge"]
        found = run(searched, tmp_path / "run", *keys, "n=12", "workers=2")
        asked = len(server.seen)
        assert found["pointwise"]["judged"] == 12 and asked <= 12
        assert (tmp_path / "run" / "judge" / "answers.jsonl").is_file()
        again = run(searched, tmp_path / "again", *keys, "n=12", f"judge.cache={tmp_path}/run/judge/answers.jsonl")
        assert len(server.seen) == asked and again["pointwise"] == found["pointwise"]
