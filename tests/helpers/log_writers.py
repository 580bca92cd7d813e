"""Logs in the formats of others, written without any code of the readers, and what must be read of them."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import dataclass, field
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


WRITERS = {
    "openai": openai, "verifiers": verifiers, "sharegpt": sharegpt, "atif": atif, "inspect": inspect, "adp": adp,
    "verifiers-trace": verifiers_trace,
}  # fmt: skip
"""Writers by format; `verifiers-trace` is another form of `verifiers`."""


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
