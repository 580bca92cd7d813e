"""The command `capture` in a process of its own, and agents that speak to it with the makers' own clients."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def capturing(upstream: str, *keys: str, **env: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command; yield it and its address."""
    command = [sys.executable, "-m", "offline_agent.pipelines.capture", f"upstream={upstream}", "port=0", *keys]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **env})
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "capture: http://" in line, line + process.stderr.read()
        yield process, line.split()[1].removesuffix("/sessions/NAME/v1")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def post(url: str, body: Any, key: str = "") -> tuple[int, Any]:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


Turn = tuple[str, str, list[tuple[str, dict[str, Any]]]]
"""What is thought and said, and the calls."""
MODEL = "tiny"
SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}


def openai(base: str, session: str, **options: Any) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=f"{base}/sessions/{session}/v1", api_key="sk-of-the-user", max_retries=0, **options)


def anthropic(base: str, session: str, **options: Any) -> Any:
    from anthropic import Anthropic

    return Anthropic(base_url=f"{base}/sessions/{session}", api_key="sk-of-the-user", max_retries=0, **options)


def chat_agent(base: str, session: str, stream: bool, results: dict[str, str], system: str, user: str) -> list[Turn]:
    """Play an episode by chat completions."""
    tools = [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": SCHEMA}}]
    messages: list[Any] = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    turns: list[Turn] = []
    while not turns or turns[-1][2]:
        asked: dict[str, Any] = {"model": MODEL, "messages": messages, "tools": tools, "tool_choice": "auto"}
        if stream:
            chunks = list(openai(base, session).chat.completions.create(**asked, stream=True))
            said = chunks[0].choices[0].delta.model_dump(exclude_none=True)
            for call in said.get("tool_calls") or ():
                call.pop("index")
        else:
            answer = openai(base, session).chat.completions.create(**asked)
            said = answer.choices[0].message.model_dump(exclude_none=True)
        calls = [(one["id"], json.loads(one["function"]["arguments"])) for one in said.get("tool_calls") or ()]
        messages.append(said)
        messages += [{"role": "tool", "tool_call_id": id, "content": results[told["at"]]} for id, told in calls]
        turns.append(
            (said.get("reasoning_content") or "", said.get("content") or "", [("look", one) for _, one in calls])
        )
    return turns


def anthropic_agent(
    base: str, session: str, stream: bool, results: dict[str, str], system: str, user: str
) -> list[Turn]:
    """Play an episode by Anthropic Messages."""
    tools = [{"name": "look", "description": "Looks.", "input_schema": SCHEMA}]
    messages: list[Any] = [{"role": "user", "content": user}]
    turns: list[Turn] = []
    while not turns or turns[-1][2]:
        asked: dict[str, Any] = {"model": MODEL, "max_tokens": 99, "messages": messages, "tools": tools}
        asked |= {"system": [{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}],
                  "tool_choice": {"type": "auto"}, "thinking": {"type": "enabled", "budget_tokens": 1024}}  # fmt: skip
        if stream:
            with anthropic(base, session).messages.stream(**asked) as events:
                answer = events.get_final_message()
        else:
            answer = anthropic(base, session).messages.create(**asked)
        calls = [block for block in answer.content if block.type == "tool_use"]
        assert answer.stop_reason == ("tool_use" if calls else "end_turn") and answer.usage.output_tokens == 9
        messages.append({"role": "assistant", "content": [block.to_dict() for block in answer.content]})
        told = [{"type": "tool_result", "tool_use_id": call.id, "content": results[call.input["at"]],
                 "is_error": "no such" in results[call.input["at"]]} for call in calls]  # fmt: skip
        messages += [{"role": "user", "content": told}] if told else []
        thought, said = (
            "".join(getattr(one, kind, None) or "" for one in answer.content) for kind in ("thinking", "text")
        )
        turns.append((thought, said, [(call.name, call.input) for call in calls]))
    return turns


def responses_agent(
    base: str, session: str, stream: bool, results: dict[str, str], system: str, user: str
) -> list[Turn]:
    """Play an episode by OpenAI Responses."""
    tools = [{"type": "function", "name": "look", "description": "Looks.", "parameters": SCHEMA, "strict": False}]
    items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": user}]}]
    turns: list[Turn] = []
    while not turns or turns[-1][2]:
        asked: dict[str, Any] = {"model": MODEL, "instructions": system, "input": items, "tools": tools, "store": False}
        if stream:
            with openai(base, session).responses.stream(**asked, tool_choice="auto") as events:
                answer = events.get_final_response()
        else:
            answer = openai(base, session).responses.create(**asked, tool_choice="auto")
        assert answer.status == "completed" and answer.usage.output_tokens == 9
        calls = [item for item in answer.output if item.type == "function_call"]
        thoughts = [part.text for item in answer.output if item.type == "reasoning" for part in item.content]
        items += [item.to_dict() for item in answer.output]
        for item in items:
            item.pop("parsed_arguments", None)
        told = [(call.call_id, json.loads(call.arguments)) for call in calls]
        items += [{"type": "function_call_output", "call_id": id, "output": results[one["at"]]} for id, one in told]
        turns.append(("".join(thoughts), answer.output_text, [("look", one) for _, one in told]))
    return turns


AGENTS = {"chat": chat_agent, "anthropic": anthropic_agent, "responses": responses_agent}
KEYS = {"chat": "authorization", "anthropic": "x-api-key", "responses": "authorization"}
