"""Formats of logs: what others write is read whole, and what is damaged is named."""

from __future__ import annotations

import copy
import gzip
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_agent import formats
from offline_agent.errors import ConfigError, DataError
from offline_agent.formats import FORMATS, recognise
from offline_agent.logs import files
from offline_agent.logs.episode import Fields, LoggedEpisode
from tests.helpers.log_writers import (
    TOOLS,
    WRITERS,
    openai,
    spoken,
    verifiers_trace,
)

ONE = {"messages": [{"role": "user", "content": "go"}, {"role": "assistant", "content": "done"}], "success": 1}


def read(record: dict[str, Any], fields: Fields | None = None) -> list[LoggedEpisode]:
    found = recognise(record)
    assert found is not None
    return list(FORMATS[found[0]].read(record, "log:1", fields or Fields()))


@pytest.mark.parametrize("format", WRITERS)
def test_a_thousand_logs_come_in_with_nothing_lost_and_nothing_invented(format: str, tmp_path: Path) -> None:
    rng = random.Random(7)
    said = [spoken(rng, number) for number in range(1000)]
    path = tmp_path / "log.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(WRITERS[format](one, rng), ensure_ascii=rng.random() < 0.5) + "\n" for one in said)
    records = list(formats.records(path))
    assert len(records) == 1000
    for one, record in zip(said, records, strict=True):
        name, _ = recognise(record.value) or ("", "")
        (episode,) = FORMATS[name].read(record.value, record.name, Fields())
        called = any(turn.calls for turn in one.turns)
        assert name == format.removesuffix("-trace") or (format in ("anthropic", "text_calls") and not called)
        assert list(episode.messages) == one.expected(calls_apart=format == "sharegpt")
        assert list(episode.tools) == ([] if format == "adp" else TOOLS)
        task = f"suite/{one.task}" if format == "inspect" else one.task
        assert (episode.task, episode.session, episode.success) == (task, one.session, one.success)
        assert LoggedEpisode.from_json(json.loads(json.dumps(episode.to_json()))) == episode


def _with(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(record: dict[str, Any]) -> None:
        *parents, last = [int(part) if part.isdigit() else part for part in path.split("/")]
        at: Any = record
        for part in parents:
            at = at[part]
        at[last] = value

    return change


def _without(path: str) -> Callable[[dict[str, Any]], None]:
    def change(record: dict[str, Any]) -> None:
        *parents, last = [int(part) if part.isdigit() else part for part in path.split("/")]
        at: Any = record
        for part in parents:
            at = at[part]
        del at[last]

    return change


CALLED = {
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "search", "arguments": "{\"q\": 1}"}},
            {"id": "b", "type": "function", "function": {"name": "open", "arguments": "{}"}},
        ]},
        {"role": "tool", "tool_call_id": "b", "content": "opened"},
        {"role": "tool", "tool_call_id": "a", "content": "found"},
        {"role": "assistant", "content": "done"},
    ],
    "tools": TOOLS, "success": True,
}  # fmt: skip

ARGUMENTS = "messages/2/tool_calls/0/function/arguments"
RESULT = {"role": "tool", "content": "x"}
DAMAGES = {
    "unknown role": (_with("messages/1/role", "oracle"), "message 1: role: got 'oracle', allowed: system, developer"),
    "no role": (_without("messages/4/role"), "message 4: role: got None"),
    "role is a number": (_with("messages/4/role", 3), "message 4: role: got 3"),
    "a message is text": (_with("messages/5", "done"), "message 5: it: no JSON"),
    "a message is a list": (_with("messages/5", []), "message 5: got list []"),
    "no content": (_without("messages/1/content"), "message 1: it has no content"),
    "content is a number": (_with("messages/1/content", 5), "message 1: content: got int 5"),
    "an image": (_with("messages/1/content", [{"type": "image_url"}]), "part of type 'image_url'"),
    "an empty turn": (_with("messages/5/content", None), "message 5: an assistant message with neither content"),
    "arguments cut": (_with(ARGUMENTS, '{"q": '), "the arguments of search: no JSON"),
    "arguments a list": (_with(ARGUMENTS, "[1]"), "got list [1], wanted an object"),
    "a call without a name": (_without("messages/2/tool_calls/0/function/name"), "wanted a function with name"),
    "calls are text": (_with("messages/2/tool_calls", "search"), "message 2: tool_calls: no JSON"),
    "calls are an object": (_with("messages/2/tool_calls", {"a": 1}), "message 2: tool_calls: got dict"),
    "an unknown id": (_with("messages/3/tool_call_id", "z"), "message 3: tool_call_id 'z' is of no call before it"),
    "an id twice": (_with("messages/4/tool_call_id", "b"), "message 4: tool_call_id 'b' was answered already"),
    "a result missing": (_without("messages/4"), "the turn before it called search, and no result came"),
    "no calls for results": (_without("messages/2/tool_calls"), "message 2: an assistant message with neither content"),
    "a result first": (_with("messages/1", RESULT), "message 1: a tool's result, and no call"),
    "a result too many": (_with("messages/5", RESULT), "message 5: a result of a tool beyond"),
    "no turn": (_with("messages", [{"role": "user", "content": "go"}]), "no message is the assistant's"),
    "begins with a turn": (_with("messages", [{"role": "assistant", "content": "x"}]), "begins with the"),
    "tools are a number": (_with("tools", 4), "tools: got int 4"),
    "tools are no JSON": (_with("tools", "[{"), "tools: no JSON"),
    "a tool without a name": (_with("tools", [{"type": "function"}]), "tool 0: got dict"),
    "an outcome of 7": (_with("success", 7), "success: got 7, wanted an outcome: true, false, or a number from 0 to 1"),
    "an outcome of -1": (_with("success", -1.0), "success: got -1.0"),
    "an unknown split": (_with("split", "dev"), "split: got 'dev', allowed: train, validation, test"),
    "no choices": (_with("choices", []), "choices: wanted a list with at least one choice"),
    "a streamed choice": (_with("choices", [{"delta": {}}]), "choice 0: it has no message"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named(damage: str) -> None:
    change, said = DAMAGES[damage]
    record = copy.deepcopy(CALLED)
    assert read(record)
    change(record)
    with pytest.raises(DataError) as caught:
        read(record)
    assert said in str(caught.value)


def test_results_are_in_the_order_of_their_calls_and_ids_are_gone() -> None:
    (episode,) = read(CALLED)
    assert [m["content"] for m in episode.messages if m["role"] == "tool"] == ["found", "opened"]
    assert "tool_call_id" not in json.dumps(episode.messages) and '"id"' not in json.dumps(episode.messages)


def test_calls_of_the_api_with_several_choices_are_an_episode_each() -> None:
    request = {"messages": CALLED["messages"][:2], "tools": TOOLS}
    choices = [{"message": {"role": "assistant", "content": text}, "finish_reason": reason}
               for text, reason in (("one", "stop"), ("two", "length"))]  # fmt: skip
    one, two = read({"request": request, "response": {"choices": choices}, "session_id": "s"})
    assert [one.messages[-1]["content"], two.messages[-1]["content"]] == ["one", "two"]
    assert (one.cut, two.cut, one.session, two.session) == (False, True, "s", "s")
    assert (one.choice, two.choice, one.record) == (0, 1, two.record)


def test_older_names_of_openai_are_read() -> None:
    record = {
        "messages": [
            {"role": "developer", "content": "be brief"}, {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "function_call": {"name": "search", "arguments": "{}"}},
            {"role": "function", "name": "search", "content": "found"},
        ],
        "functions": [TOOLS[0]["function"]],
    }  # fmt: skip
    (episode,) = read(record)
    assert [message["role"] for message in episode.messages] == ["system", "user", "assistant", "tool"]
    assert list(episode.tools) == TOOLS[:1] and episode.success is None


def test_copied_context_of_atif_is_passed_over() -> None:
    steps = [
        {"source": "user", "message": "old", "is_copied_context": True},
        {"source": "user", "message": "go"}, {"source": "agent", "message": "done"},
    ]  # fmt: skip
    (episode,) = read({"schema_version": "ATIF-v1.8", "steps": steps})
    assert [message["content"] for message in episode.messages] == ["go", "done"]


DATA = Path(__file__).parents[2] / "data"


def test_inspects_own_logs_are_read_alike_as_an_archive_and_as_json() -> None:
    """The files were written by inspect-ai 0.3.285: two samples, two epochs, a model that answers from a list."""
    found = []
    for name in ("inspect.eval", "inspect.json.gz"):
        records = list(formats.records(DATA / name))
        episodes = [next(FORMATS["inspect"].read(r.value, r.name, Fields())) for r in records]
        found.append(sorted((e.task, e.success, [m["role"] for m in e.messages], bool(e.tools)) for e in episodes))
    once, thrice = (["system", "user", *["assistant", "tool"] * n, "assistant"] for n in (1, 3))
    assert found[0] == [
        ("t/2", False, ["system", "user", "assistant"], True), ("t/2", False, ["system", "user", "assistant"], True),
        ("t/q1", True, once, True), ("t/q1", True, thrice, True),
    ]  # fmt: skip
    assert [(one[0], one[1], one[3]) for one in found[1]] == [(one[0], one[1], one[3]) for one in found[0]]


def test_an_archive_that_was_cut_or_is_none_is_told(tmp_path: Path) -> None:
    for name, data in (("a.eval", (DATA / "inspect.eval").read_bytes()[:-3000]), ("b.eval", b"no archive")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match="not readable as an archive of Inspect"):
            list(formats.records(tmp_path / name))
    data = bytearray((DATA / "inspect.eval").read_bytes())
    data[data.index(b"samples/q1_epoch_1.json") + 200] ^= 255
    (tmp_path / "c.eval").write_bytes(data)
    damaged = [record for record in formats.records(tmp_path / "c.eval") if record.damage]
    assert [record.name for record in damaged] == [f"{tmp_path}/c.eval:samples/q1_epoch_1.json"]


def test_a_sample_that_ended_in_an_error_is_no_attempt() -> None:
    sample = {"id": 1, "epoch": 1, "messages": ONE["messages"], "scores": {"a": {"value": "I"}, "b": {"value": 0.5}}}
    (episode,) = read({"eval": {"task": "t"}, "sample": sample}, Fields(outcome="b"))
    assert (episode.score, episode.success, episode.task) == (0.5, False, "t/1")
    with pytest.raises(DataError, match="there is no 'c'; there are a, b"):
        read({"eval": {}, "sample": sample}, Fields(outcome="c"))
    with pytest.raises(DataError, match="ended in an error: 'boom'"):
        read({"eval": {}, "sample": {**sample, "error": {"message": "boom"}}})


def test_outcome_task_and_session_may_have_other_names() -> None:
    record = {**ONE, "info": {"grade": 0.7, "problem": {"b": 1, "a": 2}}, "who": 5, "answer": "42"}
    wide = Fields(threshold=0.5, range=(-1.0, 1.0))
    won = [read({**ONE, "success": value}, wide)[0] for value in (-1, 0, 0.5, 1, True)]
    assert [(e.score, e.success) for e in won] == [
        (0.0, False), (0.5, False), (0.75, True), (1.0, True), (1.0, True)]  # fmt: skip
    fields = Fields(
        outcome="info.grade", threshold=0.6, task="info.problem", session="who", split="validation",
        args=("answer", "absent"),
    )  # fmt: skip
    (episode,) = read(record, fields)
    assert (episode.score, episode.success, episode.outcome) == (0.7, True, "info.grade")
    assert (episode.task, episode.session, episode.split) == ('{"a": 2, "b": 1}', "5", "validation")
    assert episode.args == {"answer": "42"}
    (episode,) = read({**ONE, "success": None, "label": "good", "reward": {"reward": 0.25, "format": 1.0}})
    assert (episode.score, episode.success, episode.outcome) == (0.25, False, "reward")
    assert read({"messages": ONE["messages"]})[0].group == read({**ONE})[0].group != read(CALLED)[0].group


# -- files -----------------------------------------------------------------------------------------------------------

GOOD = json.dumps(ONE)


@pytest.mark.parametrize(
    ("content", "good", "damages"),
    [
        (f"{GOOD}\n{GOOD[:30]}\n\n{GOOD}\n".encode(), 2, {":2": "no JSON"}),
        (f"\ufeff{GOOD}\n{GOOD}".encode(), 2, {}),
        (f"{GOOD}\n{GOOD}\n".encode("utf-16"), 2, {}),
        (f"{GOOD}\r\n{GOOD}\r\n".encode(), 2, {}),
        (f"{GOOD}\n".encode() + b'{"a": "\xe9"}\n' + GOOD.encode(), 2, {":2": "no utf-8 text"}),
        (b'{"a": NaN}\n' + GOOD.encode(), 1, {":1": "NaN is no JSON"}),
        (("[" * 100_000 + "\n" + GOOD).encode(), 1, {":1": "no JSON"}),
        (b"", 0, {}),
    ],
)
def test_a_damaged_line_is_named_and_passed_over(
    content: bytes, good: int, damages: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(content)
    records = list(files.records(path))
    assert [record.value for record in records if record.damage is None] == [ONE] * good
    told = {record.name.removeprefix(str(path)): record.damage or "" for record in records if record.damage}
    assert told.keys() == damages.keys() and all(damages[name] in told[name] for name in damages)


def test_a_json_file_may_be_one_record_a_list_or_lines(tmp_path: Path) -> None:
    for content, names in ((GOOD, [""]), (f"[{GOOD}, {GOOD}]", [":0", ":1"]), (f"{GOOD}\n{GOOD}\n", [":1", ":2"])):
        path = tmp_path / "log.json"
        path.write_text(content)
        records = list(files.records(path))
        assert [(record.name.removeprefix(str(path)), record.value) for record in records] == [(n, ONE) for n in names]


def test_a_compressed_file_that_was_cut_gives_what_is_there(tmp_path: Path) -> None:
    rng = random.Random(0)
    lines = [json.dumps(openai(spoken(rng, number), rng)) for number in range(200)]
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode())[:-2000])
    *read_lines, last = files.records(path)
    assert [json.dumps(record.value) for record in read_lines if record.damage is None] == lines[: len(read_lines)]
    assert len(read_lines) > 20 and last.name == str(path) and "ends in the middle" in str(last.damage)


def test_sources_that_hold_no_log_are_refused_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "log.jsonl").touch()
    with pytest.raises(ConfigError) as caught:
        files.find([str(tmp_path / name) for name in ("empty", "notes.txt", "logs.jsonl")])
    assert len(caught.value.faults) == 3 and "log.jsonl" in str(caught.value)
    assert files.find([str(tmp_path)]) == [tmp_path / "log.jsonl"]


# -- formats of captures -----------------------------------------------------------------------------------------------


def test_what_adp_says_of_code_pages_and_rewards() -> None:
    content = [
        {"class_": "text_observation", "content": "go", "source": "user"},
        {"class_": "code_action", "language": "bash", "content": "ls", "description": "I look"},
        {"class_": "text_observation", "content": "a.txt", "source": "user"},
        {"class_": "api_action", "function": "open", "kwargs": {"url": "u"}, "reward": 0},
        {"class_": "web_observation", "url": "u", "axtree": "tree", "html": None, "image_observation": None},
        {"class_": "message_action", "content": "done", "description": "that is it", "reward": 1.0},
    ]
    (episode,) = read({"id": "x", "content": content})
    look, listed, _, page, last = episode.messages[1:]
    assert look["content"] == "I look" and listed == {"role": "tool", "content": "a.txt", "name": "code_action"}
    assert look["tool_calls"][0]["function"]["arguments"] == {"language": "bash", "content": "ls"}
    assert json.loads(page["content"]) == {"url": "u", "axtree": "tree"}
    assert last == {"role": "assistant", "content": "done", "reasoning_content": "that is it"}
    assert (episode.success, episode.outcome, episode.session) == (True, "reward", "x")
    several = [*content[:3], {**content[3], "reward": 0.5}, *content[4:]]
    assert read({"id": "x", "content": several})[0].success is None  # nobody says how they add up
    for change, said in (
        (_with("content/0/source", "agent"), "item 0: source: got 'agent'"),
        (_with("content/4/image_observation", {"content": "p.png"}), "item 4: image_observation"),
        (_with("content/2/class_", "image_observation"), "item 2: class_: got 'image_observation'"),
        (_with("content/2/tool_call_id", "z"), "tool_call_id 'z' is of no call before it"),
        (_with("schema_version", "2.0.0"), "schema_version: got '2.0.0'"),
        (_with("content/3/kwargs", "u"), "item 3: kwargs: got 'u'"),
    ):
        record = copy.deepcopy({"id": "x", "content": content})
        record["content"][1]["tool_call_id"] = "y" if "'z'" in said else None
        change(record)
        with pytest.raises(DataError, match=re.escape(said)):
            read(record)


def test_paths_of_a_verifiers_trace_are_episodes() -> None:
    rng = random.Random(3)
    record = verifiers_trace(spoken(rng, 1), rng)
    again = {**record["nodes"][-1], "message": {"role": "assistant", "content": "otherwise"}}
    record["nodes"].append(again)
    one, two = read(record)
    assert one.messages[:-1] == two.messages[:-1] and two.messages[-1]["content"] == "otherwise"
    assert all(turn is not None and turn.sampled == (6, 7) for turn in one.tokens)
    for change, said in (
        (_with("nodes/1/parent", 99), "node 1: parent: got 99"), (_with("nodes/0/parent", 1), "node 0: parent: got 1"),
        (_with("rewards/main/score", "high"), "rewards: got"), (_with("errors", [{"message": "x"}]), "in an error"),
        (_with("nodes/0/mask", [True]), "mask: wanted one entry"),
    ):  # fmt: skip
        broken = copy.deepcopy(record)
        change(broken)
        with pytest.raises(DataError, match=said):
            read(broken)
    del record["rewards"]["main"]  # a verifier that failed gives no reward, which is not 0
    assert read(record)[0].score is None
