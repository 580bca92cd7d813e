"""Coding sessions without an outcome become pairs: by their tests, what the user left, and a table beside them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from offline_agent.pipelines import import_logs, inspect
from offline_agent.store.columns import known
from offline_agent.store.tables import read_table
from tests.helpers.log_writers import SESSIONS, Spoken, Transcript, Turn

OFF = "tracking.uri=null"
RNG = random.Random(1)
PASS, FAIL = "===== 3 passed in 0.12s =====", "==== 1 failed, 2 passed in 0.12s ===="
FIX = ("Edit", {"file_path": "/w/a.py", "old_string": "a", "new_string": "b"})
Lines = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")  # what is shown is cut to the terminal's width
    Path("logs").mkdir()
    return tmp_path


def imported(*keys: str, sources: str = "logs", **files: Lines) -> dict[str, Any]:
    """Write the files, import them, and return the summary."""
    for name, lines in files.items():
        Path(f"logs/{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    own = [] if any(key.startswith("run_dir=") for key in keys) else ["run_dir=r"]
    command = [f"source={sources}", "pairs.min_visits=1", OFF, *own, *keys]
    assert import_logs.main(import_logs.COMMAND, command) == 0
    folder = next((key.partition("=")[2] for key in keys if key.startswith("run_dir=")), "r")
    summary: dict[str, Any] = json.loads(Path(folder, "summary.json").read_text())
    return summary


def pairs() -> list[dict[str, Any]]:
    return [row for table in ("preferences", "multiturn_preferences") for file in Path("r", table).glob("*.parquet")
            for row in map(known, read_table(file))]  # fmt: skip


# -- Claude Code -------------------------------------------------------------------------------------------------------


def ran(script: Transcript, parent: str, command: str, said: str, status: int = 0) -> str:
    """Add a turn that runs a command, and its result as Claude Code writes it; return the uuid of the last line."""
    call = {"type": "tool_use", "id": f"t{len(script.lines)}", "name": "Bash", "input": {"command": command}}
    message = {"id": f"m{len(script.lines)}", "role": "assistant", "model": "m", "content": [call]}
    at = script.line("assistant", parent, message=message, cwd="/w")
    text = f"Exit code {status}\n{said}" if status else said
    block = {"type": "tool_result", "tool_use_id": call["id"], "content": text, "is_error": status > 0}
    told = f"Error: {text}" if status else {"stdout": said, "stderr": "", "interrupted": False}
    return script.user(at, [block], toolUseResult=told)


def fails(script: Transcript, at: str) -> str:
    return ran(script, at, "pytest -q", FAIL, 1)


def rewound(wrong: Callable[[Transcript, str], Any], right: Callable[[Transcript, str], Any], name: str = "s") -> Lines:
    """Return a session whose user went back to its second request, and asked in other words."""
    script = Transcript(name)
    looked = script.turn(script.user(None, "there is a bug"), Turn("I see it."), RNG)
    wrong(script, script.turn(script.user(looked, "fix it"), Turn("I guess.", [FIX], ["edited"]), RNG))
    right(script, script.turn(script.user(looked, "fix it"), Turn("I think.", [FIX], ["edited"]), RNG))
    return script.lines


def test_a_rewind_from_failing_to_passing_tests_is_a_certified_pair(capsys: pytest.CaptureFixture[str]) -> None:
    lines = rewound(fails, lambda script, at: ran(script, at, "pytest -q", PASS))
    summary = imported("log.rules=[tests]", s=lines)
    assert (summary["episodes"], summary["judged"], summary["ruled"], summary["rules_contradict"]) == (2, 2, 2, 0)
    (row,) = pairs()
    assert row["kind"] == "trajectory" and row["certificate"]
    assert [message["content"] for message in row["prompt"]] == ["there is a bug", "I see it.", "fix it"]
    assert (row["chosen"][0]["content"], row["rejected"][0]["content"]) == ("I think.", "I guess.")
    good, bad = (json.loads(row[f"verdict_{side}"]) for side in ("chosen", "rejected"))
    assert (good["verifier"], bad["verifier"]) == ("rule:tests", "rule:tests")
    assert bad["evidence"]["tests"] == {"command": "pytest -q", "line": FAIL, "message": 5}
    assert (good["evidence"]["tests"]["line"], good["evidence"]["logs"]) == (PASS, ["logs/s.jsonl:14"])
    capsys.readouterr()
    assert inspect.main(["r", "pair=0"]) == 0
    shown = capsys.readouterr().out
    assert "1 failed, 2 pa" in shown and "3 passed" in shown


@pytest.mark.parametrize(
    ("right", "judged"),
    [
        (lambda script, at: ran(script, at, "pytest -q", PASS), 2),
        (lambda script, at: ran(script, at, "pytest -q || true", ""), 1),  # the status is hidden, and no line says
        (lambda script, at: script.turn(ran(script, at, "pytest -q", PASS), Turn("", [FIX], ["edited"]), RNG), 1),
        (lambda script, at: ran(script, at, "cat log.txt", PASS), 1),
        (lambda script, at: script.line("system", ran(script, at, "pytest -q", PASS), subtype="compact_boundary"), 1),
    ],
)
def test_what_is_not_told_is_not_guessed(right: Callable[[Transcript, str], Any], judged: int) -> None:
    lines = rewound(fails, right)
    if lines[-1].get("subtype"):  # a summary goes on after the tests
        lines[-1] |= {"parentUuid": None, "logicalParentUuid": lines[-2]["uuid"]}
    summary = imported("log.rules=[tests]", s=lines)
    assert (summary["judged"], bool(pairs())) == (judged, judged == 2)


def test_what_the_user_left_fails_and_contradictions_are_named() -> None:
    stop = "[Request interrupted by user]"
    lines = rewound(fails, lambda script, at: script.user(ran(script, at, "pytest -q", PASS), stop))
    summary = imported("log.rules=[tests,undone,refused]", s=lines)
    assert (summary["judged"], summary["ruled"], summary["rules_contradict"]) == (1, 1, 1)
    entries = [json.loads(line) for line in Path("r/quarantine.jsonl").read_text().splitlines()]
    (named,) = [entry for entry in entries if entry["kind"] == "outcome"]
    assert "Request interrupted" in named["reason"] and PASS in named["reason"]


def test_a_refused_call_ends_an_episode_and_a_retry_of_the_model_does_not() -> None:
    def refuse(script: Transcript, at: str) -> str:
        at = ran(script, at, "rm -rf /", "The user doesn't want to proceed with this tool use.")
        script.lines[-1] |= {"toolUseResult": "User rejected tool use", "toolDenialKind": "user-rejected"}
        return at

    lines = rewound(refuse, lambda script, at: script.turn(refuse(script, at), Turn("another way"), RNG))
    assert imported("log.rules=[refused]", s=lines)["judged"] == 1
    script = Transcript("t")
    asked = script.user(script.turn(script.user(None, "hello"), Turn("hi"), RNG), "fix it")
    for text in ("one", "two"):  # the model was asked again, by nobody knows whom
        script.turn(asked, Turn(text), RNG)
    Path("logs/s.jsonl").unlink()
    assert imported("log.rules=[undone]", "run_dir=t", t=script.lines)["judged"] == 0


def test_sessions_of_one_folder_are_attempts_at_one_task() -> None:
    def attempt(name: str, text: str, said: str, status: int) -> Lines:
        script = Transcript(name)
        edited = script.turn(script.user(None, "fix it"), Turn(text, [FIX], ["edited"]), RNG)
        ran(script, edited, "make test", said, status)
        return [{**line, "cwd": "/w"} for line in script.lines]

    both = {"a": attempt("a", "I guess.", FAIL, 2), "b": attempt("b", "I think.", PASS, 0)}
    assert imported("log.rules=[tests]", "log.task=cwd", **both)["pairs_total"] > 0
    (row,) = pairs()
    assert (row["chosen"][0]["content"], row["rejected"][0]["content"]) == ("I think.", "I guess.")


def test_of_calls_of_one_session_the_last_history_is_judged() -> None:
    """Alone catches tests in the middle of a session whose history the agent replaced itself."""
    call = {"id": "c", "function": {"name": "bash", "arguments": {"command": "pytest -q"}}}
    ends = [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": FAIL}]
    rows = [{"session_id": "s", "task_id": "t", "messages": [{"role": "user", "content": asked}, *ends]}
            for asked in ("fix it", "a summary")]  # fmt: skip
    assert imported("log.rules=[tests]", s=rows)["ruled"] == 1


# -- Codex, and a table of outcomes ------------------------------------------------------------------------------------


def item(**payload: Any) -> dict[str, Any]:
    return {"type": "response_item", "payload": payload}


def shell(text: str, command: str, output: str, status: int) -> Lines:
    arguments = json.dumps({"command": ["bash", "-lc", command]})
    said = f"Exit code: {status}\nWall time: 0.1 seconds\nOutput:\n{output}"
    return [item(type="message", role="assistant", content=[{"type": "output_text", "text": text}]),
            item(type="function_call", call_id=text, name="shell", arguments=arguments),
            item(type="function_call_output", call_id=text, output=said)]  # fmt: skip


def rollout(tail: Sequence[dict[str, Any]]) -> Lines:
    return [*SESSIONS["codex"](Spoken(None, "there is a bug", [Turn("I see it.")], "", "s", True), RNG), *tail]


FIX_IT = item(type="message", role="user", content=[{"type": "input_text", "text": "fix it"}])
BACK = {"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": 1}}


@pytest.mark.parametrize(("rules", "evidence"), [("tests", FAIL), ("tests,undone", "the user went back")])
def test_a_rollback_of_codex_is_a_pair(rules: str, evidence: str) -> None:
    guess, think = shell("I guess.", "pytest -q", FAIL, 1), shell("I think.", "pytest -q", PASS, 0)
    lines = rollout([FIX_IT, *guess, BACK, FIX_IT, *think])
    summary = imported(f"log.rules=[{rules}]", s=lines)
    assert (summary["judged"], summary["ruled"]) == (2, 2)
    (row,) = pairs()
    assert (row["chosen"][0]["content"], row["rejected"][0]["content"]) == ("I think.", "I guess.")
    assert evidence in json.dumps(row) and PASS in json.dumps(row)


def test_tests_before_a_compaction_of_codex_are_no_end() -> None:
    compacted = {"type": "compacted", "payload": {"message": "a summary", "replacement_history": [FIX_IT["payload"]]}}
    lines = [FIX_IT, *shell("I guess.", "pytest -q", FAIL, 1), compacted, *shell("I think.", "pytest -q", PASS, 0)]
    summary = imported("log.rules=[tests]", s=rollout(lines))
    assert (summary["episodes"], summary["ruled"], summary["success"]["attempts"]) == (2, 1, 1.0)


def test_a_table_beside_the_logs_counts_before_the_rules(tmp_path: Path) -> None:
    one, two = (rollout([FIX_IT, *shell(text, "pytest -q", PASS, 0)]) for text in ("I guess.", "I think."))
    two[0]["payload"] = {**two[0]["payload"], "id": "1.50"}
    Path("told.csv").write_text("session,outcome,task\ns,false,t\n1.50,True,t\nnobody,1,\nodd,pass,t\n")
    summary = imported("log.rules=[tests]", sources="[logs,told.csv]", one=one, two=two)
    assert (summary["outcomes_apart"], summary["ruled"], summary["tasks"]) == (2, 0, 1)
    assert summary["outcomes_of_no_episode"]["first"] == ["told.csv:2 (outcome, session, task)"]
    (row,) = pairs()
    assert row["chosen"][0]["content"] == "I think." and "told.csv:1" in json.dumps(row)
    Path("bad.csv").write_text("session,outcome\ns,1,2\n")
    imported("run_dir=b", sources="[logs,bad.csv]")
    assert "bad.csv" in (named := Path("b/quarantine.jsonl").read_text()) and "other cells than" in named
