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
import sys
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


def turns(run: str) -> list[list[dict[str, Any]]]:
    """Return what the model said and what tools answered, up to the model's last turn, of each episode of a run."""
    out = []
    for file in Path(run, "trajectories").glob("*.parquet"):
        for row in map(known, read_table(file)):
            said = [one for one in row["messages"] if one["role"] in ("assistant", "tool")]
            while said[-1]["role"] == "tool":  # an answer that the agent logs and sends to no model
                del said[-1]
            out.append([{key: one[key] for key in ("content", "tool_calls") if one.get(key)} for one in said])
    return sorted(out, key=str)


@pytest.mark.parametrize("name", ["claude", "codex", "mini"])
def test_an_agent_gives_the_same_episodes_through_the_proxy_and_in_its_own_files(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed; examples/coding_agents/play.py says how")
    command = [sys.executable, "-m", "examples.coding_agents.play", str(tmp_path), "--attempts", "2", "--agents", name]
    subprocess.run(command, check=True, timeout=300, cwd=Path(__file__).parents[2])
    monkeypatch.chdir(tmp_path)
    for source in ("captured", "sessions"):
        keys = [f"source={source}", f"run_dir=r-{source}", "tracking.uri=null"]
        assert import_logs.main(import_logs.COMMAND, keys) == 0
        (file,) = Path(f"r-{source}/multiturn_preferences").glob("*.parquet")
        (pair,) = map(known, read_table(file))
        assert "len(values)" in json.dumps(pair["chosen"]) and "total / 2" in json.dumps(pair["rejected"])
    assert turns("r-captured") == turns("r-sessions") and len(turns("r-sessions")) == 2
    if name != "mini":  # whose own files have the outcome in them
        keys = [f"source=sessions/{name}", "log.rules=[tests]", "run_dir=r-rules", "tracking.uri=null"]
        assert import_logs.main(import_logs.COMMAND, keys) == 0
        rows = [known(row) for file in Path("r-rules/trajectories").glob("*.parquet") for row in read_table(file)]
        judged = {row["success"]: json.loads(row["verdict"])["evidence"]["tests"]["line"] for row in rows}
        assert "OK" in judged[True] and "FAILED" in judged[False]
