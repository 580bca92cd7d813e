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
