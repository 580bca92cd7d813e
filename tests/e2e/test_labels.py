"""Logs without actions: rows of inverse dynamics, labels by a model, and what says that they are labels."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from offline_agent.config.import_logs import ImportLogsConfig
from offline_agent.errors import DataError
from offline_agent.formats import inverse
from offline_agent.formats.row import ExportRow
from offline_agent.logs.labels import Labels
from offline_agent.pipelines import build_prefs, export, import_logs, rejudge, train_sft
from offline_agent.policies.base import DEFAULT_MODEL, Answer, Proposals, ProposeRequest
from offline_agent.records import Action, Message, ToolCall, call_message
from offline_agent.rendering.renderer import Renderer
from offline_agent.store.columns import known
from offline_agent.store.tables import read_table
from offline_agent.training.data.rows import load_trajectories
from offline_agent.training.data.selection import Selection

OFF = "tracking.uri=null"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of the shop's oracle, one attempt a task; its inverse rows are beside it."""
    run = tmp_path_factory.mktemp("played") / "run"
    keys = ["policy=noisy", "policy.noise=0", "search.algorithm=best_of_n", "search.simulations=1", "tasks.n=12"]
    assert build_prefs.main(build_prefs.COMMAND, [*keys, "pairs.kinds=[trajectory]", f"run_dir={run}", OFF]) == 0
    assert export.main([f"run_dir={run}", "format=inverse"]) == 0
    return run


def episodes(run: Path) -> list[dict[str, Any]]:
    (path,) = (run / "trajectories").glob("*.parquet")
    rows = [known(row) for row in read_table(path)]
    for row in rows:
        row["messages"] = [json.loads(one) if isinstance(one, str) else one for one in row["messages"]]
    return rows


def called(message: Message) -> ToolCall:
    return ToolCall(**message["tool_calls"][0]["function"])


class Knows:
    """Answers the questions of exported rows, word by word, as they were answered; others without a call."""

    identity = {"model_hash": "abc"}

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self.calls = {row["messages"][1]["content"]: called(row["messages"][2]) for row in rows}
        self.sure: dict[str, float] = {}

    def propose(self, requests: Sequence[ProposeRequest]) -> list[Answer]:
        out = []
        for request in requests:
            assert request.temperature == 0 and request.context.system == "Name the call that leads from the first " \
                "observation to the second." and request.context.tools  # fmt: skip
            call = self.calls.get(str(request.context.observation))
            logp = math.log(self.sure.get(str(request.context.observation), 0.9)) / 2
            out.append(Proposals((Action("", call=call, logps=(logp, logp)),)))
        return out


def test_inverse_rows_are_the_calls_that_changed_what_is_seen() -> None:
    def call(name: str, answer: str) -> list[Message]:
        return [{**call_message(name, {}), "content": "I think"}, {"role": "tool", "name": name, "content": answer}]

    both = {"role": "assistant", "content": "", "tool_calls": [*call("a", "")[0]["tool_calls"]] * 2}
    messages = [
        {"role": "system", "content": "S"}, {"role": "user", "content": "do it"}, *call("a", "one"), *call("b", "one"),
        both, {"role": "tool", "name": "a", "content": "two"}, {"role": "tool", "name": "a", "content": "2"},
        {"role": "assistant", "content": "words"}, {"role": "user", "content": "no"}, *call("c", "three"),
        call_message("d", {}),
    ]  # fmt: skip
    row = ExportRow("r", {"messages": messages, "tools": "[]", "task_id": "t1", "success": False})
    made = list(inverse.rows(row, held_out=True))  # a failure though it is
    with pytest.raises(DataError, match="not one|is one"):  # it is in one file alone
        list(inverse.rows(row))
    assert [(one["messages"][1]["content"], called(one["messages"][2]).name) for one in made] == [
        ("do it\n\nSecond:\none", "a"), ("do it\n\nFirst:\nno\n\nSecond:\nthree", "c"),
    ]  # fmt: skip
    assert all(one["messages"][2]["content"] == "" for one in made)


def test_rows_are_split_by_task_and_only_the_call_is_trained(played: Path) -> None:
    folder = Path(f"{played}-inverse")
    learnt, held = lines(folder / "inverse.jsonl"), lines(folder / "held_out.jsonl")
    assert learnt and held and not {one["task_id"] for one in learnt} & {one["task_id"] for one in held}
    turns = sum(message["role"] == "assistant" for row in episodes(played) for message in row["messages"])
    assert len(learnt) + len(held) == turns
    renderer = Renderer.load(DEFAULT_MODEL)
    rules = Selection(unknown="take")
    rows, _ = load_trajectories((), [str(folder / "inverse.jsonl")], renderer, max_length=2048, rules=rules)
    ids = [token for token, on in zip(rows[0].input_ids, rows[0].action_mask, strict=True) if on]
    assert renderer.parse(ids).call == called(learnt[0]["messages"][2])


def test_labels_are_replayed_cut_where_unsure_and_told(
    played: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, rows = Path(f"{played}-inverse"), episodes(played)
    inverse_rows = lines(folder / "inverse.jsonl") + lines(folder / "held_out.jsonl")
    model = Knows(inverse_rows)
    of_task = {row["task_id"]: [one for one in inverse_rows if one["task_id"] == row["task_id"]] for row in rows}
    wrong, unsure, lost = [row["task_id"] for row in rows if len(of_task[row["task_id"]]) > 3][:3]
    model.calls[of_task[wrong][2]["messages"][1]["content"]] = ToolCall("back", {})
    model.sure[of_task[unsure][-1]["messages"][1]["content"]] = 0.2
    model.sure[of_task[lost][0]["messages"][1]["content"]] = 0.3
    records = []
    for row in rows:
        start = next(n for n, message in enumerate(row["messages"]) if message["role"] == "assistant")
        seen = [message["content"] for message in row["messages"] if message["role"] == "tool"]
        records.append({"messages": row["messages"][:start], "observations": seen, "tools": json.loads(row["tools"]),
                        "task_id": row["task_id"], "success": 1})  # fmt: skip
    records[-1].pop("success")
    Path("seen.jsonl").write_text("\n".join(map(json.dumps, records)))
    def labels(config: ImportLogsConfig) -> Labels:
        return Labels(model, config.label.least, config.label.held_out)  # type: ignore[arg-type]

    monkeypatch.setattr(import_logs, "_labels", labels)
    keys = ["source=seen.jsonl", "env=shop", f"label.held_out={folder}/held_out.jsonl", "run_dir=r", OFF]
    assert import_logs.main(import_logs.COMMAND, keys) == 0

    summary = json.loads(Path("r/summary.json").read_text())
    held = summary["labels"]["held_out"]  # the model knows all rows but the one that was changed
    assert held["sure"] >= held["calls"] - 2 and held["right_of_sure"] >= 1 - 1 / held["sure"]
    assert summary["labels_cut"] == 1 and summary["episodes"] == len(rows) - 1
    assert summary["replays"]["confirmed"] == len(rows) - 2 and summary["replays"]["disagreed"] == 1
    refused = {one["kind"]: one for one in lines(Path("r/quarantine.jsonl"))}
    assert "0.3 for its first call" in refused["log"]["reason"] and "; 1 obs" in refused["label"]["reason"]
    got = {row["task_id"]: row for row in episodes(Path("r"))}
    assert got.keys() == {row["task_id"] for row in rows} - {wrong, lost}
    for row in rows:
        if (made := got.get(row["task_id"])) is None:
            continue
        labels = json.loads(made["verdict"])["evidence"]["labels"]
        true = [called(one) for one in row["messages"] if one["role"] == "assistant"]
        cut = row["task_id"] == unsure
        assert [called(one) for one in made["messages"] if one["role"] == "assistant"] == true[: len(true) - cut]
        assert labels["by"] == "abc" and len(labels["probabilities"]) == len(true) and labels["left_out"] == cut
        assert (made["success"], made["truncated"], made["input_ids"]) == (None if cut else True, cut, None)
    assert json.loads(Path("r/manifest.json").read_text())["hashes"]["labels"] == "abc"
    monkeypatch.setattr(import_logs, "_labels", lambda config: None)  # as it is without label.model
    capsys.readouterr()
    assert import_logs.main(import_logs.COMMAND, ["source=r/trajectories", "run_dir=read", OFF]) == 0
    assert "nobody logged them" in capsys.readouterr().out
    for run in ("r", "read"):
        _, report = load_trajectories([run, str(played)], (), Renderer.load(DEFAULT_MODEL), max_length=2048)
        (note,) = (note for note in report.notes() if "turns that a model named" in note)
        assert report.labelled == summary["filtered"] < report.read and note.startswith(str(report.labelled))
    kept = {row["task_id"]: json.loads(row["verdict"])["evidence"]["labels"] for row in episodes(Path("read"))}
    assert kept == {name: json.loads(row["verdict"])["evidence"]["labels"] for name, row in got.items()}
    assert rejudge.main(rejudge.COMMAND, ["run_dir=r", f"judge={__file__}:all_right", "out=again", OFF]) == 0
    for again in map(known, episodes(Path("again"))):
        assert again["success"] is (None if again["task_id"] == unsure else True)
        assert json.loads(again["verdict"])["evidence"]["labels"]["by"] == "abc"
    assert export.main(["run_dir=r", "format=openai"]) == 0
    assert "named by a model" in Path("r-openai/README.md").read_text()


def test_what_left_no_trace_is_not_labelled() -> None:
    model = Knows([])
    model.calls = dict.fromkeys(("do it\n\nSecond:\none", "do it\n\nFirst:\none\n\nSecond:\none"), ToolCall("a", {}))
    tools = [{"type": "function", "function": {"name": "a", "parameters": {}}}]
    opening = [{"role": "user", "content": "do it"}]
    labels = Labels(model, 0.0)  # type: ignore[arg-type]
    messages, told = labels.episode(opening, ["one", "one"], tools)
    assert len(messages) == 3 and told["left_out"] == 1
    with pytest.raises(DataError, match="first call"):  # no tool of that name
        labels.episode(opening, ["one"], [{"type": "function", "function": {"name": "b", "parameters": {}}}])


def all_right(trajectory: Any) -> float:
    """Judge everything a success."""
    return 1.0


def test_a_model_learns_the_rows_and_labels_a_log(
    played: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, record = Path(f"{played}-inverse"), episodes(played)[0]
    keys = [f"data.files=[{folder}/inverse.jsonl]", "data.unknown=take", "scratch.layers=1", "scratch.hidden_size=32"]
    assert train_sft.main(train_sft.COMMAND, [*keys, "optimizer.max_updates=2", "run_dir=m", OFF]) == 0
    seen = {"messages": [{"role": "user", "content": "buy"}], "observations": ["a", "b"], "success": True}
    Path("seen.jsonl").write_text(json.dumps({**seen, "tools": json.loads(record["tools"])}))
    asked = ["source=seen.jsonl", "label.least=0", OFF]
    model = ["label.model=m/model", f"label.held_out={folder}/held_out.jsonl"]
    assert import_logs.main(import_logs.COMMAND, [*asked, *model, "run_dir=r"]) == 0
    summary = json.loads(Path("r/summary.json").read_text())
    assert summary["labels"]["held_out"]["calls"] > 0 and len(summary["labels"]["by"]) == 16
    assert summary["episodes"] + summary["quarantined"]["logs"] == 1
    for wrong, why in ((["label.held_out=seen.jsonl"], "label.held_out"), ([*model, "format=openai"], "format")):
        assert import_logs.main(import_logs.COMMAND, [*asked, *wrong, "run_dir=n"]) == 2
        assert why in capsys.readouterr().err
    assert import_logs.main(import_logs.COMMAND, [*asked, "run_dir=n"]) == 0
    assert "label.model=MODEL" in Path("n/quarantine.jsonl").read_text()
