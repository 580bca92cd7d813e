"""Calls of a vLLM server's chat API, as the attempts of a search would have made them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from offline_agent.rendering.renderer import Renderer
from offline_agent.search.serialization import tree_from_json
from offline_agent.store.run_directory import read_tree


def calls_of(run: Path, renderer: Renderer) -> list[dict[str, Any]]:
    """Return each call that a search's attempts would have made of a vLLM server, with the ids it would have sent."""
    out = []
    for file in sorted((run / "trees").glob("*.json.gz")):
        tree = tree_from_json(read_tree(file))
        for end in tree.terminals():
            if end.verdict is None or not end.terminated:
                continue
            nodes = end.context.lineage()
            for at, node in enumerate(nodes[1:]):
                action = node.action
                assert action is not None and action.token_ids is not None and action.logps is not None
                message = action.message()
                for call in message.get("tool_calls", ()):
                    call["function"] = {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}
                content = [{"token": "?", "logprob": value} for value in action.logps]
                choice = {"message": message, "token_ids": list(action.token_ids), "logprobs": {"content": content},
                          "finish_reason": "stop"}  # fmt: skip
                last = at == end.depth - 1
                out.append({
                    "request": {"messages": nodes[at].messages(), "tools": list(node.tools)},
                    "response": {"choices": [choice], "prompt_token_ids": renderer.context_ids(nodes[at])},
                    "session_id": f"{tree.tree_id}-{end.id}", "task_id": tree.tree_id,
                    "success": end.verdict.success if last else None,
                })  # fmt: skip
    random.Random(0).shuffle(out)
    return out


def sessions_of(records: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the calls of each session, first to last."""
    sessions: dict[str, list[dict[str, Any]]] = {}
    for record in sorted(records, key=lambda one: len(one["request"]["messages"])):
        sessions.setdefault(record["session_id"], []).append(record)
    return list(sessions.values())


def _call(record: dict[str, Any]) -> tuple[dict[str, Any], list[int], list[int], list[float]]:
    """Return the message of a call, its prompt, the sampled ids and their log-probabilities."""
    (choice,) = record["response"]["choices"]
    logps = [token["logprob"] for token in choice["logprobs"]["content"]]
    return choice["message"], record["response"]["prompt_token_ids"], choice["token_ids"], logps


def as_verifiers(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each session as a trace of verifiers 0.4."""
    out = []
    for calls in sessions_of(records):
        nodes: list[dict[str, Any]] = []
        before = 0
        for record in calls:
            answer, prompt, sampled, logps = _call(record)
            for message in [*record["request"]["messages"][len(nodes):], answer]:
                own = message is answer
                ids = [*prompt[before:], *sampled] if own else []
                nodes.append({
                    "parent": len(nodes) - 1 if nodes else None, "message": message, "sampled": own, "token_ids": ids,
                    "mask": [*[False] * (len(ids) - len(sampled)), *[True] * len(sampled)] if own else [],
                    "logprobs": logps if own else [],
                })  # fmt: skip
            before = len(prompt) + len(sampled)
        last = calls[-1]
        out.append({"id": last["session_id"], "task": {"key": last["task_id"]}, "tools": last["request"]["tools"],
                    "nodes": nodes, "rewards": {"main": {"score": float(last["success"]), "weight": 1.0}}})  # fmt: skip
    return out
