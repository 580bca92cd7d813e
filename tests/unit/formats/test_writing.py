"""Formats of other trainers: what their loaders make of random conversations of a run is the conversation again."""

from __future__ import annotations

import importlib.util
import itertools
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from openai.types.chat import ChatCompletionMessageParam
from pydantic import TypeAdapter

from offline_agent.errors import DataError
from offline_agent.formats import EXPORTS, FORMATS, atif, inspect, openai, recognise, sharegpt, trainers
from offline_agent.formats.row import PAIRS, ExportRow
from offline_agent.logs.episode import Fields
from offline_agent.pipelines import export
from offline_agent.policies.base import DEFAULT_MODEL
from tests.helpers import rows as kit
from tests.helpers.agent_log_writers import AGENT_WRITERS
from tests.helpers.log_writers import SESSIONS, TOOLS, WRITERS, spoken
from tests.helpers.trainer_loaders import IGNORED, chat_faults, function, input_output
from tests.helpers.trainer_loaders import sharegpt as loader

CONVERSATIONS = 300


def conversations(seed: int) -> list[list[dict[str, Any]]]:
    """Return random conversations; parallel calls, replies of the user, reasoning, odd characters."""
    rng = random.Random(seed)
    return [spoken(rng, number).expected() for number in range(CONVERSATIONS)]


def trajectory(messages: Sequence[Mapping[str, Any]], **more: Any) -> ExportRow:
    facts = {"task_id": "t", "split": "train", "origin": "search", "reward": 1.0, "success": True, "verdict": None}
    return ExportRow("run/filtered/0", {"messages": list(messages), "tools": json.dumps(TOOLS), **facts, **more})


def pair(messages: Sequence[Mapping[str, Any]]) -> ExportRow:
    """Return a pair of the last turn with a call (else the last) against another, after the messages before it."""
    turns = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
    place = next((n for n in reversed(turns) if calls(messages[n])), turns[-1])
    sides = {"chosen": [messages[place]], "rejected": [{"role": "assistant", "content": "no"}]}
    row = {"prompt": messages[:place], **sides, "tools": json.dumps(TOOLS), "task_id": "t"}
    return ExportRow("run/preferences/0", row)


def calls(message: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]


def thinks(messages: Sequence[Mapping[str, Any]]) -> bool:
    return any("reasoning_content" in message for message in messages)


def interrupted(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the user speaks right after a tool's result, which does not alternate."""
    return any((a["role"], b["role"]) == ("tool", "user") for a, b in itertools.pairwise(messages))


def told(messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, list[tuple[str, Any]]]]:
    """Return (role, text, calls) of each message, results of parallel calls joined."""
    out: list[tuple[str, str, list[tuple[str, Any]]]] = []
    for message in messages:
        text = message.get("content") or ""
        if message["role"] == "tool" and out and out[-1][0] == "tool":
            out[-1] = ("tool", f"{out[-1][1]}\n</tool_response>\n<tool_response>\n{text}", [])
        else:
            out.append((message["role"], text, calls(message)))
    return out


def read_sharegpt(turns: Sequence[Mapping[str, str]], system: str) -> list[tuple[str, str, list[tuple[str, Any]]]]:
    roles = {"user": "user", "assistant": "assistant", "observation": "tool", "function": "assistant"}
    out: list[tuple[str, str, list[tuple[str, Any]]]] = [("system", system, [])] if system else []
    for turn in turns:
        text, made = function(turn["content"]) if turn["role"] == "function" else (turn["content"], [])
        out.append((roles[turn["role"]], text, made))
    return out


def test_llama_factory_reads_every_turn_or_the_row_is_refused() -> None:
    """Alone catches a row that its loader skips with a warning, or a call, result or system message that is lost."""
    refused = 0
    for messages in conversations(1):
        try:
            (row,) = sharegpt.trajectory(trajectory(messages))
        except DataError as error:
            reason = str(error)
            assert thinks(messages) or "reasoning_content" not in reason
            assert interrupted(messages) or "alternation" not in reason
            refused += 1
            continue
        loaded = loader(row, ranking=False)
        assert loaded is not None, row
        assert read_sharegpt([*loaded[0], *loaded[1]], row["system"]) == told(messages)
        assert json.loads(row["tools"]) == TOOLS
    assert 0 < refused < 0.8 * CONVERSATIONS


def test_llama_factory_reads_both_sides_of_a_pair() -> None:
    for messages in conversations(2):
        if thinks(messages) or interrupted(messages):
            continue
        given = pair(messages)
        (row,) = sharegpt.preference(given)
        loaded = loader(row, ranking=True)
        assert loaded is not None
        sides = [read_sharegpt([side], "")[0] for side in loaded[1]]
        assert sides == told([*given.messages("chosen"), *given.messages("rejected")])
        assert read_sharegpt(loaded[0], row["system"]) == told(given.messages("prompt"))


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], "alternation"),
        ([{"role": "user", "content": "a"}, {"role": "system", "content": "b"}], "one, at the beginning"),
        ([{"role": "assistant", "content": "a"}], "follows nothing"),
        ([{"role": "user", "content": "a"}], "no turn of the policy"),
    ],
)
def test_llama_factory_names_what_it_cannot_carry(messages: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        list(sharegpt.trajectory(trajectory(messages)))


def test_text_that_looks_like_a_mark_of_a_call_is_refused() -> None:
    call = {"type": "function", "function": {"name": "search", "arguments": {}}}
    turn = {"role": "assistant", "content": "I write <tool_call> now", "tool_calls": [call]}
    with pytest.raises(DataError, match="<tool_call>"):
        list(sharegpt.trajectory(trajectory([{"role": "user", "content": "a"}, turn])))


@pytest.mark.parametrize(("written", "refused"), [("atif", False), ("llama_factory", True), ("openai", True)])
def test_what_is_written_is_read_back_whole(written: str, refused: bool) -> None:
    """Every format that is both written and read. Alone catches a call, a result or a text that one side loses."""
    part = next(part for part in EXPORTS[written].parts if part.rows != PAIRS)
    seen = 0
    for messages in conversations(3):
        while messages[-1]["role"] != "assistant":
            messages.pop()
        try:
            (row,) = part.convert(trajectory(messages))
        except DataError:
            assert refused
            continue
        seen += 1
        record = json.loads(json.dumps({"success": True, **row}))
        name, _ = recognise(record) or ("", "")
        (read,) = FORMATS[name].read(record, "f:1", Fields())
        assert list(read.messages) == messages
        assert [tool["function"] for tool in read.tools] == [tool["function"] for tool in TOOLS]
        assert read.score == 1.0
    assert seen > CONVERSATIONS / 4 and (refused or seen == CONVERSATIONS)


def test_every_format_is_in_the_suite() -> None:
    """A format that is read has a writer of its own here, which shares no code with it."""
    written = {name.partition("-")[0] for name in (*WRITERS, *SESSIONS, *AGENT_WRITERS)}
    assert written | {"harbor", "nebius"} == set(FORMATS)  # a trial of Harbor is several files; Nebius has no calls
    unread = {"trl", "axolotl", "verl", "together"}
    assert {"atif", "inspect", "inverse", "llama_factory", "openai"} | unread == set(EXPORTS)


def test_openai_accepts_every_chat() -> None:
    """Alone catches ids of calls that are not unique, results in another order, arguments that are objects."""
    types = TypeAdapter(list[ChatCompletionMessageParam])
    for messages in conversations(3):
        if thinks(messages):
            continue
        (row,) = openai.chat(trajectory(messages))
        assert not chat_faults(row["messages"])
        (preference,) = openai.preference(pair(messages))
        whole = [*preference["input"]["messages"], *preference["preferred_output"]]
        assert not chat_faults(whole)
        for message in types.validate_python(whole):  # the client's own types
            assert all(call["function"]["name"] for call in message.get("tool_calls", ()))
        assert len(whole) < len(row["messages"]) or not any(map(calls, messages))
        ids = [call["id"] for message in whole for call in message.get("tool_calls") or ()]
        assert len(ids) == len(set(ids))


def test_a_tool_whose_name_the_api_refuses_is_left_out() -> None:
    """Alone catches a file that a server refuses whole for one tool of an MCP server, as `files.read`."""
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    for name in ("files.read", "x" * 65, ""):
        tools = json.dumps([{"type": "function", "function": {"name": name}}])
        call = {"type": "function", "function": {"name": name, "arguments": {}}}
        with pytest.raises(DataError, match="a tool's name"):
            list(openai.chat(trajectory(said, tools=tools)))
        with pytest.raises(DataError, match="a tool's name"):
            list(openai.chat(trajectory([said[0], {"role": "assistant", "content": "", "tool_calls": [call]}])))


def test_together_accepts_every_pair_or_it_is_refused(tmp_path: Path) -> None:
    """Alone catches a null content, a prompt that ends with the assistant, a key that the service does not name.

    Its client checks the files where it is installed (pip install together); up to 2.14.0 it checks every message.
    """
    made = [row for said in conversations(4) if not thinks(said) for row in trainers.service_preference(pair(said))]
    answer = {"role": "assistant", "content": "a"}
    with pytest.raises(DataError, match="ends with a turn of the assistant"):
        list(trainers.service_preference(pair([{"role": "user", "content": "a"}, answer, answer])))
    for row in made:
        sides = [*row["preferred_output"], *row["non_preferred_output"]]
        assert [side["role"] for side in sides] == ["assistant"] * 2 and set(row["input"]) <= {"messages", "tools"}
        assert all(isinstance(said.get("content", ""), str) for said in (*row["input"]["messages"], *sides))
    check_together(kit.lines(tmp_path / "preference.jsonl", made))


def test_together_gets_ids_and_labels(tmp_path: Path) -> None:
    run = kit.run(tmp_path / "run", [kit.pair(0)], [kit.trajectory(0)])
    assert export.main([f"run_dir={run}", "format=together", f"tokenizer={DEFAULT_MODEL}"]) == 0
    (row,) = pq.read_table(f"{run}-together/sft.parquet").to_pylist()
    source = kit.trajectory(0)
    pieces = zip(source["input_ids"], source["action_mask"], strict=True)
    assert row["labels"] == [token if on else IGNORED for token, on in pieces]
    assert row["input_ids"] == source["input_ids"] and set(row["attention_mask"]) == {1}
    for name in ("sft.parquet", "preference.jsonl"):
        check_together(f"{run}-together/{name}")


def check_together(path: str) -> None:
    """Check a file with Together's client, where it is installed."""
    if importlib.util.find_spec("together") is not None:
        from together.lib.utils.files import check_file

        report = check_file(path)
        assert report["is_check_passed"], report


def test_atif_has_the_ids_that_were_sampled() -> None:
    """Alone catches spans of the mask that are given to other turns."""
    row = kit.trajectory(0, "red tea cup")
    (document,) = atif.document(ExportRow("run/trajectories/0", row))
    (read,) = FORMATS["atif"].read(json.loads(json.dumps(document)), "f:1", Fields())
    last = read.tokens[-1]
    assert last is not None and len(read.tokens) == 3
    ids, mask = row["input_ids"], row["action_mask"]
    assert [*last.prompt, *last.sampled] == ids[: len(last.prompt) + len(last.sampled)]
    sampled = [token for token, there in zip(ids, mask, strict=True) if there]
    assert [token for turn in read.tokens if turn is not None for token in turn.sampled] == sampled


def test_inspect_has_what_was_said_and_the_split(tmp_path: Path) -> None:
    """Alone catches a call, a result or a thought that is lost, and held-out tasks read back as train tasks."""
    for messages in conversations(6):
        (made,) = inspect.sample(trajectory(messages, split="test", terminated=True, truncated=False, reward=0.5))
        whole = json.loads(json.dumps({"eval": {"task": "shop"}, "sample": made}))
        (read,) = FORMATS["inspect"].read(whole, "f:1", Fields(outcome="success"))
        assert list(read.messages) == messages and read.split == "test" and read.success
        assert [tool["function"]["name"] for tool in read.tools] == [tool["function"]["name"] for tool in TOOLS]
    run = kit.run(tmp_path / "run", executed=[kit.trajectory(n % 2, split="validation") for n in range(4)])
    assert export.main([f"run_dir={run}", "format=inspect"]) == 0
    log = json.loads(Path(f"{run}-inspect/log.json").read_text())
    assert [sample["epoch"] for sample in log["samples"]] == [1, 1, 2, 2] and log["eval"]["model"] == "none/none"
    assert "split `train` alone" not in Path(f"{run}-inspect/README.md").read_text()


def test_axolotl_trains_exactly_the_mask() -> None:
    """Alone catches segments that are tokenised to other ids than the run's, or labels beside the mask."""
    row = kit.trajectory(0, "red tea cup")
    tokens = (tuple(row["input_ids"]), tuple(row["action_mask"]), ())
    (made,) = trainers.segments(ExportRow("n", row, tokens, kit.renderer()))
    ids, labels = input_output(json.loads(json.dumps(made)), kit.renderer().tokenizer)
    assert ids == row["input_ids"]
    assert labels == [token if on else IGNORED for token, on in zip(row["input_ids"], row["action_mask"], strict=True)]


def test_axolotl_pair_is_the_text_of_its_ids() -> None:
    row = kit.pair(0, "tea", "cup")
    names = ("prompt_ids", "chosen_ids", "rejected_ids", "chosen_mask", "rejected_mask")
    (made,) = trainers.texts(ExportRow("n", row, tuple(tuple(row[name]) for name in names), kit.renderer()))
    for name, text in made.items():
        assert kit.renderer().tokenizer(text, add_special_tokens=False)["input_ids"] == row[f"{name}_ids"]


def test_text_that_is_tokenised_otherwise_is_left_out() -> None:
    """Alone catches a row whose ids its own text does not give (a policy may sample any spelling)."""
    tokenizer = kit.renderer().tokenizer
    whole = tokenizer("search", add_special_tokens=False)["input_ids"]
    spelt = [token for letter in "search" for token in tokenizer(letter, add_special_tokens=False)["input_ids"]]
    assert whole != spelt
    with pytest.raises(DataError, match="other ids"):
        list(trainers.segments(ExportRow("n", {}, (tuple(spelt), (1,) * len(spelt), ()), kit.renderer())))


@pytest.mark.parametrize(
    "convert",
    [trainers.preference, trainers.labelled, sharegpt.preference, openai.preference, trainers.service_preference],
)
def test_a_side_of_several_turns_is_refused(convert: Any) -> None:
    row = kit.pair(0, "tea cup", "mug", kind="trajectory")
    with pytest.raises(DataError, match="several turns"):
        list(convert(ExportRow("n", row)))


def test_verl_gets_ids_and_mask() -> None:
    row = kit.trajectory(0)
    (made,) = trainers.tokens(ExportRow("n", row, (tuple(row["input_ids"]), tuple(row["action_mask"]), ())))
    assert (made["input_ids"], made["loss_mask"]) == (row["input_ids"], row["action_mask"])


def test_turns_that_are_not_to_be_learnt_are_not_written_as_messages_that_would_be() -> None:
    first = {"role": "assistant", "content": "as an example", "train": False}
    for row in ({"origin": "recovery", "messages": []}, {"messages": [first]}):
        with pytest.raises(DataError, match="its first turns are not to be learnt"):
            ExportRow("one", row).messages("messages")
    del first["train"]
    assert ExportRow("one", {"prompt": [{**first, "train": False}]}).messages("prompt") == [first]
