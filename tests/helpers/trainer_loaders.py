"""What other trainers make of their files, written from their loaders' rules with no code of ours or theirs.

LLaMA-Factory 0.9.5 (`data/converter.py`, `data/formatter.py`), Axolotl 0.19 (`prompt_strategies/input_output.py`),
OpenAI's description of chats for fine-tuning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

IGNORED = -100


def sharegpt(row: Mapping[str, Any], ranking: bool) -> tuple[list[dict[str, str]], list[dict[str, str]]] | None:
    """Return LLaMA-Factory's prompt and response; None where it skips the row with a warning."""
    roles = {"human": "user", "gpt": "assistant", "observation": "observation", "function_call": "function"}
    odd, even = ("human", "observation"), ("gpt", "function_call")
    turns = row["conversations"]
    for place, turn in enumerate(turns):
        if turn["from"] not in (even if place % 2 else odd):
            return None
    if len(turns) % 2 != (1 if ranking else 0):
        return None
    aligned = [{"role": roles[turn["from"]], "content": turn["value"]} for turn in turns]
    if not ranking:
        return aligned[:-1], aligned[-1:]
    sides = [row["chosen"], row["rejected"]]
    if any(side["from"] not in even for side in sides):
        return None
    return aligned, [{"role": roles[side["from"]], "content": side["value"]} for side in sides]


def function(content: str) -> tuple[str, list[tuple[str, Any]]]:
    """Return the text and the calls that LLaMA-Factory's templates write for a function's turn."""
    before, mark, rest = content.partition("<tool_call>")
    found = rest.partition("</tool_call>")[0] if mark else content
    calls = json.loads(found)
    calls = calls if isinstance(calls, list) else [calls]
    return before if mark else "", [(call["name"], call["arguments"]) for call in calls]


def input_output(row: Mapping[str, Any], tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return Axolotl's ids and labels of a row of segments."""
    ids: list[int] = []
    labels: list[int] = []
    for segment in row["segments"]:
        made = tokenizer(segment["text"], add_special_tokens=False)["input_ids"]
        ids += made
        labels += made if segment["label"] else [IGNORED] * len(made)
    return ids, labels


def chat_faults(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what an OpenAI server would refuse in a chat."""
    faults = []
    waiting: list[str] = []
    for place, message in enumerate(messages):
        role = message["role"]
        if role == "tool":
            if message.get("tool_call_id") not in waiting:
                faults.append(f"{place}: answers no call")
            else:
                waiting.remove(message["tool_call_id"])
        elif waiting:
            faults.append(f"{place}: {waiting} have no answer")
        if role == "assistant":
            waiting = [call["id"] for call in message.get("tool_calls") or ()]
            if any(not isinstance(call["function"]["arguments"], str) for call in message.get("tool_calls") or ()):
                faults.append(f"{place}: arguments are no text")
            if not message.get("tool_calls") and not isinstance(message.get("content"), str):
                faults.append(f"{place}: neither text nor calls")
        elif role not in ("system", "user", "tool") or not isinstance(message.get("content"), str):
            faults.append(f"{place}: {role} without text")
    return faults
