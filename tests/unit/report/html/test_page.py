"""The page of real runs: self-contained, whole, safe, within its size, and never the end of a run."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from offline_agent.pipelines import import_logs
from offline_agent.pipelines import report as command
from offline_agent.pipelines.entry import main
from offline_agent.report.closing import table
from offline_agent.report.html import page
from offline_agent.report.html.reading import RunFiles
from offline_agent.store.files import write_json
from offline_agent.store.run_directory import RunDirectory
from tests.helpers import tiny_pipeline
from tests.helpers.report import HOSTILE, searched, trained

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return searched(tmp_path_factory.mktemp("page") / "run")


def test_a_run_leaves_a_page_that_loads_nothing_and_runs_no_foreign_script(run_dir: Path) -> None:
    text = (run_dir / "report.html").read_bytes().decode("utf-8")
    assert text.count("<script") == 1 and "<img" not in text and "\x1b" not in text and "\x00" not in text
    assert "&lt;script&gt;window.hacked = 1&lt;/script&gt;" in text and "{{ 7 * 7 }}" in text
    assert not re.search(r"""(?:src|href)=["'](?:https?:)?//""", text) and "@import" not in text and "url(" not in text


def test_the_same_run_gives_the_same_page(run_dir: Path, tmp_path: Path) -> None:
    one, two = (page.write(run_dir, tmp_path / name).path.read_bytes() for name in ("one", "two"))
    assert one == two == (run_dir / "report.html").read_bytes()


def test_a_smaller_budget_leaves_out_whole_items_and_says_so(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = page.write(run_dir, tmp_path / "all.html")
    assert all(shown == total for shown, total in everything.shown.values())
    monkeypatch.setattr(page, "BUDGET", {name: size // 40 for name, size in page.BUDGET.items()} | {"trees": 40_000})
    few = page.write(run_dir, tmp_path / "few.html")
    shown, total = few.shown["trees"]
    assert 0 < shown < total and f"{shown} of {total} are shown, each whole" in few.path.read_text()
    assert few.size < everything.size


def test_a_run_of_any_kind_and_state_has_a_page(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path / "begun", config={}, facts={}, command="build_prefs"):
        pass
    for folder in (tmp_path / "begun", trained(tmp_path / "trained")):
        assert page.write(folder).faults == ()
    text = (tmp_path / "trained" / "report.html").read_text()
    assert "watch: kl" in text and "update 17" in text and "success over calls" in text


def test_every_tree_of_a_task_is_listed_with_its_own_ends(tmp_path: Path) -> None:
    """Logs of one task under two system prompts make two trees."""
    rows = [
        {"messages": [{"role": "system", "content": prompt}, {"role": "user", "content": "go"},
                      {"role": "assistant", "content": said}], "success": said == "right", "task_id": "t"}
        for prompt, answers in (("A", ["right", "wrong", "bad"]), ("B", ["right", "wrong"])) for said in answers
    ]  # fmt: skip
    (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    given = [f"source={tmp_path / 'log.jsonl'}", f"run_dir={tmp_path / 'run'}", "tracking.uri=null"]
    assert main(import_logs.COMMAND, given) == 0
    first, second = page.tasks(RunFiles(tmp_path / "run"))
    assert (first["task"], first["solved"], first["failed"]) == ("t", 1, 2)
    assert (second["task"].partition("~")[0], second["solved"], second["failed"]) == ("t", 1, 1)
    assert page.write(tmp_path / "run").shown["trees"] == (2, 2)


def test_a_summary_of_another_version_costs_a_part_of_the_page_and_no_more(run_dir: Path, tmp_path: Path) -> None:
    older = shutil.copytree(run_dir, tmp_path / "older")
    summary = json.loads((older / "summary.json").read_text())
    del summary["cuts"]
    write_json(older / "summary.json", summary)
    done = page.write(older)
    assert ["the closing table left out (KeyError: 'cuts')" in fault for fault in done.faults].count(True) == 1
    assert "Not readable" in done.path.read_text() and done.shown["trees"] == (3, 3)


def test_the_closing_table_shows_marks_of_rich_as_they_are(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [("role", "[/INST] :smile:")]
    monkeypatch.setitem(page.CLOSING, "build_prefs", lambda summary, path: table("[INST]", told))
    text = page.closing(RunFiles(run_dir))
    assert "[INST]" in text and "[/INST] :smile:" in text


@pytest.mark.parametrize("table", ["trajectories", "preferences"])
@pytest.mark.parametrize("damage", ["cut", "page"])
def test_a_broken_table_is_named_and_left_out(damage: str, table: str, run_dir: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(run_dir, tmp_path / "broken")
    file = next((broken / table).glob("*.parquet"))
    data = bytearray(file.read_bytes())
    if damage == "page":
        group = pq.read_metadata(file).row_group(0)
        columns = (group.column(number) for number in range(group.num_columns))
        first = {"preferences": "prompt", "trajectories": "task_id"}[table]
        column = next(one for one in columns if one.path_in_schema.startswith(first))
        start = column.dictionary_page_offset or column.data_page_offset
        data[start : start + 60] = bytes(60)
    file.write_bytes(data if damage == "page" else data[:-9])
    done = page.write(broken)
    assert any(str(file) in fault for fault in done.faults) and "Not readable" in done.path.read_text()


def test_a_page_that_fails_costs_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*given: object) -> None:
        raise RuntimeError("out of ink")

    monkeypatch.setattr(page, "write", fail)
    folder = tmp_path / "run"
    assert main(tiny_pipeline.COMMAND, ["tracking.uri=null", f"run_dir={folder}"]) == 0
    out, err = capsys.readouterr()
    assert "counted 3" in out and "report:" not in out and "out of ink" in err and "pipelines.report run_dir=" in err
    assert RunFiles(folder).manifest["status"] == "done"


def test_the_page_can_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["tracking.uri=null", "count=1"]
    assert main(tiny_pipeline.COMMAND, [*given, "report=false", f"run_dir={tmp_path / 'without'}"]) == 0
    assert "report:" not in capsys.readouterr().out
    assert main(tiny_pipeline.COMMAND, [*given, f"run_dir={tmp_path / 'with'}"]) == 0
    there = [(tmp_path / name / "report.html").exists() for name in ("without", "with")]
    assert there == [False, True]
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {tmp_path / 'with' / 'report.html'}"


def test_the_command_writes_the_page_again(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([f"run_dir={run_dir}"]) == 0
    assert (run_dir / "report.html").exists() and "trees         3 of 3 are shown" in capsys.readouterr().out


def test_rows_are_read_by_their_place(run_dir: Path) -> None:
    run = RunFiles(run_dir)
    places = [row["at"] for row in run.trajectories]
    whole = run.whole(places[::-1])
    assert [row["task_id"] for row in whole] == [row["task_id"] for row in run.trajectories][::-1]
    assert HOSTILE.split("\ud800")[0] in str(whole[0]["messages"][1]["content"])
