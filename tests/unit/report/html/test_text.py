"""Texts of the page: nothing that a tool wrote is interpreted, and nothing is lost."""

from __future__ import annotations

from offline_agent.outgoing import visible
from offline_agent.report.html.text import brief, call_text, number, turn
from tests.helpers.report import HOSTILE, SHOWN


def test_control_characters_direction_marks_and_lone_surrogates_are_spelled_out() -> None:
    assert visible(HOSTILE).startswith(SHOWN + "\\ud800")
    assert visible("tab\tand\nlines, ä → 字") == "tab\tand\nlines, ä → 字"
    visible(HOSTILE).encode("utf-8")


def test_a_turn_has_its_calls_whether_arguments_are_values_or_json() -> None:
    call = {"function": {"name": "search", "arguments": '{"query": "ä", "n": 3}'}}
    shown = turn({"role": "assistant", "content": None, "tool_calls": [call, '{"function": {"name": "x"}}']})
    assert shown == {"role": "assistant", "name": "", "text": "", "calls": 'search(query="ä", n=3)\nx()'}
    parts = [{"type": "text", "text": "a"}]
    assert turn({"role": "user", "content": parts})["text"] == '[{"type": "text", "text": "a"}]'
    assert call_text("f", "no JSON") == 'f("no JSON")'


def test_a_small_number_is_not_shown_as_zero() -> None:
    assert [number(value) for value in (None, 0, 0.0, 1234, 0.5, 7.3e-12, True)] == [
        "–", "0", "0.00", "1,234", "0.50", "7.3e-12", "yes",
    ]  # fmt: skip


def test_a_label_shows_where_calls_that_begin_alike_differ() -> None:
    calls = [f'search(query="waterproof hiking boots, {colour}")' for colour in ("red", "blue")]
    red, blue, short = (brief(one, 21) for one in (*calls, "look()"))
    assert "red" in red and "blue" in blue and len(red) == len(blue) == 21 and short == "look()"
