"""Logs in the formats of others, written without any code of the readers, and what must be read of them."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

WORDS = ["find", "the", "red", "lamp", "below", "€4", "検索", "\\", '"quoted"', "{brace}", "line\nbreak", "<x>"]


@dataclass
class Turn:
    """One turn: text, calls as (name, arguments), results in the order of the calls, and what the user says after."""

    text: str
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    reply: str | None = None
    reasoning: str | None = None


@dataclass
class Spoken:
    """One conversation with its outcome and its tools."""

    system: str | None
    request: str
    turns: list[Turn]
    task: str
    session: str
    success: bool
    tools: list[dict[str, Any]] = field(default_factory=lambda: TOOLS)

    def expected(self, calls_apart: bool = False) -> list[dict[str, Any]]:
        """Return the messages that must be read; `calls_apart`: calls are turns without text (ShareGPT)."""
        out: list[dict[str, Any]] = [] if self.system is None else [{"role": "system", "content": self.system}]
        out.append({"role": "user", "content": self.request})
        for turn in self.turns:
            calls = [{"type": "function", "function": {"name": n, "arguments": a}} for n, a in turn.calls]
            if calls_apart and calls and turn.text:
                out.append({"role": "assistant", "content": turn.text})
            content = "" if calls_apart and calls else turn.text
            thought = {} if calls_apart or turn.reasoning is None else {"reasoning_content": turn.reasoning}
            out.append({"role": "assistant", "content": content, **thought, **({"tool_calls": calls} if calls else {})})
            results = zip(turn.calls, turn.results, strict=False)  # the last calls may have none
            out += [{"role": "tool", "content": said, "name": name} for (name, _), said in results]
            if turn.reply is not None:
                out.append({"role": "user", "content": turn.reply})
        return out


TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"does {name}", "parameters": {"type": "object"}}}
    for name in ("search", "open", "buy")
]


def spoken(rng: random.Random, number: int) -> Spoken:
    """Return a random conversation."""
    def text(most: int = 6) -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(1, most)))

    turns = []
    for _ in range(rng.randint(0, 4)):
        calls = [(rng.choice(("search", "open", "buy")), {"q": text(2), "n": rng.randint(-2, 9), "x": None, "l": [1.5]})
                 for _ in range(rng.choice((1, 1, 1, 2, 3)))]  # fmt: skip
        turns.append(Turn(rng.choice(("", text())), calls, [text() for _ in calls]))
        if rng.random() < 0.2:
            turns[-1].reply = text()
        if rng.random() < 0.3:
            turns[-1].reasoning = text()
    turns.append(Turn(text()))
    return Spoken(rng.choice((None, text())), text(), turns, f"task-{number % 7}", f"s{number}", rng.random() < 0.5)


def openai(one: Spoken, rng: random.Random) -> dict[str, Any]:
    """Return a record of OpenAI messages; results of parallel calls come in any order."""
    messages: list[dict[str, Any]] = [] if one.system is None else [{"role": "system", "content": one.system}]
    messages.append({"role": "user", "content": [{"type": "text", "text": one.request}] if rng.random() < 0.3
                     else one.request})  # fmt: skip
    for turn in one.turns:
        ids = [f"call_{rng.getrandbits(40):x}" for _ in turn.calls]
        message: dict[str, Any] = {"role": "assistant", "content": turn.text or (None if turn.calls else "")}
        if turn.reasoning is not None:
            message[rng.choice(("reasoning_content", "reasoning"))] = turn.reasoning
        if turn.calls:
            message["tool_calls"] = [
                {"id": id, "type": "function", "function": {"name": n, "arguments": json.dumps(a)}}
                for id, (n, a) in zip(ids, turn.calls, strict=True)
            ]
        messages.append(message)
        results = [{"role": "tool", "tool_call_id": id, "content": r} for id, r in zip(ids, turn.results, strict=False)]
        rng.shuffle(results)
        messages += results
        if turn.reply is not None:
            messages.append({"role": "user", "content": turn.reply})
    return {"messages": messages, "tools": one.tools, "task_id": one.task, "session_id": one.session,
            "success": int(one.success)}  # fmt: skip


def verifiers(one: Spoken, rng: random.Random) -> dict[str, Any]:
    """Return a row of verifiers' results."""
    record = openai(one, rng)
    messages = record.pop("messages")
    start = next(n for n, message in enumerate(messages) if message["role"] == "assistant")
    tools = record.pop("tools")
    return {"prompt": messages[:start], "completion": messages[start:], "reward": float(record.pop("success")),
            "info": {"oai_tools": tools}, "answer": "", **record}  # fmt: skip


def sharegpt(one: Spoken, rng: random.Random) -> dict[str, Any]:
    """Return a ShareGPT record."""
    turns = [{"from": "human", "value": one.request}]
    for turn in one.turns:
        if turn.text or not turn.calls:
            turns.append({"from": "gpt", "value": turn.text})
        if turn.calls:
            calls = [{"name": n, "arguments": a} for n, a in turn.calls]
            turns.append({"from": "function_call", "value": json.dumps(calls[0] if len(calls) == 1 else calls)})
            turns += [{"from": "observation", "value": result} for result in turn.results]
        if turn.reply is not None:
            turns.append({"from": "human", "value": turn.reply})
    record = {"conversations": turns, "tools": json.dumps([t["function"] for t in one.tools]), "id": one.session}
    record |= {"task": one.task, "label": one.success}
    return record if one.system is None else {**record, "system": one.system}


def atif(one: Spoken, rng: random.Random) -> dict[str, Any]:
    """Return an ATIF trajectory."""
    steps: list[dict[str, Any]] = [] if one.system is None else [{"source": "system", "message": one.system}]
    steps.append({"source": "user", "message": one.request})
    for turn in one.turns:
        ids = [f"c{rng.getrandbits(40):x}" for _ in turn.calls]
        step: dict[str, Any] = {"source": "agent", "message": turn.text, "metrics": {"prompt_tokens": 5}}
        if turn.reasoning is not None:
            step["reasoning_content"] = turn.reasoning
        if turn.calls:
            step["tool_calls"] = [{"tool_call_id": id, "function_name": n, "arguments": a}
                                  for id, (n, a) in zip(ids, turn.calls, strict=True)]  # fmt: skip
            results = [{"source_call_id": id, "content": r} for id, r in zip(ids, turn.results, strict=False)]
            rng.shuffle(results)
            step["observation"] = {"results": results}
        steps.append(step)
        if turn.reply is not None:
            steps.append({"source": "user", "message": turn.reply})
    for number, step in enumerate(steps, 1):
        step["step_id"] = number
    return {"schema_version": "ATIF-v1.6", "session_id": one.session, "steps": steps,
            "agent": {"name": "a", "version": "1", "tool_definitions": one.tools},
            "extra": {"task_id": one.task, "reward": float(one.success)}}  # fmt: skip


def inspect(one: Spoken, rng: random.Random) -> dict[str, Any]:
    """Return an evaluation of Inspect with one sample."""
    messages: list[dict[str, Any]] = openai(one, rng)["messages"]
    for message in messages:
        message["id"] = f"{rng.getrandbits(40):x}"
        for call in message.get("tool_calls", ()):
            call |= {"function": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])}
        reasoning = message.pop("reasoning", None) or message.pop("reasoning_content", None)
        if reasoning is not None:
            text = [{"type": "text", "text": message["content"]}] if message["content"] else []
            message["content"] = [{"type": "reasoning", "reasoning": reasoning}, *text]
    tools = [tool["function"] for tool in one.tools]
    sample = {"id": one.task, "epoch": 1, "uuid": one.session, "messages": messages, "target": "?", "error": None,
              "scores": {"match": {"value": "C" if one.success else "I"}},
              "events": [{"event": "sample_init"}, {"event": "model", "tools": tools}]}  # fmt: skip
    return {"version": 2, "eval": {"task": "suite"}, "samples": [sample]}


def adp(one: Spoken, rng: random.Random) -> dict[str, Any]:
    """Return a trajectory of ADP; what is said beside calls is the first call's description."""
    content: list[dict[str, Any]] = []
    if one.system is not None:
        content.append({"class_": "text_observation", "content": one.system, "source": "system"})
    content.append({"class_": "text_observation", "content": one.request, "source": rng.choice(("user", "user_msg"))})
    for turn in one.turns:
        thought = {} if turn.reasoning is None else {"reasoning_content": turn.reasoning}
        ids = [f"call_{rng.getrandbits(40):x}" for _ in turn.calls]
        linked = len(ids) > 1 or rng.random() < 0.5
        for id, (name, arguments) in zip(ids, turn.calls, strict=True):
            content.append({"class_": "api_action", "function": name, "kwargs": arguments,
                            "description": turn.text if id == ids[0] else None, "reward": None, **thought,
                            **({"tool_call_id": id} if linked else {})})  # fmt: skip
            thought = {}
        if not turn.calls:
            content.append({"class_": "message_action", "content": turn.text, "description": None, **thought})
        results = [{"class_": "text_observation", "content": said, "source": "environment",
                    **({"tool_call_id": id} if linked else {})}
                   for id, said in zip(ids, turn.results, strict=False)]  # fmt: skip
        if linked:
            rng.shuffle(results)
        content += results
        if turn.reply is not None:
            content.append({"class_": "text_observation", "content": turn.reply, "source": "user"})
    content[-1]["reward"] = float(one.success)
    return {"schema_version": "1.2.0", "id": one.session, "content": content, "details": {"task": one.task}}


def verifiers_trace(one: Spoken, rng: random.Random) -> dict[str, Any]:
    """Return a trace of verifiers 0.4: a tree of messages, here with one path."""
    messages: list[dict[str, Any]] = openai(one, rng)["messages"]
    nodes: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        for call in message.get("tool_calls", ()):
            function = call.pop("function")
            call |= {"name": function["name"], "arguments": function["arguments"]}
        sampled = message["role"] == "assistant"
        nodes.append({"parent": number - 1 if number else None, "message": message, "sampled": sampled,
                      "token_ids": [5, 6, 7], "mask": [False, sampled, sampled],
                      "logprobs": [-0.1, -0.2] if sampled else []})  # fmt: skip
    nodes[0]["tools"] = [{"type": "function", **tool["function"], "namespace": None} for tool in one.tools]
    return {"version": 1, "id": one.session, "task": {"type": "T", "data": {"q": 1}, "key": one.task, "hash": "0"},
            "agent": {}, "tools": [], "nodes": nodes, "calls": [{"node": len(nodes) - 1, "finish_reason": "stop"}],
            "rewards": {"main": {"score": float(one.success), "weight": 1.0}, "unused": None}, "info": {},
            "is_completed": True, "ok": True, "errors": []}  # fmt: skip


def anthropic(one: Spoken, rng: random.Random) -> dict[str, Any]:
    """Return Anthropic's messages; results of parallel calls come in any order."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": one.request}]
    for turn in one.turns:
        ids = [f"toolu_{rng.getrandbits(40):x}" for _ in turn.calls]
        thought = [] if turn.reasoning is None else [{"type": "thinking", "thinking": turn.reasoning, "signature": "s"}]
        blocks = [*thought, *([{"type": "text", "text": turn.text}] if turn.text or not turn.calls else [])]
        blocks += [{"type": "tool_use", "id": id, "name": n, "input": a}
                   for id, (n, a) in zip(ids, turn.calls, strict=True)]  # fmt: skip
        messages.append({"role": "assistant", "content": blocks})
        results = [{"type": "tool_result", "tool_use_id": id, "is_error": rng.random() < 0.2,
                    "content": rng.choice((said, [{"type": "text", "text": said}]))}
                   for id, said in zip(ids, turn.results, strict=False)]  # fmt: skip
        rng.shuffle(results)
        if results:
            messages.append({"role": "user", "content": results})
        if turn.reply is not None and results and rng.random() < 0.5:
            results.append({"type": "text", "text": turn.reply})
        elif turn.reply is not None:
            messages.append({"role": "user", "content": turn.reply})
    tools = [{"name": tool["function"]["name"], "description": tool["function"]["description"],
              "input_schema": tool["function"]["parameters"]} for tool in one.tools]  # fmt: skip
    system = {} if one.system is None else {"system": rng.choice((one.system, [{"type": "text", "text": one.system}]))}
    return {"model": "m", "max_tokens": 9, **system, "messages": messages, "tools": tools, "task_id": one.task,
            "session_id": one.session, "success": one.success}  # fmt: skip


def items(one: Spoken, rng: random.Random) -> list[dict[str, Any]]:
    """Return a conversation as items of OpenAI's Responses API, without its system prompt."""
    out: list[dict[str, Any]] = [{"role": "user", "content": one.request}]
    for turn in one.turns:
        ids = [f"call_{rng.getrandbits(40):x}" for _ in turn.calls]
        if turn.reasoning is not None:
            out.append({"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "gA",
                        "content": [{"type": "reasoning_text", "text": turn.reasoning}]})  # fmt: skip
        if turn.text or not turn.calls:
            out.append({"type": "message", "role": "assistant", "status": "completed",
                        "content": [{"type": "output_text", "text": turn.text, "annotations": []}]})  # fmt: skip
        out += [{"type": "function_call", "call_id": id, "name": n, "arguments": json.dumps(a)}
                for id, (n, a) in zip(ids, turn.calls, strict=True)]  # fmt: skip
        results = [{"type": "function_call_output", "call_id": id, "output": said}
                   for id, said in zip(ids, turn.results, strict=False)]  # fmt: skip
        rng.shuffle(results)
        out += results
        if turn.reply is not None:
            out.append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": turn.reply}]})
    return out


def responses(one: Spoken, rng: random.Random) -> dict[str, Any]:
    """Return a request of OpenAI's Responses API that has the whole conversation."""
    tools = [{"type": "function", **tool["function"]} for tool in one.tools]
    return {"instructions": one.system, "input": items(one, rng), "tools": tools, "task_id": one.task,
            "session_id": one.session, "success": one.success}  # fmt: skip


def text_calls(one: Spoken, rng: random.Random) -> dict[str, Any]:
    """Return a record with Hermes' calls in the text."""
    turns = [] if one.system is None else [{"from": "system", "value": one.system}]
    turns.append({"from": "human", "value": one.request})
    for turn in one.turns:
        calls = [f"<tool_call>\n{json.dumps({'name': n, 'arguments': a})}\n</tool_call>" for n, a in turn.calls]
        thought = "" if turn.reasoning is None else f"<think>\n{turn.reasoning}\n</think>\n\n"
        turns.append({"from": "gpt", "value": thought + "\n".join(filter(None, (turn.text, *calls)))})
        if turn.results:
            results = "\n".join(f"<tool_response>\n{said}\n</tool_response>" for said in turn.results)
            turns.append({"from": rng.choice(("tool", "human")), "value": results})
        if turn.reply is not None:
            turns.append({"from": "human", "value": turn.reply})
    return {"conversations": turns, "tools": json.dumps(one.tools), "id": one.session, "task": one.task,
            "label": one.success}  # fmt: skip


def codex(one: Spoken, rng: random.Random) -> list[dict[str, Any]]:
    """Return the lines of a rollout of Codex."""
    meta = {"id": one.session, "cwd": "/w", "cli_version": "0.9", "base_instructions": {"text": one.system or "Do it."}}
    lines: list[dict[str, Any]] = [{"type": "session_meta", "payload": meta}]
    for item in items(one, rng):
        content = item.get("content")
        text = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
        lines.append({"type": "response_item", "payload": {"type": "message", **item, "content": text}})
        lines.append({"type": "event_msg", "payload": {"type": "token_count", "info": None}})
    return [{"timestamp": "2026-01-01T00:00:00Z", **line} for line in lines]


class Transcript:
    """Writes the lines of a session of Claude Code: turns block by block, each result under its call."""

    def __init__(self, session: str) -> None:
        self.lines: list[dict[str, Any]] = [{"type": "summary", "summary": "A title", "leafUuid": "x"}]
        self.session = session
        self._count = 0

    def line(self, type: str, parent: str | None, **more: Any) -> str:
        """Add a line; return its uuid."""
        self._count += 1
        uuid = f"u{self._count}"
        known = {"isSidechain": False, "userType": "external", "sessionId": self.session, "version": "2.1.0"}
        self.lines.append({"parentUuid": parent, **known, "type": type, "uuid": uuid, **more})
        return uuid

    def user(self, parent: str | None, content: Any, **more: Any) -> str:
        """Add what a user says."""
        return self.line("user", parent, message={"role": "user", "content": content}, **more)

    def turn(self, parent: str, turn: Turn, rng: random.Random, **more: Any) -> str:
        """Add a turn and its results, which come in any order; return the uuid of the last line."""
        record = anthropic(Spoken(None, "", [replace(turn, reply=None)], "", "", True), rng)["messages"]
        blocks, id = record[1]["content"], f"msg_{rng.getrandbits(40):x}"
        callers = {}
        for block in blocks:
            message = {"id": id, "role": "assistant", "model": "m", "content": [block], "stop_reason": None}
            parent = self.line("assistant", parent, message=message, **more)
            callers[block.get("id")] = parent
        for block in record[2]["content"] if turn.results else ():
            source = callers[block["tool_use_id"]]
            parent = self.user(source, [block], toolUseResult={"stdout": "x"}, **more)
        return parent if turn.reply is None else self.user(parent, turn.reply, **more)


def claude_code(one: Spoken, rng: random.Random) -> list[dict[str, Any]]:
    """Return the lines of a session of Claude Code, which has no system prompt."""
    script = Transcript(one.session)
    parent = script.user(None, one.request)
    for turn in one.turns:
        parent = script.turn(parent, turn, rng)
        if rng.random() < 0.2:
            parent = script.line("system", parent, subtype="turn_duration", durationMs=5)
    return script.lines


WRITERS = {
    "openai": openai, "verifiers": verifiers, "sharegpt": sharegpt, "atif": atif, "inspect": inspect, "adp": adp,
    "verifiers-trace": verifiers_trace, "anthropic": anthropic, "responses": responses, "text_calls": text_calls,
}  # fmt: skip
"""Writers by format; `verifiers-trace` is another form of `verifiers`."""

SESSIONS = {"codex": codex, "claude_code": claude_code}
"""Writers of the lines of a session, which is a file, by format."""


def episodes_of(run: Path) -> list[dict[str, Any]]:
    """Return the episodes of a search as OpenAI-style records, read from its files as anyone could."""
    rng, out = random.Random(0), []
    for file in sorted((run / "trees").glob("*.json.gz")):
        tree = json.loads(gzip.decompress(file.read_bytes()))
        nodes = {node["id"]: node for node in tree["nodes"]}
        incoming = {edge["target"]: edge for edge in tree["edges"]}
        for end in tree["nodes"]:
            if not end.get("terminated") or end["verdict"] is None:
                continue
            path, at = [], end["id"]
            while at:
                path.append((incoming[at], nodes[at]))
                at = incoming[at]["source"]
            messages = [{"role": "system", "content": tree["graph"]["system"]}] if tree["graph"]["system"] else []
            messages.append({"role": "user", "content": nodes[0]["observation"]})
            for edge, node in reversed(path):
                action, id = edge["actions"][0], f"call_{rng.getrandbits(40):x}"
                if "call" in action:
                    function = {"name": action["call"]["name"], "arguments": json.dumps(action["call"]["arguments"])}
                    messages.append({"role": "assistant", "content": action.get("thought") or None,
                                     "tool_calls": [{"id": id, "type": "function", "function": function}]})  # fmt: skip
                    answer: dict[str, Any] = {"role": "tool", "tool_call_id": id}
                else:
                    messages.append({"role": "assistant", "content": action["text"]})
                    answer = {"role": "user"}
                if node["observation"] is not None:
                    messages.append({**answer, "content": node["observation"]})
            for attempt in range(incoming[end["id"]]["visits"]):
                out.append({
                    "messages": messages, "tools": tree["graph"]["tools"], "task_id": tree["graph"]["tree_id"],
                    "session_id": f"{tree['graph']['tree_id']}-{end['id']}-{attempt}",
                    "success": int(end["verdict"]["success"]),
                })  # fmt: skip
    return out
