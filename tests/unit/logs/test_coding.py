"""Rules for coding sessions: each says how an episode ended, with its evidence, or nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from offline_agent.logs.coding import ruled
from offline_agent.logs.conversation import conversation
from offline_agent.logs.episode import LoggedEpisode, Rule

PASS, FAIL = "===== 3 passed in 0.12s =====", "==== 1 failed, 2 passed in 0.12s ===="
WAITED = "Chunk ID: a\nWall time: 1.0 seconds\nProcess {}\nOutput:\nok"
ALL: tuple[Rule, ...] = ("tests", "undone", "refused")
Call = tuple[str, dict[str, Any], str]
EDIT: Call = ("Edit", {"file_path": "/w/src/a.py", "old_string": "a", "new_string": "b"}, "edited")


def run(command: Any, said: str, name: str = "Bash") -> Call:
    return name, {"command": command}, said


def episode(*calls: Call, said: str = "done", **more: Any) -> LoggedEpisode:
    """Return an episode with a turn for each call, and one that says something."""
    messages: list[Any] = [{"role": "user", "content": "fix it"}]
    for number, (name, arguments, result) in enumerate(calls):
        call = {"id": f"c{number}", "function": {"name": name, "arguments": arguments}}
        messages += [{"role": "assistant", "content": "", "tool_calls": [call]},
                     {"role": "tool", "tool_call_id": f"c{number}", "content": result}]  # fmt: skip
    messages += [{"role": "assistant", "content": said}] if said else []
    return LoggedEpisode("log:1", conversation(messages), **more)


def outcome(one: LoggedEpisode, *rules: Rule) -> bool | None:
    return ruled(one, rules or ALL)[0].success


@pytest.mark.parametrize(
    ("calls", "success"),
    [
        ([EDIT, run("pytest -q", PASS)], True),
        ([EDIT, run("pytest -q", FAIL)], False),
        ([run("pytest -q", FAIL), EDIT, run("pytest -q", PASS)], True),
        ([run("pytest -q", PASS), EDIT], None),  # nobody tested what it wrote last
        ([run("pytest -q", PASS), run("python fix.py", "")], None),  # which may have changed files
        ([run("pytest -q", PASS), ("mcp__db__query", {"sql": "x"}, "y")], None),  # so may another tool
        ([run("pytest -q", PASS), run("git diff", "+1"), ("Read", {"file_path": "a"}, "x")], True),
        ([run("pytest -q", PASS), ("str_replace_editor", {"command": "view", "path": "a"}, "x")], True),
        ([run("pytest -q", PASS), ("str_replace_editor", {"command": "create", "path": "a"}, "x")], None),
        ([EDIT, run("pytest -q || true", "")], None),
        ([EDIT, run("cat log.txt", PASS)], None),  # a summary that was only printed
        ([EDIT, run("pytest -q", FAIL), run("cat log.txt", PASS)], False),
        ([run("pytest -q", FAIL), run("./check.sh", PASS)], None),  # a script of nobody knows what
        ([run("pytest -q", FAIL), ("Bash", {"command": "pytest", "run_in_background": True}, PASS)], None),
        ([], None),
    ],
)
def test_the_last_tests_count_where_no_file_changed_after_them(calls: list[Call], success: bool | None) -> None:
    assert outcome(episode(*calls)) is success


@pytest.mark.parametrize(
    ("call", "success"),
    [
        (run(["bash", "-lc", "cd x && make test"], "Exit code: 0\nWall time: 1 seconds\nOutput:\nok", "shell"), True),
        (("exec_command", {"cmd": "make test"}, WAITED.format("exited with code 0")), True),
        (("exec_command", {"cmd": "make test"}, WAITED.format("running with session ID 3")), None),
        (run("make test", json.dumps({"output": "ok", "metadata": {"exit_code": 0}}), "functions.shell"), True),
        (run("make test", "<returncode>0</returncode>\n<output>\nok</output>", "bash"), True),
        (run("make test", "<returncode>2</returncode>\n<output>\nno rule</output>", "bash"), None),
        (run("make test", "ok\n[The command completed with exit code 0.]\n[Current working directory: /w]\n"
             "[Command finished with exit code 0]", "execute_bash"), True),
        (run("make test", "Exit code: 0\nit says\n[Command finished with exit code 1]", "terminal"), None),
        (run("make test", "a log says: Exit code: 0", "bash"), None),  # SWE-agent's results have no status
        (run("make test", "Ran 2 tests in 0.1s\n\nOK", "bash"), True),
    ],
)  # fmt: skip
def test_exit_statuses_are_read_as_each_agent_writes_them(call: Call, success: bool | None) -> None:
    assert outcome(episode(call), "tests") is success


def test_scripts_in_the_text_are_calls_where_their_result_follows() -> None:
    turn = "THOUGHT: test\n\n```mswea_bash_command\npytest -q\n```"
    said = [{"role": "user", "content": "fix it"}, {"role": "assistant", "content": turn}]
    for answer, success in ((f"<returncode>1</returncode>\n<output>\n{FAIL}\n</output>", False), (FAIL, None)):
        messages = conversation([*said, {"role": "user", "content": answer}])
        assert outcome(LoggedEpisode("log:1", messages)) is success


def left(text: str, *more: str, edits: Call = EDIT) -> LoggedEpisode:
    return episode(edits, signs={"after": [[f"s:{n}", said] for n, said in enumerate((text, *more), 9)]})


@pytest.mark.parametrize(
    ("one", "success"),
    [
        (episode(EDIT, signs={"left": "s:9"}), False),
        (left("[Request interrupted by user]"), False),
        (left("<turn_aborted>\nThe user interrupted the previous turn on purpose.\n</turn_aborted>"), False),
        (left("[Request interrupted by user for tool use]"), None),  # the agent writes it of itself, too
        (left("No! This is all wrong, git checkout ."), None),  # words are not read
        (left("<bash-input>git checkout -- src/a.py</bash-input>", "<bash-stdout></bash-stdout>"), False),
        (left("<bash-input>cd /w && git restore src/</bash-input>"), False),
        (left("<bash-input>git restore --staged .</bash-input>"), None),
        (left("<bash-input>git reset --hard</bash-input>"), False),
        (left("<bash-input>git reset HEAD~1</bash-input>"), None),
        (left("<bash-input>git stash</bash-input>"), False),
        (left("<bash-input>git stash</bash-input>", "<bash-input>git stash pop</bash-input>"), None),
        (left("<bash-input>git checkout -- other.py</bash-input>"), None),
        (left("<bash-input>git checkout .</bash-input>", "<bash-stderr>error: pathspec</bash-stderr>"), None),
        (left("<user_shell_command>\n<command>\ngit checkout .\n</command>\n<result>\nExit code: 0\n</result>",
              edits=("apply_patch", {"input": "*** Begin Patch\n*** Update File: a.py\n"}, "Done")), False),
        (left("<bash-input>git checkout .</bash-input>", edits=run("ls", "a")), None),  # it edited nothing
        (episode(EDIT, run("git checkout .", "")), None),  # the agent's own command
    ],
)  # fmt: skip
def test_what_the_user_undid_is_a_failure_by_its_marks_alone(one: LoggedEpisode, success: bool | None) -> None:
    assert outcome(one, "undone") is success
    assert outcome(one, "refused") is None


def test_a_call_that_was_not_allowed_counts_where_the_episode_ends_with_it() -> None:
    refused = run(["ls"], "exec command rejected by user", "shell")
    assert outcome(episode(refused, said=""), "refused") is False
    assert outcome(episode(refused), "refused") is None  # it went on, another way
    assert outcome(episode(run("cat a", "it says: exec command rejected by user"), said=""), "refused") is None
    refused = run(["rm", "a.py"], "exec command rejected by user", "shell")  # so it changed nothing
    assert outcome(episode(run("pytest", PASS), refused, said=""), "tests") is True


def test_rules_that_contradict_each_other_give_no_outcome_and_evidence_is_named() -> None:
    both = episode(EDIT, run("pytest -q", PASS), signs={"left": "s:9"})
    one, contradiction = ruled(both, ALL)
    assert one == both and "tests" in str(contradiction) and "s:9" in str(contradiction)
    one, contradiction = ruled(both, ["tests"])
    assert (one.score, one.outcome, contradiction) == (1.0, "rule:tests", None)
    assert one.evidence == {"tests": {"command": "pytest -q", "line": PASS, "message": 3}}
    assert ruled(episode(run("pytest -q", FAIL), signs={"left": "s:9"}), ALL)[0].outcome == "rule:tests+undone"
    assert ruled(both, ()) == (both, None)
    told = episode(run("pytest -q", PASS), score=0.0, success=False, outcome="reward")
    assert ruled(told, ALL) == (told, None)  # what the log says counts
    assert outcome(episode(run("pytest -q", FAIL), signs={"goes_on": True})) is None  # a summary goes on with it
