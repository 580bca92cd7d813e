"""ShareGPT, as LLaMA-Factory reads it: `conversations` of `from` and `value`, calls as `function_call` turns.

What is written has the user's side and the model's side in alternation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from offline_agent.errors import DataError, located
from offline_agent.formats.row import NO_TOKENS, PAIRS, SUCCESSES, Export, ExportRow, Part
from offline_agent.logs.conversation import conversation, told_tools, with_system
from offline_agent.logs.episode import Fields, LoggedEpisode, at, has_objects
from offline_agent.messages import MARKS, parsed
from offline_agent.records import Message
from offline_agent.rendering.parsing import CLOSE, OPEN

NAME = "sharegpt"
_BETWEEN = "\n</tool_response>\n<tool_response>\n"
"""Text between the results of parallel calls: LLaMA-Factory's converter of OpenAI messages writes it, too."""

_ROLES = {
    "system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
    "observation": "tool", "tool": "tool", "function_call": "call",
}  # fmt: skip


def recognised(record: Mapping[str, Any]) -> str | None:
    """See `formats.Format`."""
    found = has_objects(record.get("conversations"), "from", "value")
    return "conversations with from and value" if found else None


def read(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    """See `formats.Format`."""
    messages: list[dict[str, Any]] = []
    for number, turn in enumerate(record["conversations"]):
        with located(f"turn {number}"):
            message = _message(turn)
            calls = messages[-1].get("tool_calls", ()) if messages else ()
            parts = message["content"].split(_BETWEEN)
            if message["role"] == "tool" and len(parts) == len(calls):
                messages += [{**message, "content": part} for part in parts]
            else:
                messages.append(message)
    said = conversation(with_system(messages, fields.ignore, record), fields.ignore)
    yield LoggedEpisode(name, said, told_tools(False, record), **fields.read(record))


def _message(turn: Any) -> dict[str, Any]:
    source = at(turn, "from")
    role = _ROLES.get(source) if isinstance(source, str) else None
    if role is None:
        raise DataError(f"from: got {source!r:.60}, allowed: {', '.join(_ROLES)}")
    value = turn.get("value")
    if not isinstance(value, str):
        raise DataError(f"value: got {value!r:.60}, wanted text")
    passed = ("from", "value", *(() if role in ("assistant", "call") else MARKS))
    rest = {key: value for key, value in turn.items() if key not in passed}  # one that is not known is refused
    if role != "call":
        return {**rest, "role": role, "content": value}
    # what is said beside a call stands before a mark; no JSON ends with one
    said, _, text = value.removesuffix(CLOSE).partition(OPEN) if value.endswith(CLOSE) else ("", "", value)
    calls = parsed(text, "a function_call")
    return {**rest, "role": "assistant", "content": said, "tool_calls": calls if isinstance(calls, list) else [calls]}


def preference(row: ExportRow) -> Iterator[Mapping[str, Any]]:
    """Yield the pair; `chosen` and `rejected` are one turn each."""
    chosen, rejected = row.single_turns()
    system, turns = _turns(row.messages("prompt"))
    if len(turns) % 2 == 0:
        raise DataError("its history does not end with the user or a tool's result")
    yield {"system": system, "conversations": turns, "chosen": _turn(chosen), "rejected": _turn(rejected),
           "tools": row.row["tools"]}  # fmt: skip


def trajectory(row: ExportRow) -> Iterator[Mapping[str, Any]]:
    """Yield the trajectory up to its last turn of the policy: what follows is never learnt."""
    system, turns = _turns(row.messages("messages"))
    turns = turns[: len(turns) // 2 * 2]
    if not turns:
        raise DataError("it has no turn of the policy")
    yield {"system": system, "conversations": turns, "tools": row.row["tools"]}


def _turns(messages: Sequence[Message]) -> tuple[str, list[dict[str, str]]]:
    """Return the system message and the turns, which alternate."""
    system = ""
    if messages and messages[0]["role"] == "system":
        system, messages = messages[0]["content"], messages[1:]
    out: list[dict[str, str]] = []
    for message in messages:
        turn = _turn(message)
        ours = turn["from"] in ("gpt", "function_call")
        if out and message["role"] == "tool" and out[-1]["from"] == "observation":
            out[-1]["value"] += _BETWEEN + turn["value"]
        elif ours != (len(out) % 2 == 1):
            before = _BEFORE[out[-1]["from"]] if out else "nothing"
            raise DataError(
                f"a message of the {message['role']} follows {before}; the format has the user (or a tool) and the "
                "model in alternation"
            )
        else:
            out.append(turn)
    return system, out


def _turn(message: Message) -> dict[str, str]:
    role, content = message["role"], message.get("content") or ""
    if role == "user":
        return {"from": "human", "value": content}
    if role == "tool":
        return {"from": "observation", "value": content}
    if role != "assistant":
        raise DataError(f"a {role} message after the first; the format has one, at the beginning")
    if message.get("reasoning_content"):
        raise DataError("a turn with reasoning_content: each template of the trainer marks it by other words")
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    if not calls:
        return {"from": "gpt", "value": content}
    plain = [{"name": call["name"], "arguments": call["arguments"]} for call in calls]
    text = json.dumps(plain if len(plain) > 1 else plain[0], ensure_ascii=False)
    if not content:
        return {"from": "function_call", "value": text}
    if OPEN in content or CLOSE in content:
        raise DataError("the text beside a call holds <tool_call>, the mark by which the trainer finds the call")
    return {"from": "function_call", "value": f"{content}{OPEN}{text}{CLOSE}"}


_BEFORE = {"human": "the user", "gpt": "the model", "function_call": "a call", "observation": "a tool's result"}
_TAGS = {"role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt"}
_INFO = {
    "preference": {
        "file_name": "preference.jsonl", "formatting": "sharegpt", "ranking": True, "tags": _TAGS,
        "columns": {"messages": "conversations", "system": "system", "tools": "tools", "chosen": "chosen",
                    "rejected": "rejected"},
    },
    "sft": {
        "file_name": "sft.jsonl", "formatting": "sharegpt", "tags": _TAGS,
        "columns": {"messages": "conversations", "system": "system", "tools": "tools"},
    },
}  # fmt: skip

EXPORT = Export(
    about="LLaMA-Factory 0.9.5: sharegpt JSON lines and dataset_info.json",
    parts=(Part("preference.jsonl", PAIRS, preference), Part("sft.jsonl", SUCCESSES, trajectory)),
    load="""\
```yaml
dataset_dir: this folder      # its dataset_info.json names both files
dataset: preference           # stage: dpo; or sft, stage: sft
```""",
    trains="In `sft` every turn of the model (`mask_history` off), in `preference` the turn of each side. The trainer "
    "renders with its own templates, so what it trains on is not what was sampled token by token.",
    lost=f"{NO_TOKENS}; reasoning_content. Results of parallel calls are one observation, joined as LLaMA-Factory "
    "joins OpenAI's. Text beside a call stands before `<tool_call>`, which its templates take apart (kimi and LFM2 by "
    "other words). What follows the last turn of the model is left out.",
    extra={"dataset_info.json": json.dumps(_INFO, indent=2) + "\n"},
)
