"""Other verdicts for kept trajectories: of a search, and of imported logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offline_agent.pipelines import build_prefs, import_logs, rejudge
from offline_agent.records import Trajectory, Verdict
from offline_agent.search.serialization import tree_from_json
from offline_agent.store.columns import known
from offline_agent.store.run_directory import Quarantine, read_tree, tree_id_of
from offline_agent.store.tables import read_table
from tests.helpers.report import page_of

OFF = "tracking.uri=null"
KINDS = "pairs.kinds=[step,trajectory]"
HERE = str(Path(__file__))


def same(trajectory: Trajectory) -> Verdict | None:
    return trajectory.verdict


def opposite(trajectory: Trajectory) -> float | None:
    verdict = trajectory.verdict
    return None if verdict is None or verdict.success is None else float(not verdict.success)


def said_yes(trajectory: Trajectory) -> float | None:
    text = trajectory.steps[-1].action.text
    return None if text == "?" else float(text == "yes")


def rows(run: Path, *tables: str) -> list[dict[str, Any]]:
    return [row for table in tables for file in sorted((run / table).glob("*.parquet"))
            for row in map(known, read_table(file))]  # fmt: skip


def content(run: Path) -> dict[str, bytes]:
    return {str(file.relative_to(run)): file.read_bytes() for file in run.rglob("*.*")
            if file.is_file() and "verdicts" not in file.parts}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["mcts", "best_of_n"])
def test_the_same_verdicts_give_the_same_rows_and_the_run_stays(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = ["tasks.n=6", f"search.algorithm={algorithm}", "search.simulations=24", "policy=noisy", "policy.noise=0.5"]
    assert build_prefs.main(build_prefs.COMMAND, [*keys, KINDS, "pairs.rejudge=0", "run_dir=s", OFF]) == 0
    before = content(Path("s"))
    keys = ["run_dir=s", f"judge={HERE}:same", KINDS, "filtered.per_task=2", OFF]
    assert rejudge.main(rejudge.COMMAND, keys) == 0
    assert content(Path("s")) == before
    (new,) = Path("s/verdicts").iterdir()
    assert "now a success" in page_of(new)
    for file in Path("s/trees").iterdir():
        old, anew = (tree_from_json(read_tree(path)) for path in (file, new / "trees" / file.name))
        assert [node.id for node in old.terminals()] == [node.id for node in anew.terminals()]
        for one, two in zip(old.edges, anew.edges, strict=True):
            assert (one.visits, one.verified, one.successes, one.truncated) == (
                two.visits, two.verified, two.successes, two.truncated)  # fmt: skip
            assert one.value_sum == pytest.approx(two.value_sum) and one.score_sum == pytest.approx(two.score_sum)
        assert (old.simulations, old.low, old.high) == (anew.simulations, pytest.approx(anew.low),
                                                        pytest.approx(anew.high))  # fmt: skip
    for tables in (("preferences", "multiturn_preferences"), ("filtered",), ("trajectories",)):
        found, own = rows(new, *tables), rows(Path("s"), *tables)
        assert len(found) == len(own) > 0
        for one, two in zip(found, own, strict=True):
            assert one.keys() == two.keys()
            for name in one.keys() - {"verdict", "verdict_chosen", "verdict_rejected", "certificate"}:
                assert one[name] == (pytest.approx(two[name]) if isinstance(two[name], float) else two[name]), name
    (row, *_) = rows(new, "filtered")
    verdict = json.loads(row["verdict"])
    assert [one["verifier"] for one in verdict["evidence"]["earlier"]] == [verdict["verifier"]]


@pytest.mark.slow
def test_a_tree_that_replays_put_in_quarantine_stays_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keys = ["tasks.n=2", "search.algorithm=best_of_n", "search.simulations=8", "policy=noisy", "policy.noise=0.5"]
    assert build_prefs.main(build_prefs.COMMAND, [*keys, KINDS, "pairs.rejudge=0", "run_dir=s", OFF]) == 0
    noise = tree_id_of(next(Path("s/trees").iterdir()))
    log = Quarantine(Path("s/quarantine.jsonl"))
    log.add("tree", noise, "action 1 is answered differently when it is replayed")
    log.close()
    assert rejudge.main(rejudge.COMMAND, ["run_dir=s", "out=o", f"judge={HERE}:same", KINDS, OFF]) == 0
    found = {row["task_id"] for row in rows(Path("o"), "trajectories")}
    assert noise not in found and len(found) == 1


@pytest.mark.slow
def test_the_opposite_verdicts_turn_the_pairs_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keys = ["tasks.n=4", "search.algorithm=best_of_n", "search.simulations=4", "pairs.kinds=[trajectory]"]
    assert build_prefs.main(build_prefs.COMMAND, [*keys, "run_dir=s", OFF]) == 0
    keys = [f"judge={HERE}:opposite", "pairs.kinds=[trajectory]", "pairs.length_tolerance=9", OFF]
    assert rejudge.main(rejudge.COMMAND, ["run_dir=s", "out=o", *keys]) == 0
    summary = json.loads(Path("o/summary.json").read_text())
    assert summary["raised"] > 0 and summary["lowered"] > 0 and summary["pairs_total"] > 0
    old = {json.dumps(row["messages"]): row["success"] for row in rows(Path("s"), "trajectories") if row["terminated"]}
    new = {json.dumps(row["messages"]): row["success"] for row in rows(Path("o"), "trajectories") if row["terminated"]}
    assert new == {messages: not success for messages, success in old.items()}
    pairs = rows(Path("o"), "preferences", "multiturn_preferences")
    assert all(row["prompt_ids"] and json.loads(row["certificate"])["sampled"] for row in pairs)
    tables = {name: data for name, data in content(Path("o")).items() if name.endswith(".parquet")}
    assert rejudge.main(rejudge.COMMAND, ["run_dir=o", *keys]) == 0  # the line that a stopped command prints
    assert tables == {name: data for name, data in content(Path("o")).items() if name.endswith(".parquet")}


def logs(*answers: str, **more: Any) -> None:
    lines = [{"messages": [{"role": "user", "content": "well?"}, {"role": "assistant", "content": answer}], **more}
             for answer in answers]  # fmt: skip
    Path("log.jsonl").write_text("\n".join(map(json.dumps, lines)))


def test_logs_are_judged_anew_each_version_beside_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    logs("yes", "yes", "no", "?", success=0)
    with Path("log.jsonl").open("a") as file:  # another outcome for the same messages
        file.write("\n" + json.dumps({"messages": [{"role": "user", "content": "well?"},
                                                   {"role": "assistant", "content": "no"}], "success": 1}))  # fmt: skip
    assert import_logs.main(import_logs.COMMAND, ["source=log.jsonl", "run_dir=r", OFF]) == 0
    assert json.loads(Path("r/summary.json").read_text())["quarantined"]["branches"] == 1
    for judge in ("said_yes", "opposite"):
        assert rejudge.main(rejudge.COMMAND, ["run_dir=r", f"judge={HERE}:{judge}", OFF]) == 0
    yes, turned = sorted(Path("r/verdicts").iterdir(), key=lambda path: "said_yes" not in path.name)
    summary = json.loads((yes / "summary.json").read_text())
    assert (summary["judged"], summary["unscored"], summary["raised"], summary["judged_first"]) == (2, 1, 1, 1)
    assert summary["quarantined"]["branches"] == 0 and summary["pairs_total"] == 1
    assert summary["success"]["attempts"] == 0.5  # two of yes, two of no; nobody knows of the fourth
    (pair,) = rows(yes, "preferences")
    assert (pair["chosen"][0]["content"], pair["rejected"][0]["content"]) == ("yes", "no")
    assert json.loads((turned / "summary.json").read_text())["unscored"] == 1  # the contradiction has no verdict


