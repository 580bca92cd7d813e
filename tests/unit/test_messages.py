"""Messages as OpenAI's libraries, other providers and Arrow write them: read whole, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from offline_agent.errors import DataError
from offline_agent.formats import FORMATS, recognise
from offline_agent.logs.episode import Fields, LoggedEpisode

GO = {"role": "user", "content": "go"}
DONE = {"role": "assistant", "content": "done"}
SYSTEM = {"role": "system", "content": "be brief"}
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "search", "description": "Search.", "parameters": SCHEMA}}


def call(name: str, arguments: Any, id: str | None = None) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def read(record: dict[str, Any], *ignored: str) -> LoggedEpisode:
    found = recognise(record)
    assert found is not None
    (episode,) = FORMATS[found[0]].read(record, "log:1", Fields(ignore=ignored))
    return episode


@pytest.mark.parametrize(
    "record",
    [
        {"system": "be brief", "messages": [GO, DONE]},
        {"system": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}], "messages": [GO, DONE]},
        {"system_prompt": "be brief", "messages": [SYSTEM, GO, DONE]},
        {"request": {"system": "be brief", "messages": [GO]}, "response": {"choices": [{"message": DONE}]}},
        {"kwargs": {"system": "be brief", "max_tokens": 9}, "messages": [GO, DONE], "metadata": {"system": "linux"}},
        {"system": "be brief", "prompt": [GO], "completion": [DONE]},
    ],
)
def test_a_system_prompt_beside_the_messages_is_their_first(record: dict[str, Any]) -> None:
    assert read(record).messages == (SYSTEM, GO, DONE)


@pytest.mark.parametrize(
    "result, text",
    [
        ({"temperature": 20, "sky": "grau, löchrig"}, '{"temperature": 20, "sky": "grau, löchrig"}'),
        ({"type": "Feature", "found": [{"id": None}]}, '{"type": "Feature", "found": [{"id": null}]}'),
        (3.5, "3.5"),
        ({}, "{}"),
        ([{"type": "text", "text": "in parts"}], "in parts"),
        (["one", "two"], "onetwo"),
    ],
)
def test_a_result_that_is_a_json_value_is_read_as_its_text(result: Any, text: str) -> None:
    turn = {"role": "assistant", "content": "", "tool_calls": [call("search", {"q": "x"}, "a")]}
    answer = {"role": "tool", "tool_call_id": "a", "content": result}
    told = read({"messages": [GO, turn, answer, DONE], "tools": [TOOL]})
    assert told.messages[2]["content"] == text


def test_other_contents_are_no_values() -> None:
    turn = {"role": "assistant", "content": "", "tool_calls": [call("search", {"q": "x"}, "a")]}
    with pytest.raises(DataError, match="content: got"):
        read({"messages": [{"role": "user", "content": {"not": "text"}}, DONE]})
    for result, said in (
        ({"price": float("nan")}, "no JSON value"),
        ([{"id": 1}], "only text can be read"),
        ({"type": "image", "source": {}}, "got dict"),
    ):
        with pytest.raises(DataError, match=said):
            read({"messages": [GO, turn, {"role": "tool", "content": result}, DONE], "tools": [TOOL]})


@pytest.mark.parametrize(
    "told",
    [
        {"kwargs": {"tools": [TOOL]}},
        {"model_parameters": {"tools": [TOOL], "temperature": 0}},
        {"kwargs": {"optional_params": {"functions": [TOOL["function"]]}}},
        {"invocation_parameters": '{"tools": [{"name": "search", "description": "Search.", "input_schema": '
                                  '{"type": "object", "properties": {"q": {"type": "string"}}}}]}'},
        {"tools": [{"name": "search", "description": "Search.", "input_schema": SCHEMA}]},
        {"tools": [{"type": "custom", "name": "search", "description": "Search.", "inputSchema": SCHEMA}]},
        {"tools": None, "kwargs": {"tools": [TOOL]}, "metadata": {"tools": ["search"]}},
    ],
)  # fmt: skip
def test_tools_are_found_where_they_are_with_their_parameters(told: dict[str, Any]) -> None:
    assert read({"messages": [GO, DONE], **told}).tools == (TOOL,)


THOUGHT = {"type": "reasoning.text", "text": "so", "signature": "x"}
THOUGHTFUL = {**DONE, "reasoning_content": "so"}


@pytest.mark.parametrize(
    "turn",
    [
        {"content": [{"type": "reasoning", "text": "so"}, {"type": "text", "text": "done"}]},
        {"content": [{"type": "reasoning", "reasoning": "so"}, {"type": "output_text", "text": "done"}]},
        {"content": [{"type": "thinking", "thinking": "so", "signature": "x"}, {"type": "text", "text": "done"}]},
        {"content": "done", "reasoning_details": [THOUGHT]},
        {"content": "done", "reasoning_details": [THOUGHT, {"type": "reasoning.encrypted", "data": "x"}],
         "reasoning": "so"},
        {"content": "done", "reasoning_content": None, "reasoning": "so"},
        {"content": "done", "thinking": "so"},
        {"content": "done", "reasoning_content": "so", "thinking_blocks": [{"type": "thinking", "thinking": "so"}]},
    ],
)  # fmt: skip
def test_reasoning_is_kept_apart_from_the_content(turn: dict[str, Any]) -> None:
    assert read({"messages": [GO, {"role": "assistant", **turn}]}).messages == (GO, THOUGHTFUL)


def test_nulls_that_arrow_puts_where_a_key_is_absent_are_no_arguments() -> None:
    bare = {"tool_calls": None, "tool_call_id": None, "name": None}
    first = call("search", {"q": "a", "at": None}, "1")
    second = call("open", {"q": None, "at": {"n": 1, "m": None}}, "2")
    record = {
        "messages": [
            {**bare, **GO}, {**bare, "role": "assistant", "content": None, "tool_calls": [first, second]},
            {**bare, "role": "tool", "content": "x", "tool_call_id": "1"},
            {**bare, "role": "tool", "content": "y", "tool_call_id": "2"},
        ],
        "tools": [{**TOOL, "function": {**TOOL["function"], "strict": None,
                                        "parameters": {**SCHEMA, "properties": {**SCHEMA["properties"], "at": None}}}}],
    }  # fmt: skip
    episode = read(record)
    calls = [one["function"]["arguments"] for one in episode.messages[1]["tool_calls"]]
    assert calls == [{"q": "a"}, {"at": {"n": 1}}] and episode.tools == (TOOL,)


def test_nulls_that_an_agent_wrote_are_arguments() -> None:
    """An API's own nulls (`refusal`) are no sign of Arrow, and a text has no nulls but the agent's."""
    turn = {"role": "assistant", "content": None, "refusal": None, "function_call": None}
    for arguments in ({"q": None}, '{"q": null}'):
        episode = read({"messages": [GO, {**turn, "tool_calls": [call("search", arguments)]}]})
        assert episode.messages[1]["tool_calls"][0]["function"]["arguments"] == {"q": None}


@pytest.mark.parametrize("key", ["tool_call_id", "id", "call_id", "tool_use_id", "name"])
def test_a_result_goes_to_the_call_that_it_names(key: str) -> None:
    calls = [call("search", {"q": "a"}, "1"), call("search", {"q": "b"}, "2")]
    results = [{"role": "tool", "content": text, key: id} for text, id in (("b", "2"), ("a", "1"))]
    episode = read({"messages": [GO, {"role": "assistant", "content": None, "tool_calls": calls}, *results]})
    assert [message["content"] for message in episode.messages[2:]] == ["a", "b"] and not episode.by_place


def test_a_results_own_id_names_no_call() -> None:
    turn = {"role": "assistant", "content": None, "tool_calls": [call("search", "", "1")]}
    assert read({"messages": [GO, turn, {"role": "tool", "content": "a", "id": "msg-7"}]}).by_place == 1


CALLS = {"role": "assistant", "content": None}


@pytest.mark.parametrize(
    "record, words",
    [
        ({"messages": [GO, {**DONE, "thoughts": "so"}]}, "message 1: an assistant message has thoughts, read are"),
        ({"messages": [{**GO, "images": ["a"]}, DONE]}, "message 0: a user message has images"),
        ({"messages": [GO, DONE, {**DONE, "weight": 0}]}, "message 2: weight: 0"),
        ({"messages": [GO, {**DONE, "reasoning": "a", "reasoning_content": "b"}]}, "reasoning is told in two ways"),
        ({"messages": [GO, {**DONE, "reasoning_details": [{"type": "reasoning.encrypted"}]}]}, "'reasoning.encrypted'"),
        ({"messages": [GO, {**DONE, "content": [{"type": "text", "text": "a"}, {"type": "reasoning", "text": "b"}]}]},
         "reasoning follows"),
        ({"messages": [{**GO, "content": [{"type": "reasoning", "text": "b"}]}, DONE]}, "a part of type 'reasoning'"),
        ({"messages": [GO, {**DONE, "content": [{"type": "summary", "text": "a"}]}]}, "a part of type 'summary'"),
        ({"messages": [GO, {**CALLS, "tool_calls": [{"name": "a", "kw": {"q": 1}}]}]}, "a tool call of a has kw"),
        ({"system": "be long", "messages": [SYSTEM, GO, DONE]}, "system: another text than the system message"),
        ({"system": {"a": 1}, "messages": [GO, DONE]}, "system: content: got dict"),
        ({"tools": [{"name": "a", "args": {"q": "str"}}], "messages": [GO, DONE]}, "tool 0 has args, but no param"),
        ({"tools": [{"type": "web_search_1", "name": "a"}], "messages": [GO, DONE]}, "tool 0: type: got 'web_sear"),
        ({"messages": [GO, DONE], "a": {"tools": [TOOL]}, "b": {"tools": [{"name": "x"}]}}, "a.tools and b.tools"),
        ({"messages": [GO, DONE, GO], "response": {"content": "more"}}, "response: got dict"),
        ({"messages": [GO, DONE, GO], "output": "more"}, "output: got str"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_by_name(record: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError) as caught:
        read(record)
    assert words in str(caught.value)


def test_facts_about_a_message_and_ignored_keys_are_passed_over() -> None:
    facts = {"id": "m1", "timestamp": "2026-01-01", "usage": {"total": 3}, "annotations": [], "audio": None}
    turn = {**DONE, **facts, "weight": 1, "thoughts": "so", "provider_specific_fields": {"refusal": None}}
    record = {"system": "be long", "messages": [SYSTEM, GO, turn]}
    assert read(record, "thoughts", "system").messages == (SYSTEM, GO, DONE)
