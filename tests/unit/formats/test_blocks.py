"""Formats whose turns are made of blocks, items, or text with calls in it: what each says, and what each refuses."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest

from offline_agent.errors import DataError
from offline_agent.formats import FORMATS, recognise
from offline_agent.logs.episode import Fields, LoggedEpisode
from tests.helpers.log_writers import TOOLS

Json = dict[str, Any]


def read(record: Json, format: str) -> LoggedEpisode:
    found = recognise(record)
    assert found is not None and found[0] == format
    (episode,) = FORMATS[format].read(record, "log:1", Fields())
    return episode


def refused(record: Json, format: str, told: str) -> None:
    with pytest.raises(DataError, match=re.escape(told)):
        read(record, format)


def use(id: str, name: str = "open") -> Json:
    return {"type": "tool_use", "id": id, "name": name, "input": {}}


def result(id: str, content: Any = "x") -> Json:
    return {"type": "tool_result", "tool_use_id": id, "content": content}


TEXT = {"type": "text", "text": "hm"}


def test_a_call_of_anthropics_api_goes_on_with_its_response() -> None:
    tool = {"name": "open", "input_schema": {"type": "object"}}
    request = {"system": [TEXT], "messages": [{"role": "user", "content": "go"}], "tools": [tool]}
    response = {"type": "message", "role": "assistant", "stop_reason": "max_tokens", "usage": {},
                "content": [{"type": "redacted_thinking", "data": "x"}, TEXT, use("a"), use("b")]}  # fmt: skip
    episode = read({"request": request, "response": response, "session_id": "s"}, "anthropic")
    system, _, turn = episode.messages
    assert (system["content"], turn["content"], len(turn["tool_calls"])) == ("hm", "hm", 2)
    assert episode.cut and episode.left == "1 thoughts that only the provider can read"
    assert episode.tools[0]["function"] == {"name": "open", "parameters": {"type": "object"}}


@pytest.mark.parametrize(
    ("turn", "answers", "told"),
    [
        ([use("a"), TEXT], [result("a")], "message 1: a part of type 'text' follows a call"),
        ([use("a")], [TEXT, result("a")], "message 2: a tool_result follows a part of type 'text'"),
        ([use("a")], [result("z")], "tool_call_id 'z' is of no call before it (there are a)"),
        ([use("a"), use("b")], [result("a")], "the turn before it called open, and no result came"),
        ([use("a")], [result("a", [{"type": "image", "source": {}}])], "a part of type 'image'; only text"),
        ([{"type": "server_tool_use", "id": "a", "name": "web_search", "input": {}}], [result("a")],
         "a part of type 'server_tool_use'"),
        ([result("a")], [result("a")], "a part of type 'tool_result'"),
        ([use("a")], [use("a")], "a part of type 'tool_use'"),
        ([{**use("a"), "input": "x"}], [result("a")], "the arguments of open: no JSON"),
    ],
)  # fmt: skip
def test_blocks_that_cannot_be_kept_are_refused(turn: list[Json], answers: list[Json], told: str) -> None:
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": turn},
                {"role": "user", "content": answers}, {"role": "assistant", "content": "done"}]  # fmt: skip
    refused({"messages": messages}, "anthropic", told)


def test_blocks_that_went_through_arrow_lose_its_nulls() -> None:
    blocks = [{**TEXT, "input": None, "id": None, "name": None},
              {**use("a"), "text": None, "input": {"q": 1, "other": None}}]  # fmt: skip
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": blocks}]
    (call,) = read({"messages": messages}, "anthropic").messages[1]["tool_calls"]
    assert call["function"]["arguments"] == {"q": 1}


# -- items -------------------------------------------------------------------------------------------------------------

CALL = {"type": "function_call", "call_id": "a", "name": "open", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "a", "output": "x"}
ANSWER = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]}


def test_a_call_of_the_responses_api_goes_on_with_its_output() -> None:
    tools = [{"type": "function", "name": "open", "parameters": {"type": "object"}}, {"type": "web_search"},
             {"type": "custom", "name": "patch", "description": "d", "format": {"type": "text"}}]  # fmt: skip
    no = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "I cannot."}]}
    response = {"output": [{"type": "reasoning", "summary": []}, no], "status": "incomplete",
                "incomplete_details": {"reason": "max_output_tokens"}}  # fmt: skip
    record = {"request": {"input": "go", "instructions": "be brief", "tools": tools}, "response": response}
    episode = read(record, "responses")
    assert [message["content"] for message in episode.messages] == ["be brief", "go", "I cannot."]
    assert [tool["function"]["name"] for tool in episode.tools] == ["open", "patch"] and episode.cut
    assert str(episode.left).split("; ") == [
        "1 thoughts that only the provider can read", "1 tools of type web_search, without a schema"]  # fmt: skip
    refused({"input": [{"role": "user", "content": "go"}], "output": "done"}, "responses", "output: got str 'done'")
    later = {**record, "response": {**response, "previous_response_id": "r"}}
    refused(later, "responses", "previous_response_id: what was said before")


@pytest.mark.parametrize(
    ("items", "told"),
    [
        ([CALL, ANSWER, OUTPUT], "item 2: a message follows a call whose result did not come"),
        ([{"type": "web_search_call", "action": {}}, CALL], "item 1: type: got 'web_search_call', read are message"),
        ([{**CALL, "type": "custom_tool_call"}, OUTPUT], "item 1: input: got None, wanted text"),
        ([CALL, {**OUTPUT, "call_id": "z"}], "tool_call_id 'z' is of no call before it (there are a)"),
        ([CALL, {**OUTPUT, "output": {"type": "text"}}], "got dict"),
        ([CALL, OUTPUT, None], "item 3: type: got None"),
        ([CALL, {**OUTPUT, "output": [{"type": "input_image"}]}], "a part of type 'input_image'"),
    ],
)
def test_items_that_cannot_be_kept_are_refused(items: list[Json], told: str) -> None:
    refused({"input": [{"role": "user", "content": "go"}, *items]}, "responses", told)


# -- calls in the text -------------------------------------------------------------------------------------------------

LOOK = "\nThought: I look.\nAction: search_for_shop\nAction Input: {\n  \"q\": \"lamp\"\n}"
TOOLLLAMA = {"id": "Step 2: Find a lamp.", "conversations": [
    {"from": "system", "value": "You are AutoGPT."}, {"from": "user", "value": "\nFind a lamp.\nBegin!\n"},
    {"from": "assistant", "value": LOOK}, {"from": "function", "value": '{"error": "", "response": "a lamp"}'},
    {"from": "assistant", "value": "\nThought: \nAction: Finish\nAction Input: {\"return_type\": \"give_answer\"}"},
]}  # fmt: skip


def test_thought_action_and_its_input_are_a_turn_with_a_call() -> None:
    _, _, look, found, end = read(TOOLLLAMA, "text_calls").messages
    assert look["content"] == "I look." and found == {
        "role": "tool", "name": "search_for_shop", "content": '{"error": "", "response": "a lamp"}'}  # fmt: skip
    assert look["tool_calls"][0]["function"] == {"name": "search_for_shop", "arguments": {"q": "lamp"}}
    assert end["content"] == "" and end["tool_calls"][0]["function"]["name"] == "Finish"


def hermes(*turns: str) -> Json:
    """Return messages of the user and the model in alternation."""
    return {"messages": [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(turns)],
            "tools": json.dumps(TOOLS)}  # fmt: skip


CALLED = "<tool_call>\n{\"name\": \"open\", \"arguments\": {\"n\": 1}}\n</tool_call>"
SEEN = "<tool_response>\nseen\n</tool_response>"


def test_hermes_calls_may_be_in_pythons_notation_and_results_with_what_the_user_says() -> None:
    python = "<think>\nhm\n</think>\n<tool_call>{'arguments': {'n': None, 'b': True}, 'name': 'open'}</tool_call>"
    episode = read(hermes("go", python, f"{SEEN}\nGo on.", "done"), "text_calls")
    _, turn, seen, on, _ = episode.messages
    assert (turn["content"], turn["reasoning_content"], seen["content"], on["content"]) == ("", "hm", "seen", "Go on.")
    assert turn["tool_calls"][0]["function"]["arguments"] == {"n": None, "b": True} and list(episode.tools) == TOOLS


@pytest.mark.parametrize(
    ("turns", "told"),
    [
        ((f"{CALLED} and so on", SEEN, "done"), "turn 1: <tool_call>"),
        (("<tool_call>\n{}", SEEN, "done"), "wanted </tool_call> after it"),
        (("<tool_call>open(1)</tool_call>", SEEN, "done"), "turn 1: a call: no JSON"),
        ((CALLED, f"{SEEN}{SEEN}", "done"), "a result of a tool beyond the calls before it"),
        ((f"{CALLED}{CALLED}", SEEN, "done"), "the turn before it called open, and no result came"),
        ((CALLED, "<tool_response>seen", "done"), "turn 2: got '<tool_response>seen', wanted <tool_response> and"),
    ],
)
def test_calls_in_a_text_that_are_damaged_are_refused(turns: tuple[str, ...], told: str) -> None:
    refused(hermes("go", *turns), "text_calls", told)


def test_an_action_whose_input_is_no_json_is_refused() -> None:
    record = copy.deepcopy(TOOLLLAMA)
    record["conversations"][2]["value"] = LOOK[:-1]  # type: ignore[index]
    refused(record, "text_calls", "turn 2: the Action Input of search_for_shop: no JSON")


def test_a_message_for_each_call_makes_one_turn_with_what_is_said_before() -> None:
    call = json.dumps({"name": "open", "arguments": {"n": 1}})
    told = [("user", "go"), ("assistant", "I look."), ("tool_call", call), ("tool_call", call), ("tool_response", "x"),
            ("tool", "y"), ("tool_call", call), ("tool_response", "z"), ("assistant", "done")]  # fmt: skip
    record = {"messages": [{"role": role, "content": text} for role, text in told]}
    _, look, first, second, again, third, _ = read(record, "text_calls").messages
    assert (look["content"], len(look["tool_calls"]), len(again["tool_calls"])) == ("I look.", 2, 1)
    assert [first["content"], second["content"], third["content"]] == ["x", "y", "z"]
    record["messages"][2]["content"] = "open(1)"
    refused(record, "text_calls", "turn 2: a call: no JSON")


@pytest.mark.parametrize("value", ["{1, 2}", "(1, 2)", "{3: 4}", "1e999", "'\\ud800'", "{'y': 1, 'y': 2}"])
def test_what_json_has_no_word_for_is_no_call(value: str) -> None:
    told = "<tool_call>{'name': 'open', 'arguments': {'x': %s}}</tool_call>"
    refused(hermes("go", told % value, SEEN, "done"), "text_calls", "a call: no JSON")
    (call,) = read(hermes("go", told % "[True]", SEEN, "done"), "text_calls").messages[1]["tool_calls"]
    assert call["function"]["arguments"] == {"x": [True]}


def test_a_number_beyond_floats_with_a_short_exponent_is_refused() -> None:
    big = '{"name": "open", "arguments": {"x": 1' + "0" * 290 + "e50}}"
    refused(hermes("go", f"<tool_call>{big}</tool_call>", SEEN, "done"), "text_calls", "beyond the range of floats")


def test_a_call_that_inspect_could_not_read_is_not_invented() -> None:
    call = {"id": "a", "function": "open", "arguments": {}, "parse_error": "no JSON"}
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    refused({"eval": {}, "sample": {"id": 1, "messages": messages}}, "inspect", "a call of open, whose arguments")


def test_a_mark_or_an_unknown_key_beside_a_text_is_not_lost() -> None:
    for place, mark, told in ((3, "weight", "after a turn that is to be learnt"), (1, "mood", "message has mood")):
        record = hermes("go", CALLED, SEEN, "done")
        record["messages"][place][mark] = 0
        refused(record, "text_calls", told)
    turns = [{"from": "human", "value": "go", "weight": 0}, {"from": "gpt", "value": "done", "weight": 0}]
    refused({"conversations": turns}, "sharegpt", "no message is the assistant's and to be learnt")
    turns = [{"from": "human", "value": "go"}, {"from": "gpt", "value": "done", "mood": "good"}]
    refused({"conversations": turns}, "sharegpt", "message has mood")
    turns[1] = {"from": "gpt", "value": "done", "reasoning_content": "hm"}
    assert read({"conversations": turns}, "sharegpt").messages[1]["reasoning_content"] == "hm"


def test_text_that_only_looks_like_a_call_is_text() -> None:
    assert recognise(hermes("go", CALLED)) == ("openai", "messages with roles")
    apart = hermes("go", CALLED, SEEN, "done")
    apart["messages"][3]["tool_calls"] = [{"id": "a", "function": {"name": "open", "arguments": "{}"}}]
    assert recognise(apart) == ("openai", "messages with roles")
    asked = {**hermes("go", CALLED, SEEN), "choices": [{"message": {"role": "assistant", "content": "done"}}]}
    assert recognise(asked) == ("openai", "messages with roles, and choices")


def test_a_refusal_is_what_the_model_says() -> None:
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": None, "refusal": "I cannot."}]
    assert read({"messages": messages}, "openai").messages[1] == {"role": "assistant", "content": "I cannot."}
    messages[1]["content"] = "Well."
    refused({"messages": messages}, "openai", "message 1: an assistant message has refusal")
