"""Let Claude Code, Codex and mini-swe-agent play one task, captured by the proxy, and keep their own session files too.

    python -m examples.coding_agents.play FOLDER [--attempts 4] [--agents claude codex mini]

FOLDER has `captured/`, what the proxy wrote, each agent in its own dialect, and `sessions/`, the agents' own files with
the outcomes, which the task's tests decide. Nothing leaves the machine, and no account is needed. The agents come from
`npm install -g @anthropic-ai/claude-code @openai/codex` and `pipx install mini-swe-agent` (2.1.197, 0.171.0, 2.4.6
were tried); those that are missing are named and left out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.request
import uuid
from pathlib import Path

from examples.coding_agents.model import server

TASK = "mean.py is wrong: the tests fail. Repair it."
FILES = {
    "mean.py": "def mean(values):\n    total = sum(values)\n    return total\n",
    "test_mean.py": "import unittest\n\nfrom mean import mean\n\n\nclass Test(unittest.TestCase):\n"
    "    def test_mean(self):\n        self.assertEqual(mean([1, 2, 5]), 8 / 3)\n",
}
CODEX = 'model_providers.capture={{name="capture",base_url="{base}/v1",wire_api="responses",env_key="OPENAI_API_KEY"}}'


def command(agent: str, model: str, base: str, session: str) -> tuple[list[str], dict[str, str]]:
    """Return an agent's command line and its variables: nothing but the address of the model is set."""
    if agent == "claude":
        told = ["claude", "-p", TASK, "--model", model, "--session-id", session, "--allowedTools", "Bash"]
        return told, {"ANTHROPIC_BASE_URL": base, "ANTHROPIC_API_KEY": "any",
                      "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}  # fmt: skip
    if agent == "codex":
        told = ["codex", "exec", TASK, "-m", model, "--skip-git-repo-check", "-c", "model_provider=capture",
                "--dangerously-bypass-approvals-and-sandbox", "-c", CODEX.format(base=base)]  # fmt: skip
        return told, {"OPENAI_API_KEY": "any"}
    told = ["mini", "-t", TASK, "-m", f"openai/{model}", "-y", "--exit-immediately", "-o", f"{session}.traj.json"]
    return told, {"OPENAI_BASE_URL": f"{base}/v1", "OPENAI_API_KEY": "any", "MSWEA_CONFIGURED": "true",
                  "MSWEA_COST_TRACKING": "ignore_errors", "LITELLM_LOCAL_MODEL_COST_MAP": "true"}  # fmt: skip


def play(agent: str, attempt: int, folder: Path, proxy: str) -> None:
    """Let an agent make one attempt; keep its session file and the outcome."""
    session = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{agent}-{attempt}"))
    work, home = folder / "work", folder / "home"
    for place in (work, home):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
    for name, text in FILES.items():
        (work / name).write_text(text, encoding="utf-8")
    base = f"{proxy}/sessions/{session}"
    told, variables = command(agent, "coder", base, session)
    env = {"PATH": os.environ["PATH"], "HOME": str(home), **variables}
    done = subprocess.run(told, cwd=work, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{agent} ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
    tests = subprocess.run([sys.executable, "-m", "unittest", "-q"], cwd=work, capture_output=True)
    outcome = {"success": tests.returncode == 0, "task_id": f"mean ({agent})"}
    body = urllib.request.Request(f"{base}/outcome", json.dumps(outcome).encode(), {"Content-Type": "application/json"})
    urllib.request.urlopen(body).close()
    kept = folder / "sessions" / agent
    kept.mkdir(parents=True, exist_ok=True)
    files = [*home.glob(".claude/projects/*/*.jsonl"), *home.glob(".codex/sessions/**/rollout-*.jsonl"),
             *work.glob("*.traj.json")]  # fmt: skip
    for file in files:
        if agent == "mini":  # its files name no session: the outcome is a field of its own
            told = json.loads(file.read_text(encoding="utf-8")) | outcome
            (kept / file.name).write_text(json.dumps(told), encoding="utf-8")
            continue
        shutil.copy(file, kept / file.name)
        known = file.stem[-36:]  # of Claude Code the id that it was given, of Codex its own
        with (folder / "sessions" / "outcomes.jsonl").open("a", encoding="utf-8") as table:
            table.write(json.dumps({"session_id": known, **outcome}) + "\n")
    print(f"{agent}, attempt {attempt}: {outcome}, {[file.name for file in files]}")


def main() -> None:
    """Play every attempt of every agent that is installed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--attempts", type=int, default=4)
    parser.add_argument("--agents", nargs="+", default=["claude", "codex", "mini"])
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with server() as models:
        threading.Thread(target=models.serve_forever, daemon=True).start()
        keys = [f"upstream=http://127.0.0.1:{models.server_port}/v1", f"log={folder / 'captured'}", "port=0"]
        capture = [sys.executable, "-m", "offline_agent.pipelines.capture"]
        with subprocess.Popen([*capture, *keys], stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            proxy = process.stderr.readline().split()[1].removesuffix("/sessions/NAME/v1")
            for agent in options.agents:
                if shutil.which(agent) is None:
                    print(f"{agent}: not installed, left out")
                    continue
                for attempt in range(options.attempts):
                    play(agent, attempt, folder, proxy)
            process.terminate()
        models.shutdown()


if __name__ == "__main__":
    main()
