"""Logs as a run: the three commands from a folder of logs to a trained checkpoint, and requests that are refused."""

from __future__ import annotations

import datetime
import importlib
import json
import math
import random
import shlex
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_agent.pipelines import build_prefs, import_logs, inspect, train_dpo
from offline_agent.policies.base import DEFAULT_MODEL
from offline_agent.rendering.renderer import Renderer
from offline_agent.store.columns import known
from offline_agent.store.tables import read_table
from offline_agent.training.data.rows import load_trajectories
from tests.helpers.agent_log_writers import AGENT_WRITERS
from tests.helpers.api_calls import as_verifiers, calls_of
from tests.helpers.log_writers import WRITERS, Transcript, Turn, episodes_of, spoken

OFF = "tracking.uri=null"


def readme_commands() -> list[tuple[str, list[str]]]:
    """Return the commands of the README's section on logs up to a trained checkpoint: their names and arguments."""
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    section = text.partition("## Your own logs")[2]
    block = section.partition("```bash\n")[2].partition("```")[0].replace("\\\n", " ")
    lines = [shlex.split(line, comments=True) for line in block.splitlines() if line.strip()]
    assert all(words[:2] == ["python", "-m"] for words in lines)
    return [(words[2].removeprefix("offline_agent.pipelines."), words[3:]) for words in lines]


def test_the_three_commands_of_the_readme_lead_from_logs_to_a_trained_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made = ["policy=noisy", "policy.noise=0.4", "search.algorithm=best_of_n", "search.simulations=9", "tasks.n=5"]
    assert build_prefs.main(build_prefs.COMMAND, [*made, "pairs.kinds=[trajectory]", "run_dir=search", OFF]) == 0
    records = episodes_of(Path("search"))
    assert len(records) >= 30
    Path("logs").mkdir()
    for number in range(4):
        lines = [json.dumps(record) for record in records[number::4]]
        Path(f"logs/{number}.jsonl").write_text("\n".join(lines))

    shutil.copytree(DEFAULT_MODEL, "my/model")
    commands = readme_commands()
    assert [name for name, _ in commands] == ["import_logs", "train_sft", "train_dpo"]
    for name, arguments in commands:
        module = importlib.import_module(f"offline_agent.pipelines.{name}")
        few = [] if name == "import_logs" else ["optimizer.max_updates=2"]
        assert module.main(module.COMMAND, [*arguments, *few, OFF]) == 0

    summary = json.loads(Path("runs/logs/summary.json").read_text())
    assert summary["episodes"] == summary["judged"] == len(records) and summary["formats"] == {"openai": len(records)}
    assert summary["tasks"] == summary["trees"] == 5 and not any(summary["quarantined"].values())
    assert summary["level"] == "text" and summary["pairs"]["trajectory"] > 4
    assert Path("runs/dpo/model/model.safetensors").exists()
    err = capsys.readouterr().err
    assert "openai, because it has messages with roles" in err and "level: text" in err
    assert "rows by level: " in err and "text (messages, rendered here)" in err
    # What was read back are the search's own episodes: the same successes, word by word.
    told = {json.dumps(row["messages"]) for row in map(known, read_table(_table("runs/logs")))}
    own = {json.dumps(row["messages"]) for row in map(known, read_table(_table("search")))
           if row["terminated"]}  # fmt: skip
    assert told == own
    capsys.readouterr()
    assert inspect.main(["runs/logs", "pair=0"]) == 0
    assert "chosen" in capsys.readouterr().out


def _table(run: str) -> Path:
    (path,) = Path(run, "trajectories").glob("*.parquet")
    return path


def test_all_formats_in_one_folder_and_each_damage_by_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("logs").mkdir()
    rng = random.Random(1)
    writers = {**WRITERS, **AGENT_WRITERS}
    for format, write in writers.items():
        lines = [json.dumps(write(spoken(rng, number), rng)) for number in range(20)]
        lines[3:3] = ['{"messages": [{"role": ', '{"foo": 1}', "[]"]
        Path(f"logs/{format}.jsonl").write_text("\n".join(lines))
    assert import_logs.main(import_logs.COMMAND, ["source=logs", "run_dir=r", OFF]) == 0
    summary = json.loads(Path("r/summary.json").read_text())
    formats = Counter(format.partition("-")[0] for format in writers)
    # without a call, blocks and calls in the text are plain messages
    assert summary["formats"].keys() == formats.keys() and sum(summary["formats"].values()) == 20 * len(writers)
    assert summary["episodes"] == 20 * len(writers)
    entries = [json.loads(line) for line in Path("r/quarantine.jsonl").read_text().splitlines()]
    named = {entry["name"]: entry["reason"] for entry in entries if entry["kind"] == "log"}
    assert named.keys() == {f"logs/{format}.jsonl:{line}" for format in writers for line in (4, 5, 6)}
    assert "an object with foo" in named["logs/atif.jsonl:5"] and "no JSON" in named["logs/atif.jsonl:4"]
    before = {file: file.read_bytes() for file in Path("r").glob("*/*.parquet")}
    assert import_logs.main(import_logs.COMMAND, ["source=logs", "run_dir=r", OFF]) == 0  # again: the same
    assert before == {file: file.read_bytes() for file in Path("r").glob("*/*.parquet")} and len(before) == 4
    assert summary["quarantined"] == json.loads(Path("r/summary.json").read_text())["quarantined"]
    Path("logs/more.jsonl").write_text("{}")
    assert import_logs.main(import_logs.COMMAND, ["source=logs", "run_dir=r", OFF]) == 2  # other logs are another run


def test_an_outcome_as_text_and_a_result_without_an_id_are_told_by_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Alone catches a log of texts that silently has no outcome, and results that are matched without a word."""
    monkeypatch.chdir(tmp_path)
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    said = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    ends = [{"role": "tool", "content": "a door"}, {"role": "assistant", "content": "done"}]
    told = [{"outcome": "yes"}, {"outcome": "1"}, {"success": True, "label": "maths"}]
    rows = [{"id": n, "messages": [*said, *ends], **one} for n, one in enumerate(told)]
    Path("log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"messages": [], "success": 1}]))
    assert import_logs.main(import_logs.COMMAND, ["source=log.jsonl", "run_dir=r", OFF]) == 0
    shown, summary = capsys.readouterr().out, json.loads(Path("r/summary.json").read_text())
    assert summary["without_tools"] == 3 and "episodes without schemas" in shown
    assert "outcomes that could not be read" in shown and "results without tool_call_id" in shown
    assert (summary["unread_outcomes"], summary["results_by_place"], summary["judged"]) == (2, 3, 1)
    entries = [json.loads(line) for line in Path("r/quarantine.jsonl").read_text().splitlines()]
    named = {(entry["kind"], entry["name"]): entry["reason"] for entry in entries}
    assert named["outcome", "log.jsonl:1"].startswith("outcome: got 'yes'") and ("outcome", "log.jsonl:2") in named
    assert ("outcome", "log.jsonl:3") not in named and ("result", "log.jsonl:3") in named
    assert named["log", "log.jsonl:4"] == "messages: the list is empty"


def test_values_of_a_table_that_json_lacks_cost_their_row_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = json.dumps([{"role": "user", "content": "go"}, {"role": "assistant", "content": "done"}])
    day = datetime.date(2026, 1, 1)
    for name, rows in {
        "day": [{"messages": said, "gold": day}], "odd": [{"messages": said, "gold": math.nan}],
        "good": [{"messages": said, "gold": 3.5, "success": True}],
        "told": [{"session_id": "s", "reward": 1, "task": day}],
    }.items():  # fmt: skip
        pq.write_table(pa.Table.from_pylist(rows), f"{name}.parquet")
    assert import_logs.main(import_logs.COMMAND, ["source=.", "log.args=[gold]", "run_dir=r", OFF]) == 0
    summary = json.loads(Path("r/summary.json").read_text())
    assert (summary["records"], summary["episodes"], summary["outcomes_apart"]) == (4, 1, 0)
    entries = [json.loads(line) for line in Path("r/quarantine.jsonl").read_text().splitlines()]
    assert {entry["name"] for entry in entries} == {f"{name}.parquet:0" for name in ("day", "odd", "told")}


def own(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Read a log of question and answer."""
    turns = [{"role": "user", "content": record["asked"]}, {"role": "assistant", "content": record["said"]}]
    return [{"messages": turns, "success": record["said"] == "four"}]


def test_sessions_of_a_coding_agent_and_a_reader_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Alone catches sessions that are read line by line, outcomes of turns that the user took back, and what is left
    out without a word.
    """
    monkeypatch.chdir(tmp_path)
    Path("logs").mkdir()
    for name, success in (("s1", True), ("s2", False)):
        script, rng = Transcript(name), random.Random(1)
        asked = script.line("attachment", script.user(None, "fix it"), attachment={"type": "file"})
        script.turn(asked, Turn("taken back"), rng)
        script.turn(asked, Turn(f"ends {success}"), rng)
        Path(f"logs/{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in script.lines))
        Path(f"logs/{name}-outcome.json").write_text(json.dumps({"session_id": name, "success": success}))
    assert import_logs.main(import_logs.COMMAND, ["source=logs", "run_dir=r", "pairs.min_visits=1", OFF]) == 0
    shown, summary = capsys.readouterr().out, json.loads(Path("r/summary.json").read_text())
    assert (summary["formats"], summary["level"]) == ({"claude_code": 4}, "text")
    assert (summary["episodes"], summary["judged"], summary["left_out"], summary["trees"]) == (4, 2, 4, 1)
    assert summary["pairs_total"] == 1 and "episodes with parts left out" in shown
    entries = [json.loads(line) for line in Path("r/quarantine.jsonl").read_text().splitlines()]
    (left,) = {entry["reason"] for entry in entries if entry["kind"] == "left_out"}
    assert left == ("left out: 1 attachments, which the model read in words that are not logged; the episode is kept")
    rows = [{"asked": "2 + 2", "said": "four"}, {"asked": "2 + 2", "said": "five"}, {"said": 1}]
    Path("own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["source=own.jsonl", f"format={__name__}:own", "run_dir=own", OFF]
    assert import_logs.main(import_logs.COMMAND, command) == 0
    summary = json.loads(Path("own/summary.json").read_text())
    assert (summary["formats"], summary["pairs_total"]) == ({f"{__name__}:own": 3}, 1)
    assert "raised KeyError: 'asked'" in Path("own/quarantine.jsonl").read_text()
    assert import_logs.main(import_logs.COMMAND, ["source=own.jsonl", "format=opnai", "run_dir=no", OFF]) == 2


def test_outcomes_of_no_episode_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Alone catches episodes of an unknown shape that count as the outcomes of others."""
    monkeypatch.chdir(tmp_path)
    said = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "done"}]
    rows: list[dict[str, object]] = [{"id": "a", "messages": said}, {"id": "a", "reward": 1}]
    rows += [{"id": name, "reward": 1, name: said} for name in ("dialogue", "history", "output")]
    rows += [{"id": "b", "reward": 1}] * 2
    Path("log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert import_logs.main(import_logs.COMMAND, ["source=log.jsonl", "run_dir=r", OFF]) == 0
    shown, summary = capsys.readouterr().out, json.loads(Path("r/summary.json").read_text())
    assert (summary["outcomes_apart"], summary["outcomes_of_no_episode"]["count"], summary["judged"]) == (1, 2, 1)
    entries = [json.loads(line) for line in Path("r/quarantine.jsonl").read_text().splitlines()]
    assert {entry["name"] for entry in entries} == {f"log.jsonl:{line}" for line in (3, 4, 5, 6, 7)}
    reasons = {entry["name"]: entry["reason"] for entry in entries}
    assert "dialogue" in reasons["log.jsonl:3"] and "got history," in reasons["log.jsonl:4"]
    assert "log.jsonl:6 (id, reward)" in shown


def test_a_judge_gives_outcomes_that_the_logs_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [
        {"messages": [{"role": "user", "content": "6 * 7?"}, {"role": "assistant", "content": answer}], "answer": "42"}
        for answer in ("42", "43", "42", "41")
    ]
    Path("log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    judge = ["judge=exact_match", "log.args=[answer]", "judge.columns={gold: answer}"]
    assert import_logs.main(import_logs.COMMAND, ["source=log.jsonl", *judge, "run_dir=r", OFF]) == 0
    summary = json.loads(Path("r/summary.json").read_text())
    assert summary["judged"] == 4 and summary["pairs_total"] > 0


def test_ids_of_a_server_give_the_same_token_columns_as_the_search_that_sampled_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = ["search.algorithm=best_of_n", "search.simulations=4", "tasks.n=5", "filtered.per_task=8", "run_dir=s", OFF]
    assert build_prefs.main(build_prefs.COMMAND, [*keys, "pairs.kinds=[trajectory]"]) == 0
    renderer = Renderer.load(DEFAULT_MODEL)
    records = calls_of(Path("s"), renderer)
    Path("log.jsonl").write_text("\n".join(map(json.dumps, records)))
    assert import_logs.main(import_logs.COMMAND, [
        "source=log.jsonl", f"tokenizer={DEFAULT_MODEL}", "run_dir=r", OFF]) == 0  # fmt: skip
    summary = json.loads(Path("r/summary.json").read_text())
    assert summary["level"] == "tokens" and summary["tokens"]["doubts"] == {}
    assert summary["tokens"]["episodes"] == summary["episodes"] == len({one["session_id"] for one in records})
    assert summary["parts"] == len(records) - summary["episodes"]
    columns = ("input_ids", "action_mask", "logps")
    found, own = [
        sorted((row["task_id"], *(row[name] for name in columns)) for row in map(known, read_table(_table(run)))
               if row["terminated"]) for run in ("r", "s")
    ]  # fmt: skip
    assert found == own and found
    Path("verifiers.jsonl").write_text("\n".join(map(json.dumps, as_verifiers(records))))
    keys = ["source=verifiers.jsonl", f"tokenizer={DEFAULT_MODEL}", "run_dir=verifiers", OFF]
    assert import_logs.main(import_logs.COMMAND, keys) == 0
    told = json.loads(Path("verifiers", "summary.json").read_text())
    assert (told["level"], told["tokens"]["doubts"], told["formats"].keys()) == ("tokens", {}, {"verifiers"})
    again = sorted((row["task_id"], *(row[name] for name in columns))
                   for row in map(known, read_table(_table("verifiers"))) if row["terminated"])  # fmt: skip
    assert again == own
    pairs = [row for table in ("preferences", "multiturn_preferences")
             for row in map(known, read_table(Path("r") / table / "0000.parquet"))]  # fmt: skip
    assert pairs and all(json.loads(row["certificate"])["sampled"] for row in pairs)
    train = ["data.runs=[r]", "data.kinds=[step,trajectory]", "optimizer.max_updates=1", "run_dir=d", OFF]
    assert train_dpo.main(train_dpo.COMMAND, train) == 0
    told = json.loads(Path("d/summary.json").read_text())
    assert told["data"]["foreign"] == 0 and "level: text" not in json.dumps(told["warnings"])


def test_ids_that_prove_nothing_leave_a_row_its_messages_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = ["search.algorithm=best_of_n", "search.simulations=2", "tasks.n=10", "run_dir=s", OFF]
    assert build_prefs.main(build_prefs.COMMAND, [*keys, "pairs.kinds=[trajectory]"]) == 0
    records = calls_of(Path("s"), Renderer.load(DEFAULT_MODEL))
    sessions: dict[str, list[dict[str, Any]]] = {}
    for record in sorted(records, key=lambda one: len(one["request"]["messages"])):
        sessions.setdefault(record["session_id"], []).append(record)
    long = [calls for calls in sessions.values() if len(calls) > 3]
    long[0][1]["response"]["prompt_token_ids"][5] += 1  # another session has the same messages with other ids
    long[1][2]["response"]["choices"][0]["token_ids"][1] += 1  # another turn
    long[2].remove(long[2][1])  # a call that nobody logged
    long[3][-2]["response"]["choices"][0]["token_ids"][0] = 10**6  # of another tokenizer
    damaged = {calls[0]["session_id"] for calls in long[:4]}
    Path("log.jsonl").write_text("\n".join(json.dumps(one) for calls in sessions.values() for one in calls))
    assert import_logs.main(import_logs.COMMAND, [
        "source=log.jsonl", f"tokenizer={DEFAULT_MODEL}", "run_dir=r", OFF]) == 0  # fmt: skip
    summary = json.loads(Path("r/summary.json").read_text())
    assert summary["level"] == "mixed" and summary["episodes"] == len(sessions)
    assert summary["tokens"]["episodes"] == len(sessions) - len(damaged)
    assert sum(summary["tokens"]["doubts"].values()) == 4 == len(summary["tokens"]["doubts"])
    rows = list(map(known, read_table(_table("r"))))
    bare = [row for row in rows if row["input_ids"] is None]
    assert len(bare) == 4 and all("sampled" not in json.loads(row["certificate"]) for row in bare)


def test_a_log_begins_with_turns_that_are_not_to_be_learnt_and_they_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As AgentInstruct and AgentGym have them, with `loss`."""
    monkeypatch.chdir(tmp_path)
    said = [("human", "You play.", None), ("gpt", "Yes.", False), ("human", "Go.", None), ("gpt", "I went.", True)]
    turns = [{"from": who, "value": text, "loss": loss} for who, text, loss in said]
    Path("log.jsonl").write_text(json.dumps({"conversations": turns, "reward": 1.0}))
    assert import_logs.main(import_logs.COMMAND, ["source=log.jsonl", "run_dir=r", OFF]) == 0
    renderer = Renderer.load(str(DEFAULT_MODEL))
    (row,), _ = load_trajectories(["r"], [], renderer, max_length=2048)
    learnt = [id for id, mask in zip(row.input_ids, row.action_mask, strict=True) if mask]
    assert renderer.decode(learnt).startswith("I went.") and "Yes." in renderer.decode(row.input_ids)
