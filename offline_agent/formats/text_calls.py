"""Calls that stand in texts: Hermes' tags, Thought, Action, Action Input as ToolLLaMA has them, messages of ms-swift.

Hermes (`NousResearch/Hermes-Function-Calling`, `prompter.py` and `utils.py`, main of 2024; Qwen's templates write the
same): a turn ends with `<tool_call>` of JSON, one or several, and the next message has a `<tool_response>` for each;
`<think>` before them is reasoning. ToolLLaMA (`OpenBMB/ToolBench`, `preprocess/preprocess_toolllama_data.py`, main of
2024): a turn is `Thought:`, `Action:` with a name and `Action Input:` with JSON, the results are of `function`; what
stands after `Thought:` is what the turn says. ms-swift (`modelscope/ms-swift`,
`docs/source/Instruction/Agent-support.md`, version 3) has a message of role `tool_call` for each call, which belongs
to the turn before it, and `tool_response`, as Toucan's rows for fine-tuning. Records are ShareGPT's `conversations` or
`messages`; those with calls apart from the text are not of this format.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from offline_agent import strict_json
from offline_agent.errors import DataError, located
from offline_agent.logs.conversation import conversation, told_tools, with_system
from offline_agent.logs.episode import Fields, LoggedEpisode, at
from offline_agent.messages import MARKS, parsed
from offline_agent.rendering.parsing import CLOSE, OPEN

NAME = "text_calls"
_ROLES = {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
          "tool": "tool", "function": "tool", "observation": "tool", "tool_response": "tool",
          "tool_call": "call"}  # fmt: skip
_THINK = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)
_RESPONSE = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>\s*", re.DOTALL)
_ACTION = re.compile(r"(?P<said>.*?)^Action:[ \t]*(?P<name>\S*)[ \t]*\nAction Input:[ \t]*(?P<arguments>.*)",
                     re.DOTALL | re.MULTILINE)  # fmt: skip
_THOUGHT = re.compile(r"\s*Thought:[ \t]*")


def recognised(record: Mapping[str, Any]) -> str | None:
    """See `formats.Format`."""
    turns = record.get("conversations") or record.get("messages")
    if not isinstance(turns, list) or record.keys() & {"choices", "response"}:
        return None
    if any(at(one, "tool_calls") or at(one, "function_call") or at(one, "from") == "function_call" for one in turns):
        return None
    if any(at(turn, "role") == "tool_call" for turn in turns):
        return "messages of role tool_call"
    texts = [(_role(turn), _text(turn)) for turn in turns]
    for (role, text), (after, answer) in zip(texts, texts[1:], strict=False):
        if role == "assistant" and (after == "tool" or "<tool_response>" in answer):
            if OPEN in text:
                return f"{OPEN} in the text of turns"
            if _ACTION.match(text):
                return "Action and Action Input in the text of turns"
    return None


def read(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    """See `formats.Format`."""
    messages: list[dict[str, Any]] = []
    for number, turn in enumerate(record.get("conversations") or record["messages"]):
        with located(f"turn {number}"):
            role, text = _role(turn), _text(turn)
            if role is None or not isinstance(turn.get("value", turn.get("content")), str):
                raise DataError(f"got {turn!r:.60}, wanted a text of one of {', '.join(_ROLES)}")
            passed = ("from", "value", "role", "content", *(() if role in ("assistant", "call") else MARKS))
            rest = {key: value for key, value in turn.items() if key not in passed}  # one that is not known is refused
            if role == "assistant":
                messages.append({**rest, **_turn(text)})
            elif role == "call":
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": ""})
                calls = [*messages[-1].get("tool_calls", ()), _call(text)]
                messages[-1] = {**rest, **messages[-1], "tool_calls": calls}
            elif role == "tool" or (role == "user" and "<tool_response>" in text):
                messages += [{**rest, **one} for one in _results(text)]
            else:
                messages.append({**rest, "role": role, "content": text})
    said = conversation(with_system(messages, fields.ignore, record), fields.ignore)
    yield LoggedEpisode(name, said, told_tools(False, record), **fields.read(record))


def _role(turn: Any) -> str | None:
    return _ROLES.get(str(at(turn, "from") or at(turn, "role")))


def _text(turn: Any) -> str:
    text = at(turn, "value") or at(turn, "content")
    return text if isinstance(text, str) else ""


def _turn(text: str) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": "assistant"}
    if (action := _ACTION.match(text)) is not None and OPEN not in text:
        arguments = parsed(action["arguments"], f"the Action Input of {action['name']}")
        turn["tool_calls"] = [{"name": action["name"], "arguments": arguments}]
        return {**turn, "content": _THOUGHT.sub("", action["said"], count=1).rstrip()}
    if (thought := _THINK.match(text)) is not None:
        turn["reasoning_content"], text = thought[1].strip("\n"), text[thought.end() :]
    said, *bodies = text.split(OPEN)
    for body in bodies:
        call, end, after = body.partition(CLOSE)
        if not end or after.strip():
            raise DataError(f"{OPEN}{body[:60]!r}: wanted {CLOSE} after it, and nothing but calls after that")
        turn.setdefault("tool_calls", []).append(_call(call.strip()))
    return {**turn, "content": said.rstrip() if bodies else said}


def _call(text: str) -> Any:
    """Return a call's JSON; or the object that it is in Python's notation, as Hermes' own data set has many."""
    try:
        return parsed(text, "a call")
    except DataError:
        try:
            tree = ast.parse(text.strip(), mode="eval")
            made = ast.literal_eval(tree)
            again = strict_json.loads(strict_json.dumps(made).decode())
        except (TypeError, ValueError, SyntaxError, MemoryError, RecursionError):
            again = made = None
        # what JSON has no word for would become something else: tuples, keys that are numbers
        if again is None or again != made or any(map(_twice, ast.walk(tree))):
            raise
        return again


def _twice(node: ast.AST) -> bool:
    """Return whether a node is an object with a key that comes twice."""
    return isinstance(node, ast.Dict) and len(ast.literal_eval(node)) < len(node.keys)


def _results(text: str) -> Sequence[dict[str, Any]]:
    """Return the results in a text, each in its tags, or the text itself; and what follows them, the user's."""
    if "<tool_response>" not in text:
        return [{"role": "tool", "content": text}]
    rest = _RESPONSE.sub("", text)
    if "<tool_response>" in rest or (rest and not text.endswith(rest)):
        raise DataError(f"got {text[:60]!r}, wanted <tool_response> and </tool_response> around each result, first")
    results = [{"role": "tool", "content": one} for one in _RESPONSE.findall(text)]
    return [*results, *([{"role": "user", "content": rest}] if rest.strip() else [])]
