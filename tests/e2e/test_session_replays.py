"""Coding sessions replayed in their repository: what passes, fails, does not apply, and what is hostile."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.coding_agents.play import FILES
from offline_agent.formats import FORMATS, recognise, records
from offline_agent.logs.episode import Fields
from offline_agent.logs.repository import Repository, RepositorySection
from offline_agent.pipelines import import_logs
from tests.helpers.log_writers import SESSIONS, Spoken, Transcript, Turn

RNG = random.Random(0)
TEST = "python3 -m unittest -q"
RIGHT, WRONG = "return total / len(values)", "return total / 2"
Call = tuple[str, dict[str, Any]]

pytestmark = pytest.mark.skipif(shutil.which("git") is None or sys.platform != "linux", reason="needs git and Linux")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of examples/coding_agents' task, a notebook beside it."""
    folder = tmp_path / "home" / "project"
    folder.mkdir(parents=True)
    cell = {"id": "c1", "cell_type": "code", "source": "1", "metadata": {}, "execution_count": None, "outputs": []}
    notebook = json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    for name, text in {
        **FILES,
        "notes.ipynb": notebook,
        "old.txt": "old\n",
        ".gitattributes": "test_* export-ignore\n",
    }.items():
        (folder / name).write_text(text)
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *command], cwd=folder, check=True)
    return folder


def head(repository: Path) -> str:
    return subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=repository, text=True).strip()


def claude(repository: Path, *calls: tuple[Call, str, Any], name: str = "s") -> list[dict[str, Any]]:
    """Return a session of Claude Code: calls, each with what was printed and `toolUseResult`."""
    script = Transcript(name)
    at = script.user(None, "Repair it.", cwd=str(repository))
    for number, (call, said, told) in enumerate(calls):
        block = {"type": "tool_use", "id": f"t{number}", "name": call[0], "input": call[1]}
        message = {"id": f"m{number}", "role": "assistant", "model": "m", "content": [block]}
        at = script.line("assistant", at, message=message, cwd=str(repository))
        failed = isinstance(told, str)
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": said, "is_error": failed}
        at = script.user(at, [result], toolUseResult=told)
    script.turn(at, Turn("Done."), RNG)
    return script.lines


def edit(path: Any, old: str, new: str) -> tuple[Call, str, Any]:
    return ("Edit", {"file_path": str(path), "old_string": old, "new_string": new}), "edited", {"filePath": str(path)}


def bash(command: str, said: str = "", told: Any = None, **more: Any) -> tuple[Call, str, Any]:
    return ("Bash", {"command": command, **more}), said, told or {"stdout": said, "stderr": "", "interrupted": False}


def verdict(repository: Path, lines: list[dict[str, Any]], **keys: Any) -> dict[str, Any]:
    """Write a session, read it, and return what its replay says."""
    path = repository.parent / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (record,) = records(path)
    (name, _) = recognise(record.value) or ("", "")
    (episode,) = FORMATS[name].read(record.value, record.name, Fields())
    known = {"repository": str(repository), "commit": "HEAD", "test": TEST, "seconds": 60.0}
    return Repository(RepositorySection(**{**known, **keys}))(episode)


def test_claude_codes_edits_are_made_again_and_tests_decide(repository: Path) -> None:
    path = repository / "mean.py"
    writes = ("Write", {"file_path": str(repository / "new/a.txt"), "content": "x"}), "created", {"type": "create"}
    notes = {"notebook_path": str(repository / "notes.ipynb"), "cell_id": "c1", "new_source": "2"}
    cell = ("NotebookEdit", notes), "", {}
    failed = edit(path, "not there", "x")[0], "String to replace not found", "Error: String to replace not found"
    told = verdict(repository, claude(
        repository, failed, writes, cell, (("Read", {"file_path": str(path)}), "text", {}),
        (("MultiEdit", {"file_path": str(path), "edits": [
            {"old_string": "return total", "new_string": "return sum"},
            {"old_string": "return sum", "new_string": RIGHT},
        ]}), "edited", {}),
        bash(f"cd new && ls {repository}/mean.py"), bash("sed -i s/x/y/ a.txt && git checkout -q ../old.txt"),
        bash(TEST, "", "Error: Exit code 1"), bash("curl example.org", "", "Error: Exit code 6"),
    ))  # fmt: skip
    assert told.pop("line", told) and "reason" not in told, told
    assert told == {"success": True, "command": TEST, "status": 0, "commit": head(repository), "passed_before": False,
                    "taken_back": [], "changed": ["mean.py", "new", "new/a.txt", "notes.ipynb"]}  # fmt: skip
    told = verdict(repository, claude(repository, edit(path, "return total", WRONG)))
    assert (told["success"], told["status"]) == (False, 1) and "FAILED (failures=1)" in told["line"]
    assert (repository / "mean.py").read_text() == FILES["mean.py"]  # a copy was changed


PATCH = """*** Begin Patch
*** Update File: mean.py
@@ def mean(values):
     total = sum(values)
-    return total
+    return total / len(values)
*** Add File: new.txt
+one
*** Delete File: old.txt
*** End Patch"""


@pytest.mark.parametrize("tool", ["apply_patch", "exec_command", "shell"])
def test_codexs_patches_are_applied_in_each_of_their_forms(tool: str, repository: Path) -> None:
    given = {"exec_command": {"cmd": f"apply_patch <<'EOF'\n{PATCH}\nEOF\n", "workdir": str(repository)},
             "shell": {"command": ["bash", "-lc", f"apply_patch '{PATCH}'"]},
             "apply_patch": {"input": PATCH}}[tool]  # fmt: skip
    said = "Exit code: 0\nWall time: 0.1 seconds\nOutput:\nSuccess. Updated the following files:\nM mean.py"
    turns = [Turn("", [(tool, given)], [said]), Turn("Done.")]
    lines = SESSIONS["codex"](Spoken(None, "go", turns, "", "s", True), RNG)
    lines[0]["payload"] |= {"cwd": str(repository), "git": {"commit_hash": head(repository)}}
    told = verdict(repository, lines, commit=None)
    assert (told["success"], told["commit"]) == (True, head(repository))
    assert told["changed"] == ["mean.py", "new.txt", "old.txt"]
    lines[0]["payload"]["git"]["commit_hash"] = "--output=/tmp/x"
    assert "name one with replay.commit" in verdict(repository, lines, commit=None)["reason"]
    lines[0]["payload"]["git"]["commit_hash"] = "0" * 40
    assert verdict(repository, lines, commit=None)["success"] is None


def test_mini_swe_agents_commands_are_run(repository: Path) -> None:
    def turn(command: str, status: int = 0) -> list[dict[str, Any]]:
        return [{"role": "assistant", "content": f"I do it.\n```mswea_bash_command\n{command}\n```"},
                {"role": "user", "content": f"<returncode>{status}</returncode>\n<output>\n</output>"}]  # fmt: skip

    for commands, success in (
        ([("sed -i 's|return total$|return total / len(values)|' mean.py", 0)], True),
        ([("sed -i 's|return total$|return 1|' mean.py", 0)], False),
        ([("pip download torch", 0), (f"sed -i 's|return total$|{RIGHT}|' mean.py", 0)], None),  # needs the network
        ([('python3 -c \'open("mean.py", "a").write("(")\'', 0)], False),  # the tests ran before
    ):
        said = [message for command in commands for message in turn(*command)]
        record = {"trajectory_format": "mini-swe-agent-1.1", "info": {}, "messages": [
            {"role": "user", "content": "go"}, *said, *turn("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")]}  # fmt: skip
        told = verdict(repository, [record])
        assert told["success"] is success, told
        assert success is not None or "'pip download torch' ended with status" in told["reason"]


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ([edit("mean.py", "return nothing", RIGHT)], "step 1 of 1: ValueError: mean.py: the old text stands 0 times"),
        ([edit("mean.py", "total", "sum")], "the old text stands 2 times"),
        ([(("Task", {"prompt": "go"}), "done", {})], "task: nobody knows which files it changed"),
        ([bash("make", run_in_background=True)], "the log does not tell how it ended"),
        ([bash("touch a", "", "Error: Exit code 1")], "ended with status 0, the log has 1"),
        ([bash("kill -9 $PPID")], "its commands were stopped"),
        ([bash("while true; do :; done # x")], "its commands were stopped (wall"),
        ([bash("echo '{}' > /proc/$PPID/fd/1 && touch b")], "Permission denied"),
        ([edit("/etc/hostname", "", "x")], "step 1 of 1: "),
    ],
)  # fmt: skip
def test_what_cannot_be_replayed_has_no_verdict(calls: list[Any], reason: str, repository: Path) -> None:
    told = verdict(repository, claude(repository, *calls), seconds=5.0)
    assert told["success"] is None and reason in told["reason"], told


def test_a_history_that_a_summary_replaced_has_no_verdict(repository: Path) -> None:
    lines = claude(repository, edit("mean.py", "return total", RIGHT))
    next(line for line in lines if line["type"] == "user")["isCompactSummary"] = True
    assert "a part of a session" in verdict(repository, lines)["reason"]


def test_nothing_of_a_hostile_session_stays_or_tells_the_verdict(repository: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("mine")
    lines = claude(
        repository, bash(f"ln -s {secret} {repository}/link; echo x > {secret} || true"),
        bash("(sleep 1; echo 'OK' > /repository/test_mean.py) >/dev/null 2>&1 & echo '#!/bin/sh' > ~/python3; true"),
        edit(repository / "test_mean.py", "8 / 3", "8"), edit("../../../tmp/x", "", "x"),
    )  # fmt: skip
    told = verdict(repository, lines)
    assert told["success"] is True  # by the tests that it changed, as the evidence shows
    assert "test_mean.py" in told["changed"] and secret.read_text() == "mine"
    told = verdict(repository, lines, kept=("test_mean.py",))
    assert (told["success"], told["taken_back"]) == (False, ["test_mean.py"])
    added = (("Write", {"file_path": "tests/test_new.py", "content": "1 / 0"}), "created", {})
    lines = claude(repository, edit("mean.py", "return total", RIGHT), added, bash("touch tests/__init__.py"))
    assert [verdict(repository, lines, kept=kept)["success"] for kept in ((), ("tests",))] == [False, True]
    assert not subprocess.check_output(["git", "status", "--porcelain"], cwd=repository)


def test_tests_that_cannot_run_say_nothing(repository: Path) -> None:
    lines = claude(repository, edit(repository / "mean.py", "return total", RIGHT))
    for test in ("no_such_runner", "python3 -m pytest_missing", "python3 -m unittest -q nowhere"):
        told = verdict(repository, lines, test=test)
        assert told["success"] is (False if test == "python3 -m pytest_missing" else None), told


def test_import_logs_takes_the_verdict_and_compares_it(repository: Path, tmp_path: Path, capsys: Any) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for name, text, old in (("a", RIGHT, "return total"), ("b", WRONG, "return total"), ("c", RIGHT, "gone")):
        lines = claude(repository, edit(repository / "mean.py", old, text), name=name)
        (logs / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    keys = [f"source={logs}", f"replay.repository={repository}", "replay.commit=HEAD", f"replay.test={TEST}",
            "tracking.uri=null", "pairs.min_visits=1"]  # fmt: skip
    assert import_logs.main(import_logs.COMMAND, [*keys, f"run_dir={tmp_path}/r"]) == 0
    summary = json.loads((tmp_path / "r/summary.json").read_text())
    assert (summary["judged"], summary["replayed"], summary["pairs_total"]) == (2, 2, 1)
    entries = [json.loads(line) for line in (tmp_path / "r/quarantine.jsonl").read_text().splitlines()]
    assert [one["reason"][:13] for one in entries if one["kind"] == "outcome"] == ["not replayed:"]
    (logs / "told.jsonl").write_text('{"session_id": "a", "success": true}\n{"session_id": "b", "success": true}\n')
    assert import_logs.main(import_logs.COMMAND, [*keys, f"run_dir={tmp_path}/t"]) == 0
    summary = json.loads((tmp_path / "t/summary.json").read_text())
    assert (summary["judged"], summary["replayed"], summary["rules_contradict"]) == (1, 1, 1)
