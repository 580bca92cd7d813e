"""Turns that a model may write, and the actions they become."""

import json
import tracemalloc

import pytest

from offline_agent.records import ToolCall
from offline_agent.rendering.calls.compact import parse as parse_compact
from offline_agent.rendering.calls.objects import parse_bare
from offline_agent.rendering.parsing import (
    BadJson,
    call_text,
    clean,
    load_json,
    parse_tagged,
)


def tagged(body: str, before: str = "", after: str = "") -> str:
    return f"{before}<tool_call>\n{body}\n</tool_call>{after}"


GOOD = '{"name": "buy", "arguments": {"item": 3}}'

GOOD_TURNS = [
    (tagged(GOOD), "", ToolCall("buy", {"item": 3})),
    (tagged(GOOD, "I buy.\n"), "I buy.", ToolCall("buy", {"item": 3})),
    (tagged(GOOD, "I buy.\n\n"), "I buy.\n", ToolCall("buy", {"item": 3})),
    (tagged(GOOD, "I buy. "), "I buy. ", ToolCall("buy", {"item": 3})),
    (tagged(GOOD, "", "\n \n"), "", ToolCall("buy", {"item": 3})),
    (f"<tool_call>{GOOD}</tool_call>", "", ToolCall("buy", {"item": 3})),
    (tagged('{"arguments": {}, "name": "x"}'), "", ToolCall("x", {})),
    (tagged('{"name": "x", "arguments": {"a": "</tool_call> <tool_call>"}}'), "",
     ToolCall("x", {"a": "</tool_call> <tool_call>"})),
    (tagged(json.dumps({"name": "x", "arguments": {"a": GOOD}})), "", ToolCall("x", {"a": GOOD})),
    (tagged('{"name": "x", "arguments": {"a": "\\ud83d\\ude42", "b": 1e3, "c": null, "d": -0.0}}'), "",
     ToolCall("x", {"a": "🙂", "b": 1000.0, "c": None, "d": 0.0})),
    (tagged(json.dumps({"name": "x", "arguments": {"a": "[" * 500}})), "", ToolCall("x", {"a": "[" * 500})),
]  # fmt: skip

FAULTS = [
    ("", "empty", "empty"),
    (" \n\t", "empty", "empty"),
    ("<think>\nhm\n</think>\n\n", "empty", "reasoning only"),
    (tagged(""), "invalid_json", "Expecting value"),
    (tagged("{"), "invalid_json", "Expecting"),
    (tagged("{'name': 'x', 'arguments': {}}"), "invalid_json", "double quotes"),
    (tagged('{"name": "x", "arguments": {},}'), "invalid_json", "not valid JSON"),
    (tagged('{"name": "x", "arguments": {"a": NaN}}'), "invalid_json", "NaN"),
    (tagged('{"name": "x", "arguments": {"a": -Infinity}}'), "invalid_json", "-Infinity"),
    (tagged('{"name": "x", "arguments": {"a": 1e999}}'), "invalid_json", "too large"),
    (tagged('{"name": "x", "arguments": {"a": ' + "9" * 5000 + "}}"), "invalid_json", "digits"),
    (tagged('{"name": "x", "name": "y", "arguments": {}}'), "invalid_json", "'name' is there twice"),
    (tagged('{"name": "x", "arguments": {"a": 1, "b": 2, "a": 1}}'), "invalid_json", "'a' is there twice"),
    (tagged('{"name": "x", "arguments": {"a": "\\ud800"}}'), "invalid_json", "surrogate"),
    (tagged('{"name": "x", "arguments": {"\\udfff": 1}}'), "invalid_json", "surrogate"),
    (tagged('{"name": "x", "arguments": {"a": ' + "[" * 40 + "]" * 40 + "}}"), "invalid_json", "deeper than 32"),
    (tagged("[" * 100_000), "invalid_json", "deeper than 32"),
    (tagged('{"name": "x", "arguments": ' * 5000), "invalid_json", "deeper than 32"),
    (f"<tool_call>\n{GOOD}", "invalid_json", "the turn ended"),
    (f"<tool_call>\n{GOOD} and so on </tool_call>", "invalid_json", "and so on"),
    (f"Use <tool_call> now.\n{tagged(GOOD)}", "invalid_json", "not valid JSON"),
    ("</tool_call>", "bad_call", "never opened"),
    (tagged("[]"), "bad_call", "JSON object"),
    (tagged("null"), "bad_call", "null"),
    (tagged('"buy"'), "bad_call", "JSON object"),
    (tagged("{}"), "bad_call", "'name' and 'arguments'"),
    (tagged('{"name": "x"}'), "bad_call", "'arguments'"),
    (tagged('{"name": "x", "parameters": {}}'), "bad_call", "'parameters'"),
    (tagged('{"name": 7, "arguments": {}}'), "bad_call", "non-empty string"),
    (tagged('{"name": " ", "arguments": {}}'), "bad_call", "non-empty string"),
    (tagged('{"name": "x", "arguments": "{}"}'), "bad_call", "must be a JSON object"),
    (tagged('{"name": "x", "arguments": [1]}'), "bad_call", "must be a JSON object"),
    (tagged('{"name": "x", "arguments": {}, "id": 1}'), "bad_call", "'id'"),
    (tagged(GOOD, after="\nDone."), "bad_call", "Done."),
    (tagged(GOOD) + "\n" + tagged(GOOD), "several_calls", "one tool call"),
    (tagged(GOOD) + "\n" + "<tool_call>\n{", "several_calls", "one tool call"),
]


@pytest.mark.parametrize("text, thought, call", GOOD_TURNS)
def test_good_turns(text, thought, call):
    parsed = parse_tagged(text)
    assert (parsed.thought, parsed.call, parsed.fault, parsed.detail) == (thought, call, None, None)


@pytest.mark.parametrize("text, fault, said", FAULTS, ids=[f"{f}-{i}" for i, (_, f, _) in enumerate(FAULTS)])
def test_faults_say_what_is_wrong(text, fault, said):
    parsed = parse_tagged(text)
    assert (parsed.call, parsed.fault) == (None, fault)
    assert said in (parsed.detail or "")
    assert len(parsed.detail or "") < 300


@pytest.mark.parametrize("text", ["The answer is 42.", GOOD, "{", "<tool", "a < b > c", "\ud800 odd"])
def test_words_are_a_final_answer(text):
    parsed = parse_tagged(text)
    assert (parsed.thought, parsed.call, parsed.fault) == (text, None, None)


def test_call_text_reads_back():
    call = ToolCall("buy", {"who": "ä\n</tool_call>", "deep": [{"a": None}]})
    for thought in ("", "I buy.", "Two\nlines\n"):
        parsed = parse_tagged(call_text(thought, call))
        assert (parsed.thought, parsed.call) == (thought, call)


BARE = '{"name": "buy", "parameters": {"item": 3}}'


@pytest.mark.parametrize(
    "text, thought, call, fault",
    [
        (BARE, "", ToolCall("buy", {"item": 3}), None),
        (f"So.\n{BARE}\n", "So.", ToolCall("buy", {"item": 3}), None),
        (GOOD, "", ToolCall("buy", {"item": 3}), None),
        (f"{BARE}; {BARE}", f"{BARE}; {BARE}", None, "several_calls"),
        (f"{BARE} is what I would do", f"{BARE} is what I would do", None, None),
        ('{"name": "buy", "parameters": {', "", None, "invalid_json"),
        ('{"name": "buy", "parameters": 3}', "", None, "bad_call"),
        ('{"name": "buy", "parameters": {}, "arguments": {}}', "", None, "bad_call"),
        ("Just words {here}", "Just words {here}", None, None),
        ("", "", None, "empty"),
    ],
)
def test_bare_calls(text, thought, call, fault):
    parsed = parse_bare(text)
    assert (parsed.thought, parsed.call, parsed.fault) == (thought, call, fault)


BUY = ToolCall("buy", {"item": 3, "why": 'a ")"', "deep": [1, {"a": None}], "größe": "ä"})
BOUGHT = '> buy(item=3, why="a \\")\\"", deep=[1, {"a": null}], größe="ä")'


@pytest.mark.parametrize(
    "text, thought, call, fault",
    [
        (BOUGHT, "", BUY, None),
        (f"So.\n{BOUGHT}\n", "So.", BUY, None),
        ("> look()", "", ToolCall("look", {}), None),
        ("> quoted text (is no call)", "> quoted text (is no call)", None, None),
        ("a > buy(item=3)", "a > buy(item=3)", None, None),
        (f"{BOUGHT}\nDone.", "", None, "bad_call"),
        (f"{BOUGHT}\n{BOUGHT}", "", None, "bad_call"),
        ("> buy(3)", "", None, "bad_call"),
        ("> buy(item=3,)", "", None, "bad_call"),
        ("> buy(item=3", "", None, "bad_call"),
        ("> buy(item=)", "", None, "invalid_json"),
        ("> buy(item=1, item=2)", "", None, "invalid_json"),
        ("> buy(item='3')", "", None, "invalid_json"),
        ("> buy(item=NaN)", "", None, "invalid_json"),
        ("", "", None, "empty"),
    ],
)
def test_compact_calls(text, thought, call, fault):
    parsed = parse_compact(text)
    assert (parsed.thought, parsed.call, parsed.fault) == (thought, call, fault)


def test_load_json_wants_the_whole_text():
    assert load_json(' {"a": [1]} ') == {"a": [1]}
    with pytest.raises(BadJson, match="follows"):
        load_json("{} {}")


def test_clean_replaces_lone_surrogates_only():
    assert clean("a\ud800b🙂") == "a\ufffdb🙂"


def test_brackets_in_long_strings_are_no_nesting_and_cost_no_memory() -> None:
    text = json.dumps(["[" * 40 + '"\\a' * 100_000])
    tracemalloc.start()
    try:
        assert load_json(text) == json.loads(text)
        assert tracemalloc.get_traced_memory()[1] < 10 * len(text)
    finally:
        tracemalloc.stop()
