"""A server of chat completions on this machine that plays a coder: it edits a file, runs the tests, and ends.

It samples the edit: one of four, in turn, and one of them is right. So attempts at a task begin alike and end well or
badly, as those of a real model do, without weights or a network.
"""

from __future__ import annotations

import itertools
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ARGUMENTS = {"Bash": "command", "exec_command": "cmd", "bash": "command"}  # Claude Code, Codex, mini-swe-agent
EDITS = itertools.cycle(("total / 2", "total / len(values)", "total // len(values)", "max(values)"))
TURNS = (
    ("The sum has to be divided.", "sed -i 's|return total$|return {edit}|' mean.py"),
    ("Now the tests.", "python3 -m unittest -q"),
)
LAST = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"  # how mini-swe-agent ends


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request, in the form of chat completions."""
    tools = [tool["function"]["name"] for tool in request.get("tools") or ()]
    tool = next((name for name in tools if name in ARGUMENTS), "")
    turn = sum(message["role"] == "assistant" for message in request["messages"])
    said, command = TURNS[turn] if turn < len(TURNS) else ("It is done.", LAST if tool == "bash" else "")
    message: dict[str, Any] = {"role": "assistant", "content": said}
    if tool and command:
        told = {ARGUMENTS[tool]: command.format(edit=next(EDITS)) if turn == 0 else command}
        told |= {"description": said} if tool == "Bash" else {}
        function = {"name": tool, "arguments": json.dumps(told)}
        message["tool_calls"] = [{"id": f"call_{turn}", "type": "function", "function": function}]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    return {"id": f"answer-{turn}", "object": "chat.completion", "created": 0, "model": request["model"],
            "choices": [choice], "usage": usage}  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    """Answers every POST as `/v1/chat/completions`."""

    def do_POST(self) -> None:
        """Answer a request."""
        body = json.dumps(answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def server() -> ThreadingHTTPServer:
    """Return a server on a free port of this machine; `serve_forever` runs it."""
    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)
