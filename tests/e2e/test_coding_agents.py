"""Claude Code and Codex, as their makers ship them, captured against a local server; skipped where they are missing.

`npm install -g @anthropic-ai/claude-code @openai/codex` installs them; 2.1.197 and 0.171.0 were tried. No account is
needed, and no word leaves the machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from offline_agent.pipelines import import_logs
from offline_agent.store.columns import known
from offline_agent.store.tables import read_table
from tests.helpers.capturing import capturing, post
from tests.helpers.fake_server import FakeServer, serving

PAGE = (Path(__file__).parents[2] / "docs" / "logs.md").read_text(encoding="utf-8")
TOOLS = {"Bash": "command", "exec_command": "cmd"}


def model(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Answer as a server of chat completions: two shell calls at once, one that fails, then the end."""
    (tool,) = {one["function"]["name"] for one in body["tools"]} & {*TOOLS}
    message: dict[str, Any] = {"content": "It is done.", "reasoning_content": "I have seen both."}
    if not any(one["role"] == "tool" for one in body["messages"]):
        told = [{TOOLS[tool]: text, "description": "x"} for text in ("echo one", "ls /nowhere")]
        calls = [{"id": f"call_{number}", "type": "function", "function": {"name": tool, "arguments": json.dumps(one)}}
                 for number, one in enumerate(told)]  # fmt: skip
        message = {"content": "I look.", "reasoning_content": "Two looks.", "tool_calls": calls}
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 50, "completion_tokens": 9, "total_tokens": 59}
    return {"id": f"c{len(body['messages'])}", "model": body["model"], "choices": [choice], "usage": usage}


@pytest.mark.parametrize("name", ["claude", "codex"])
def test_a_coding_agent_is_captured_as_one_episode(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the command of docs/logs.md."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(rf"^(?:\w+=\S+ )+{name} .*?[^\\]$", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "home").mkdir()
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    with serving(FakeServer(model)) as server, capturing(server.url, "log=captured") as (process, base):
        task = "Look. --dangerously-bypass-approvals-and-sandbox" if name == "codex" else "Look."  # no sandbox in ours
        command = command.replace("http://127.0.0.1:8100", base).replace("MODEL", "tiny").replace("TASK", task)
        done = subprocess.run(["bash", "-c", command], env=env, capture_output=True, stdin=subprocess.DEVNULL,
                              text=True, timeout=300)  # fmt: skip
        assert done.returncode == 0 and "It is done." in done.stdout, done.stderr
        assert post(f"{base}/sessions/NAME/outcome", {"success": True, "task_id": "t"})[0] == 200
    assert import_logs.main(import_logs.COMMAND, ["source=captured", "run_dir=r", "tracking.uri=null"]) == 0
    (row,) = [known(one) for file in Path("r/trajectories").glob("*.parquet") for one in read_table(file)]
    messages = json.loads(row["messages"]) if isinstance(row["messages"], str) else row["messages"]
    assert [one["role"] for one in messages][-4:] == ["assistant", "tool", "tool", "assistant"]
    thoughts = [one["reasoning_content"] for one in messages if one["role"] == "assistant"]
    assert thoughts == ["Two looks.", "I have seen both."]
    assert "one" in messages[-3]["content"] and "No such file" in messages[-2]["content"]


@pytest.mark.parametrize("name", ["claude", "codex"])
def test_sessions_that_an_agent_keeps_itself_are_judged_by_their_tests(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone catches marks of results that a release writes in other words: exit statuses, and who ended a call."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(rf"^(?:\w+=\S+ )+{name} .*?[^\\]$", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "home").mkdir()
    Path("test_a.py").write_text("import os, unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n"
                                 "        self.assertTrue(os.path.exists('right'))\n")  # fmt: skip

    def tests(path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = model(path, body)
        for call in answer["choices"][0]["message"].get("tool_calls", [])[1:]:
            told = json.loads(call["function"]["arguments"])
            given = {key: "python3 -m unittest -q" if value == "ls /nowhere" else value for key, value in told.items()}
            call["function"]["arguments"] = json.dumps(given)
        return answer

    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    with serving(FakeServer(tests)) as server, capturing(server.url, "log=captured") as (_, base):
        task = "Test. --dangerously-bypass-approvals-and-sandbox" if name == "codex" else "Test."
        command = command.replace("http://127.0.0.1:8100", base).replace("MODEL", "tiny").replace("TASK", task)
        for _ in range(2):  # the tests fail, then they pass
            done = subprocess.run(["bash", "-c", command], env=env, capture_output=True, stdin=subprocess.DEVNULL,
                                  text=True, timeout=300)  # fmt: skip
            assert done.returncode == 0, done.stderr
            Path("right").touch()
    folder = {"claude": "home/.claude/projects", "codex": "home/.codex/sessions"}[name]
    keys = [f"source={folder}", "log.rules=[tests,undone,refused]", "run_dir=r", "tracking.uri=null"]
    assert import_logs.main(import_logs.COMMAND, keys) == 0
    rows = [known(one) for file in Path("r/trajectories").glob("*.parquet") for one in read_table(file)]
    told = sorted((json.loads(row["verdict"])["evidence"]["tests"]["line"], row["success"]) for row in rows)
    assert [success for _, success in told] == [False, True] and "FAILED" in told[0][0] and "OK" in told[1][0]
