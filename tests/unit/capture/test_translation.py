"""What agents send beside texts and functions: translated, kept as it is, or told; nothing is dropped in silence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from offline_agent.capture.exchange import DIALECTS, answered, asked, refused
from offline_agent.errors import DataError
from offline_agent.logs.conversation import conversation

NONE: dict[str, Any] = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}


def through(client: str, server: str, **body: Any) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """Return a request as the server gets it, as the log keeps it, and what was lost."""
    said = {"model": "m", **({"input": "hi"} if client == "responses" else {"messages": [user("hi")], "max_tokens": 5})}
    made = asked(json.dumps({**said, **body}).encode(), client, server)
    return json.loads(made.body), json.loads(made.kept), json.loads(b"[" + made.lost + b"]")


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def answer(client: str, choice: dict[str, Any], **body: Any) -> dict[str, Any]:
    """Return what an agent gets of a choice of a chat completion."""
    said = {"model": "m", **({"input": "hi"} if client == "responses" else {"messages": [user("hi")], "max_tokens": 5})}
    made = asked(json.dumps({**said, **body}).encode(), client, "chat")
    _, told, _ = answered(json.dumps({"id": "c", "choices": [choice]}).encode(), made, "chat")
    return dict(json.loads(told))


def call(name: str, arguments: str) -> dict[str, Any]:
    message = {"content": None, "tool_calls": [{"id": "a", "function": {"name": name, "arguments": arguments}}]}
    return {**NONE, "message": message}


def test_custom_tools_and_namespaces_are_functions_and_come_back_as_they_were() -> None:
    look = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": True}
    tools = [{"type": "custom", "name": "patch", "format": {"type": "text"}}, {"type": "web_search"},
             {"type": "namespace", "name": "mcp", "description": "d", "tools": [look]}]  # fmt: skip
    sent, _, lost = through("responses", "chat", tools=tools, tool_choice={"type": "custom", "name": "patch"})
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["patch", "mcp__look"]
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "patch"}}
    assert {one["at"] for one in lost} == {"tools", "tools.patch.format"}
    (item,) = answer("responses", call("patch", '{"input": "x"}'), tools=tools)["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "patch", "x")
    (item,) = answer("responses", call("mcp__look", "{}"), tools=tools)["output"]
    assert (item["type"], item["namespace"], item["name"]) == ("function_call", "mcp", "look")
    output = {"type": "custom_tool_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "done"}]}
    given = [{"type": "custom_tool_call", "call_id": "a", "name": "patch", "input": "x"}, output]
    sent, _, _ = through("responses", "chat", input=given)
    assert json.loads(sent["messages"][0]["tool_calls"][0]["function"]["arguments"]) == {"input": "x"}
    assert sent["messages"][1] == {"role": "tool", "tool_call_id": "a", "content": "done"}


@pytest.mark.parametrize("client", ["anthropic", "responses"])
def test_arguments_that_are_no_object_are_an_error_where_the_form_needs_one(client: str) -> None:
    with pytest.raises(DataError, match="the arguments of patch are no JSON object: '{\"a'"):
        answer(client, call("patch", '{"a'), tools=[{"type": "custom", "name": "patch"}])


@pytest.mark.parametrize(
    ("choice", "anthropic", "responses"),
    [
        (NONE, ("end_turn", None), ("completed", None)),
        ({**NONE, "finish_reason": "length"}, ("max_tokens", None), ("incomplete", "max_output_tokens")),
        ({**NONE, "finish_reason": "content_filter"}, ("refusal", None), ("incomplete", "content_filter")),
        ({**NONE, "stop_reason": "END"}, ("stop_sequence", "END"), ("completed", None)),
        (call("look", ""), ("tool_use", None), ("completed", None)),
    ],
)
def test_ends_of_a_turn(choice: dict[str, Any], anthropic: tuple[Any, Any], responses: tuple[Any, Any]) -> None:
    told = answer("anthropic", choice)
    assert (told["stop_reason"], told["stop_sequence"]) == anthropic
    told = answer("responses", choice)
    assert (told["status"], (told["incomplete_details"] or {}).get("reason")) == responses


def test_reasoning_that_nobody_can_read_or_that_comes_late_stays_so_that_import_refuses_it() -> None:
    late = [{"type": "text", "text": "a"}, {"type": "thinking", "thinking": "b", "signature": "s"}]
    hidden = [{"type": "redacted_thinking", "data": "x"}]
    sealed = [{"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"}]
    for client, body in (
        ("anthropic", {"messages": [user("hi"), {"role": "assistant", "content": late}]}),
        ("anthropic", {"messages": [user("hi"), {"role": "assistant", "content": hidden}]}),
        ("responses", {"input": [user("hi"), *sealed]}),
    ):
        sent, kept, _ = through(client, client, **body)
        assert all(sent[key] == value for key, value in body.items())  # unchanged
        with pytest.raises(DataError, match="message 1"):
            conversation(kept["messages"])
        with pytest.raises(DataError, match="only text, image_url can be translated"):
            through(client, "chat", **body)


def test_options_are_translated_both_ways_or_told() -> None:
    schema = {"type": "object", "properties": {}}
    tool = {"name": "look", "description": "Looks.", "input_schema": schema, "cache_control": {"type": "ephemeral"}}
    body: dict[str, Any] = {
        "tools": [tool, {"type": "web_search_20250305", "name": "web_search"}], "stop_sequences": ["END"],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "temperature": 0.5,
        "metadata": {"user_id": "u"},
        "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": schema}},
        "system": [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": "S"}],
    }  # fmt: skip
    sent, kept, lost = through("anthropic", "chat", **body)
    assert sent == kept and sent["messages"][0] == {"role": "system", "content": "S"}
    assert (sent["tool_choice"], sent["parallel_tool_calls"], sent["stop"]) == ("required", False, ["END"])
    assert sent["max_completion_tokens"] == 5 and sent["response_format"]["json_schema"]["schema"] == schema
    assert [one["at"] for one in lost] == ["x-anthropic-billing-header", "tools", "output_config.effort", "metadata"]
    back, _, lost = through("chat", "anthropic", **kept, seed=3)
    assert [one["at"] for one in lost] == ["seed"] and back["system"] == [{"type": "text", "text": "S"}]
    for key in ("stop_sequences", "tool_choice", "temperature", "max_tokens"):
        assert back[key] == {**body, "max_tokens": 5}[key]
    assert back["tools"] == [{key: tool[key] for key in ("name", "description", "input_schema")}]
    assert back["output_config"] == {"format": body["output_config"]["format"]}
    there, _, lost = through("chat", "responses", **kept)
    assert [one["at"] for one in lost] == ["stop"] and there["store"] is False
    again, _, lost = through("responses", "chat", **there)
    assert again == {key: value for key, value in kept.items() if key != "stop"} and not lost


def test_errors_of_servers_in_other_forms_keep_their_words() -> None:
    for raw in (b'{"error": "slow"}', b'{"object": "error", "message": "slow"}', b'{"detail": "slow"}', b"slow",
                b'{"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}}'):  # fmt: skip
        told = refused(raw, 429, "anthropic")
        assert told == {"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}}


@pytest.mark.parametrize("name", DIALECTS)
def test_an_empty_answer_is_one(name: str) -> None:
    said: dict[str, Any] = {
        "chat": {"choices": [{**NONE, "message": {"content": ""}}]},
        "anthropic": {"content": [], "stop_reason": "end_turn"},
        "responses": {"status": "completed", "output": []},
    }[name]  # fmt: skip
    for client in DIALECTS:
        body = {"model": "m", "input": "hi"} if client == "responses" else {"model": "m", "messages": [user("hi")]}
        whole, told, _ = answered(json.dumps(said).encode(), asked(json.dumps(body).encode(), client, name), name)
        assert json.loads(whole)["choices"][0]["message"]["content"] == "" and json.loads(told)
