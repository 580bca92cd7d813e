"""Rows of data sets: tables and texts of conversations come in as the same records that JSON lines give."""

from __future__ import annotations

import datetime
import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_agent.errors import ConfigError, DataError
from offline_agent.formats import FORMATS, chosen, recognise, records
from offline_agent.logs.episode import Fields, LoggedEpisode
from offline_agent.messages import bare
from tests.helpers.log_writers import TOOLS, openai, sharegpt, spoken

MESSAGES = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "done"}]


def episodes(path: Path) -> list[LoggedEpisode]:
    out = []
    for record in records(path):
        assert record.damage is None, record.damage
        name, _ = recognise(record.value) or ("", "")
        out += list(FORMATS[name].read(record.value, record.name, Fields()))
    return out


def write(path: Path, table: pa.Table) -> None:
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.stem == "stream":  # as `datasets` writes it
        with pa.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table)
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)


def as_structs(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose calls have their arguments as objects, and whose messages hold a null for each absent key."""
    for message in row["messages"]:
        if isinstance(message["content"], list):
            message["content"] = message["content"][0]["text"]
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return row


def as_texts(row: dict[str, Any]) -> dict[str, Any]:
    name = "messages" if "messages" in row else "conversations"
    return {**row, name: json.dumps(row[name]), "tools": json.dumps(TOOLS)}


def as_text_of_each(row: dict[str, Any]) -> dict[str, Any]:
    return {**as_texts(row), "messages": [json.dumps(message) for message in row["messages"]]}


def as_trajectory(row: dict[str, Any]) -> dict[str, Any]:
    row = as_texts(row)
    return {**{key: value for key, value in row.items() if key != "messages"}, "trajectory": row["messages"]}


SHAPES = {"structs": as_structs, "texts": as_texts, "a text for each": as_text_of_each, "trajectory": as_trajectory}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow", "stream.arrow"])
def test_a_table_gives_what_json_lines_give(shape: str, name: str, tmp_path: Path) -> None:
    rng = random.Random(3)
    said = [spoken(rng, number) for number in range(100)]
    for one in said:
        for turn in one.turns:
            for tool, arguments in turn.calls:
                arguments |= {"q2": "only here"} if tool == "buy" else {}
    rows = [SHAPES[shape](openai(one, rng)) for one in said]
    write(tmp_path / name, pa.Table.from_pylist(rows))
    found = episodes(tmp_path / name)
    assert [episode.name for episode in found] == [f"{tmp_path / name}:{number}" for number in range(100)]
    for one, episode in zip(said, found, strict=True):
        wanted = one.expected()
        for message in wanted if shape == "structs" else ():  # a null is none that can be told from an absent key
            for call in message.get("tool_calls", ()):
                call["function"]["arguments"] = bare(call["function"]["arguments"])
        assert list(episode.messages) == wanted and list(episode.tools) == TOOLS
        assert (episode.task, episode.session, episode.success) == (one.task, one.session, one.success)


def test_sharegpt_and_the_rows_of_known_data_sets_are_read(tmp_path: Path) -> None:
    rng = random.Random(4)
    one = spoken(rng, 1)
    write(tmp_path / "a.parquet", pa.Table.from_pylist([as_texts(sharegpt(one, rng))]))
    assert list(episodes(tmp_path / "a.parquet")[0].messages) == one.expected(calls_apart=True)
    called = [{"role": "user", "content": "go"},
              {"role": "assistant", "content": "", "function_call": {"name": "open", "arguments": "{}"}},
              {"role": "function", "name": "open", "content": "x"}, MESSAGES[1]]  # fmt: skip
    toucan = {"uuid": "u", "messages": json.dumps(called), "available_tools": json.dumps(TOOLS), "question": "go"}
    smith = {"instance_id": "i", "messages": json.dumps(MESSAGES), "resolved": True, "traj_id": "t", "patch": ""}
    (tmp_path / "b.jsonl").write_text(f"{json.dumps(toucan)}\n{json.dumps(smith)}\n")
    first, second = episodes(tmp_path / "b.jsonl")
    assert [m["role"] for m in first.messages] == ["user", "assistant", "tool", "assistant"] and len(first.tools) == 3
    assert (second.task, second.success, second.outcome) == ("i", True, "resolved")


def test_what_arrow_adds_to_tools_and_its_decimals_are_no_values(tmp_path: Path) -> None:
    schemas = [{"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {
        argument: {"type": "string"}}}}} for name, argument in (("f", "x"), ("g", "y"))]  # fmt: skip
    row = {"messages": json.dumps(MESSAGES), "tools": schemas, "reward": Decimal("0.50")}
    write(tmp_path / "a.parquet", pa.Table.from_pylist([row]))
    (episode,) = episodes(tmp_path / "a.parquet")
    assert list(episode.tools) == schemas and episode.score == 0.5


def test_a_table_of_outcomes_in_any_encoding_and_one_whose_columns_are_not_clear(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        path.write_text("session,outcome\nß,5e-05\n", encoding=encoding)
        assert [record.value for record in records(path)] == [{"session": "ß", "outcome": 5e-5}]
    twice = "session,outcome,outcome\ns,1,0\n"
    for text, why in ((twice, "has outcome twice"), ("session,outcome\ns,1e999\n", "range")):
        path.write_text(text)
        assert why in str([record.damage for record in records(path)])


@pytest.mark.parametrize("said", [MESSAGES, [{"from": "human", "value": "go"}, {"from": "gpt", "value": "done"}],
                                  [{"role": "user", "content": "go"}, {"type": "reasoning", "summary": []},
                                   {"type": "message", "role": "assistant", "content": "done"}]])  # fmt: skip
def test_a_bare_list_is_a_conversation(said: Any, tmp_path: Path) -> None:
    for name, text, names in (
        ("a.jsonl", f"{json.dumps(said)}\n{json.dumps(said)}\n", [":1", ":2"]),
        ("a.json", json.dumps(said), [""]), ("b.json", json.dumps([said, said]), [":0", ":1"]),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
        found = episodes(tmp_path / name)
        assert [one.name.removeprefix(str(tmp_path / name)) for one in found] == names
        assert [list(one.messages) for one in found] == [MESSAGES] * len(names)


def test_damage_of_rows_is_named(tmp_path: Path) -> None:
    rows = [{"messages": json.dumps(MESSAGES)}, {"messages": '[{"role": "user", '}]
    write(tmp_path / "a.parquet", pa.Table.from_pylist(rows))
    good, bad = records(tmp_path / "a.parquet")
    assert good.damage is None and bad.name.endswith("a.parquet:1") and "messages: no JSON" in str(bad.damage)
    for number, value in enumerate((float("nan"), b"x", datetime.date(2026, 1, 1))):
        row = {"messages": [{"role": "user", "content": value}]}
        write(tmp_path / f"{number}.parquet", pa.Table.from_pylist([row]))
        (record,) = records(tmp_path / f"{number}.parquet")
        assert str(record.damage).startswith("messages: ")
    for name in ("a.parquet", "b.arrow"):
        (tmp_path / name).write_bytes(b"PAR1 and no more")
        (record,) = records(tmp_path / name)
        assert record.name == str(tmp_path / name) and "not readable" in str(record.damage)


# -- a reader of the user's own ----------------------------------------------------------------------------------------


def own(record: Any) -> list[dict[str, Any]]:
    """Read a list of what was said in turn, several of them as several conversations."""
    if record == "boom":
        raise ValueError("boom")
    turns = [list(zip(("user", "assistant"), one, strict=False)) for one in record["said"]]
    return [{"messages": [{"role": role, "content": text} for role, text in one], "success": True} for one in turns]


def test_a_users_own_reader_is_named_by_its_path() -> None:
    formats = chosen(f"{__name__}:own")
    ((name, format),) = formats.items()
    assert recognise("boom", formats) == (name, "the reader that the command names")
    one, two = format.read({"said": [["go", "done"], ["go", "stop"]]}, "log:1", Fields())
    assert (one.name, two.name, one.success) == ("log:1/0", "log:1/1", True) and list(one.messages) == MESSAGES
    for record, told in (
        ("boom", f"{name} raised ValueError: boom"), ({"said": [[]]}, "wanted an object with messages"),
        ({"said": [["go"]]}, "no message is the assistant's"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=told):
            list(format.read(record, "log:1", Fields()))
    for format_name, told in (("opnai", "Did you mean 'openai'"), (f"{__name__}:nobody", "has no 'nobody'")):
        with pytest.raises(ConfigError, match=told):
            chosen(format_name)
    assert chosen("auto") is FORMATS and list(chosen("codex")) == ["codex"]
