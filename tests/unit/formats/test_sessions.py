"""Sessions of coding agents: a file of lines comes in as the branches of its history, and what was left out is said."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from offline_agent import formats
from offline_agent.errors import DataError
from offline_agent.formats import FORMATS, recognise
from offline_agent.logs.episode import Fields, LoggedEpisode
from offline_agent.logs.files import Record
from tests.helpers.log_writers import SESSIONS, Spoken, Transcript, Turn, spoken

Lines = list[dict[str, Any]]


def read(path: Path, lines: Sequence[Any]) -> tuple[list[LoggedEpisode], list[Record]]:
    """Return the episodes of lines, and the records that are damaged."""
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    found, damaged = [], []
    for record in formats.records(path):
        if record.damage is not None:
            damaged.append(record)
            continue
        name, _ = recognise(record.value) or ("", "")
        found += list(FORMATS[name].read(record.value, record.name, Fields()))
    return found, damaged


def said(episode: LoggedEpisode) -> list[str]:
    return [f"{message['role'][0]}:{message['content']}" for message in episode.messages]


@pytest.mark.parametrize("format", SESSIONS)
def test_two_hundred_sessions_come_in_with_nothing_lost_and_nothing_invented(format: str, tmp_path: Path) -> None:
    rng = random.Random(7)
    for number in range(200):
        one = spoken(rng, number)
        one.system = None if format == "claude_code" else one.system or "Do it."
        (episode,), damaged = read(tmp_path / f"{number}.jsonl", SESSIONS[format](one, rng))
        assert not damaged and list(episode.messages) == one.expected()
        assert (episode.session, episode.score, episode.tools, episode.left) == (one.session, None, (), None)
        assert episode.name.startswith(f"{tmp_path}/{number}.jsonl:")


@pytest.mark.parametrize("mark", [{"sessionId": "s"}, {"messageId": None}, {"payload": {"messages": []}}])
def test_records_of_other_formats_are_no_session(mark: dict[str, Any], tmp_path: Path) -> None:
    turn = {"role": "assistant", "content": "done"}
    call = {"type": "llm_call", "response": {"choices": [{"message": turn}]}, **mark}
    path = tmp_path / "calls.jsonl"
    path.write_text(f"{json.dumps(call)}\n" * 3)
    assert [record.value for record in formats.records(path)] == [call] * 3


def test_lines_before_the_first_that_is_surely_of_a_session_are_of_it(tmp_path: Path) -> None:
    script, _, _ = asked()
    lines = [{"type": "mode", "sessionId": "s", "mode": "plan"}, *script.lines, {"type": "mode", "sessionId": "s"}]
    assert not read(tmp_path / "s.jsonl", lines)[1]


# -- Claude Code -------------------------------------------------------------------------------------------------------

RNG = random.Random(1)
LOOK = Turn("I look.", [("Read", {"file": "a"}), ("Read", {"file": "b"})], ["A", "B"])


def asked() -> tuple[Transcript, str, str]:
    """Return a session, the uuid of its request, and the one of the results of its first turn."""
    script = Transcript("s")
    request = script.user(None, "go")
    return script, request, script.turn(request, LOOK, RNG)


def test_a_rewind_and_a_retry_are_branches_of_one_history(tmp_path: Path) -> None:
    script, _, looked = asked()
    first = script.turn(looked, Turn("one"), RNG)
    script.turn(script.user(first, "more"), Turn("more of one"), RNG)
    script.turn(script.user(first, "other"), Turn("other of one"), RNG)  # the user went back
    script.turn(looked, Turn("two"), RNG)  # the model was asked again
    script.user(looked, "a request that nobody answered")
    found, damaged = read(tmp_path / "s.jsonl", script.lines)
    start = ["u:go", "a:I look.", "t:A", "t:B"]
    assert [said(episode) for episode in found] == [
        [*start, "a:one", "u:more", "a:more of one"], [*start, "a:one", "u:other", "a:other of one"], [*start, "a:two"],
    ]  # fmt: skip
    assert not damaged and {episode.session for episode in found} == {"s"}
    numbers = [int(episode.name.rpartition(":")[2]) for episode in found]
    assert numbers == sorted(numbers)  # the later one is what the agent went on with


def test_a_turn_written_block_by_block_is_one_turn_with_its_thought(tmp_path: Path) -> None:
    script = Transcript("s")
    end = script.turn(script.user(None, "go"), Turn("I look.", LOOK.calls, LOOK.results, reasoning="hm"), RNG)
    thought = {"id": "t", "role": "assistant", "model": "m", "content": [{"type": "thinking", "thinking": "so"}]}
    end = script.user(script.line("assistant", end, message=thought), "stop")
    blocks = [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "done"}]
    message = {"id": "m", "role": "assistant", "model": "m", "content": blocks, "stop_reason": "max_tokens"}
    script.line("assistant", end, message=message)
    (episode,), _ = read(tmp_path / "s.jsonl", script.lines)
    turn = episode.messages[1]
    assert (turn["content"], turn["reasoning_content"], len(turn["tool_calls"])) == ("I look.", "hm", 2)
    assert said(episode)[4:] == ["u:stop", "a:done"] and episode.cut
    assert str(episode.left).split("; ") == [
        "1 thoughts after which the model said nothing", "1 thoughts that only the provider can read"]  # fmt: skip


def test_what_no_model_wrote_or_read_is_no_part_of_a_session(tmp_path: Path) -> None:
    script, _, at = asked()
    error = {"id": "e", "role": "assistant", "model": "<synthetic>", "content": [{"type": "text", "text": "API Error"}]}
    at = script.line("assistant", at, message=error, isApiErrorMessage=True)
    at = script.line("attachment", at, attachment={"type": "todo_reminder"})
    at = script.line("progress", at, data={"type": "hook_progress"})
    at = script.user(at, "shown alone", isVisibleInTranscriptOnly=True)
    at = script.user(at, "a hook says", isMeta=True)
    script.turn(at, Turn("done"), RNG)
    script.lines.append(dict(script.lines[3]))  # a line that was written twice
    (episode,), damaged = read(tmp_path / "s.jsonl", script.lines)
    assert said(episode)[4:] == ["u:a hook says", "a:done"] and not damaged
    assert "1 messages in the assistant's name" in str(episode.left) and "1 attachments" in str(episode.left)


def test_after_a_compaction_the_history_is_the_summary(tmp_path: Path) -> None:
    script, _, at = asked()
    at = script.turn(at, Turn("so far"), RNG)
    at = script.line("system", None, subtype="compact_boundary", logicalParentUuid=at, content="Conversation compacted")
    at = script.user(at, "A summary.", isCompactSummary=True, isVisibleInTranscriptOnly=True)
    script.turn(at, Turn("going on"), RNG)
    before, after = read(tmp_path / "s.jsonl", script.lines)[0]
    assert said(before)[-1] == "a:so far" and said(after) == ["u:A summary.", "a:going on"]
    boundary = next(line for line in script.lines if "logicalParentUuid" in line)
    boundary["compactMetadata"] = {"preservedSegment": {"headUuid": "u4"}}
    script.turn("u2", Turn("after it"), RNG)
    found, damaged = read(tmp_path / "s.jsonl", script.lines)
    assert [said(episode)[-1] for episode in found] == ["a:so far"] and len(damaged) == 2
    assert all("a compaction kept turns" in str(record.damage) for record in damaged)


def test_side_chains_are_episodes_of_their_own(tmp_path: Path) -> None:
    script, request, at = asked()
    side = script.user(request, "look for it", isSidechain=True, agentId="a1")
    script.turn(side, Turn("found"), RNG, isSidechain=True)  # which says no more whose it is
    next(line for line in script.lines if "toolUseResult" in line)["agentId"] = "a1"  # which the main one started
    script.turn(at, Turn("done"), RNG)
    other = script.user("u1", "look again", isSidechain=True, agentId="a2")
    script.turn(script.user(other, "and here", isSidechain=True, agentId="a3"), Turn("no"), RNG, isSidechain=True)
    inner, outer, third = read(tmp_path / "s.jsonl", script.lines)[0]
    assert (said(third), third.session) == (["u:and here", "a:no"], "s/a3")
    assert (said(inner), inner.session) == (["u:look for it", "a:found"], "s/a1")
    assert (said(outer)[-1], outer.session) == ("a:done", "s")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda lines: lines.__setitem__(1, json.dumps(lines[1])[:40]), "wanted the uuid of another line"),
        (lambda lines: lines[1].update(parentUuid="nobody"), "parentUuid: got 'nobody'"),
        (lambda lines: lines[1].update(parentUuid="u1"), "leads back to the line itself"),
        (lambda lines: lines.__delitem__(slice(2, None)), "no line of the session is a model's"),
    ],
)
def test_a_session_with_a_hole_is_named(spoil: Callable[[Lines], None], told: str, tmp_path: Path) -> None:
    script, _, _ = asked()
    spoil(script.lines)
    found, damaged = read(tmp_path / "s.jsonl", script.lines)
    assert not found and told in str(damaged[-1].damage)
    assert all(record.name.startswith(f"{tmp_path}/s.jsonl") for record in damaged)


@pytest.mark.parametrize("value", [["u1"], {"u": 1}])
def test_a_parent_that_is_no_text_costs_the_session_alone(value: Any, tmp_path: Path) -> None:
    script, _, _ = asked()
    script.lines[1]["parentUuid"] = value
    (damaged,) = read(tmp_path / "s.jsonl", script.lines)[1]
    assert "its parts are of another form" in str(damaged.damage)


def test_what_cannot_be_kept_is_named_by_its_line(tmp_path: Path) -> None:
    script, _, at = asked()
    image = [{"type": "image", "source": {}}]
    script.turn(script.user(at, image), Turn("done"), RNG)
    with pytest.raises(DataError, match=re.escape(f"{tmp_path}/s.jsonl:8: content: a part of type 'image'")):
        read(tmp_path / "s.jsonl", script.lines)
    lines = [*rollout(Turn("one")), item(type="function_call_output", call_id="z", output="x")]
    with pytest.raises(DataError, match=re.escape(f"{tmp_path}/s.jsonl:6: a tool's result, and no call before it")):
        read(tmp_path / "s.jsonl", lines)


# -- Codex -------------------------------------------------------------------------------------------------------------


def rollout(*turns: Turn) -> Lines:
    return SESSIONS["codex"](Spoken(None, "go", list(turns), "", "s", True), RNG)


def item(**payload: Any) -> dict[str, Any]:
    return {"type": "response_item", "payload": payload}


def user(text: str) -> dict[str, Any]:
    return item(type="message", role="user", content=[{"type": "input_text", "text": text}])


def answer(text: str) -> dict[str, Any]:
    return item(type="message", role="assistant", content=[{"type": "output_text", "text": text}])


def event(type: str, **more: Any) -> dict[str, Any]:
    return {"type": "event_msg", "payload": {"type": type, **more}}


def test_a_rollback_is_a_branch_and_what_is_injected_is_the_users(tmp_path: Path) -> None:
    lines = [*rollout(Turn("one")), user("<environment_context>cwd</environment_context>"), user("more"), answer("two"),
             event("thread_rolled_back", num_turns=1), user("other"), answer("three"),
             event("thread_rolled_back", num_turns=1)]  # fmt: skip
    first, second = read(tmp_path / "s.jsonl", lines)[0]
    assert said(first)[3:] == ["u:<environment_context>cwd</environment_context>", "u:more", "a:two"]
    assert said(second) == ["s:Do it.", "u:go", "a:one", "u:other", "a:three"]


def test_developer_messages_follow_the_instructions(tmp_path: Path) -> None:
    lines = rollout(Turn("one"))
    lines.insert(1, item(type="message", role="developer", content=[{"type": "input_text", "text": "Ask."}]))
    (episode,), _ = read(tmp_path / "s.jsonl", lines)
    assert said(episode) == ["s:Do it.Ask.", "u:go", "a:one"]  # one message, as the proxy records it


def test_a_compacted_history_begins_anew(tmp_path: Path) -> None:
    summary = [user("go")["payload"], user("A summary.")["payload"]]
    compacted = {"type": "compacted", "payload": {"message": "A summary.", "replacement_history": summary}}
    before, after = read(tmp_path / "s.jsonl", [*rollout(Turn("one")), compacted, answer("two")])[0]
    assert said(before)[-1] == "a:one" and said(after)[1:] == ["u:go", "u:A summary.", "a:two"]
    for history, told in (
        (None, "compacted has no replacement_history"),
        ([*summary, {"type": "compaction", "encrypted_content": "x"}], "replacement_history holds compaction"),
        ([*summary, answer("one")["payload"]], "replacement_history holds assistant"),
    ):
        compacted["payload"]["replacement_history"] = history  # type: ignore[index]
        found, (damaged,) = read(tmp_path / "s.jsonl", [*rollout(Turn("one")), compacted, answer("two")])
        assert len(found) == 1 and told in str(damaged.damage)


def test_shells_custom_tools_and_thoughts_of_codex(tmp_path: Path) -> None:
    lines = [
        *rollout(Turn("I look.")),
        item(type="reasoning", summary=[{"type": "summary_text", "text": "short"}], encrypted_content="x"),
        item(type="local_shell_call", call_id="a", status="completed",
             action={"type": "exec", "command": ["ls"], "timeout_ms": None}),
        item(type="custom_tool_call", call_id="b", name="apply_patch", input="*** Begin"),
        item(type="function_call", call_id="c", name="read", namespace="mcp__fs", arguments="{}"),
        item(type="custom_tool_call_output", call_id="b", output="done"),
        item(type="function_call_output", call_id="c", output=[{"type": "input_text", "text": "C"}]),
        item(type="local_shell_call_output", call_id="a", output={"content": "a.txt", "success": True}),
        item(type="ghost_snapshot", ghost_commit={}),
        item(type="reasoning", summary=[], encrypted_content="x"), answer("done"), user("stop"),
        item(type="reasoning", summary=[], content=[{"type": "reasoning_text", "text": "hm"}]), user("go on"),
        answer("on"),
    ]  # fmt: skip
    (episode,), _ = read(tmp_path / "s.jsonl", lines)
    *_, turn, shell, patch, mcp, last, stop, on, _ = episode.messages
    assert (stop["content"], on["content"]) == ("stop", "go on")
    assert turn["reasoning_content"] == "short" and [call["function"] for call in turn["tool_calls"]] == [
        {"name": "local_shell", "arguments": {"command": ["ls"]}},
        {"name": "apply_patch", "arguments": {"input": "*** Begin"}}, {"name": "mcp__fs.read", "arguments": {}},
    ]  # fmt: skip
    assert [shell["content"], patch["content"], mcp["content"], last["content"]] == ["a.txt", "done", "C", "done"]
    assert str(episode.left).split("; ") == [
        "1 thoughts of which there is a summary alone", "1 thoughts that only the provider can read",
        "1 thoughts after which the model said nothing"]  # fmt: skip


def test_a_damaged_line_ends_what_is_read_of_a_rollout(tmp_path: Path) -> None:
    lines: list[Any] = rollout(Turn("one"), Turn("two"), Turn("three"))
    text = json.dumps(lines[5])[:30]
    found, damaged = read(tmp_path / "s.jsonl", [*lines[:5], text, *lines[6:]])
    assert said(found[0])[-1] == "a:one" and len(found) == 1
    assert [record.name.rpartition(":")[2] for record in damaged] == ["6", "6"]
    assert "no JSON" in str(damaged[0].damage) and "a line before it is damaged" in str(damaged[1].damage)
    (whole,), damaged = read(tmp_path / "s.jsonl", [*lines, text])  # the last one was being written
    assert said(whole)[-1] == "a:three" and len(damaged) == 1
    found, damaged = read(tmp_path / "s.jsonl", lines[1:])
    assert not found and "does not begin with session_meta" in str(damaged[0].damage)
