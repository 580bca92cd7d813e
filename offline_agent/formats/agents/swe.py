"""Trajectories of SWE-agent (`.traj`), of mini-swe-agent, and rows of the data set nebius/SWE-agent-trajectories.

The first two tell how a run ended (`info.exit_status`) and what was submitted, which is no outcome: that is SWE-bench's
to tell, in a record apart or in a field of the record. Where a file names no task, it is the file's name.

Definitions: SWE-agent/SWE-agent, sweagent/types.py and sweagent/agent/agents.py at 3ea751c (1.1);
SWE-agent/mini-swe-agent, src/minisweagent/agents/default.py at a83fcae (trajectory formats mini-swe-agent-1 and 1.1);
the card of nebius/SWE-agent-trajectories at a8a64e5 (`dataset_info`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from offline_agent.errors import DataError
from offline_agent.formats.agents.reader import Reader, as_openai
from offline_agent.logs.episode import Fields, LoggedEpisode, at, has_objects
from offline_agent.messages import brief, parsed

_ENDINGS = (".traj.json", ".traj")
_MINI = ("mini-swe-agent-1", "mini-swe-agent-1.1")
_KEPT = ("role", "content", "tool_calls", "thinking_blocks", "reasoning_content")
_EXIT = "what SWE-agent says in the model's name where a run ends"
_SHORTENED = "earlier turns as the model read them: history processors shortened or changed some"


def _task(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the task of a trajectory that is alone in its file, where the record names none."""
    config = parsed(record.get("replay_config"), "replay_config")
    ending = next((ending for ending in _ENDINGS if name.endswith(ending)), None)
    task = at(config, "problem_statement.id") or (Path(name).name.removesuffix(ending) if ending else None)
    return {} if task is None else {"instance_id": task}


def _swe_agent(record: Mapping[str, Any]) -> str | None:
    attempts = record.get("attempts")
    one = attempts[0] if isinstance(attempts, list) and attempts else record
    if isinstance(one, Mapping) and {"history", "trajectory"} <= one.keys():
        return "history and trajectory"
    told = record.get("messages")
    if has_objects(told, "role", "message_type"):
        return "messages with message_type"
    named = isinstance(told, list) and any(at(message, "tool_call_ids") for message in told)
    return "messages with tool_call_ids" if named else None


def _read_swe_agent(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    attempts = record.get("attempts") or [record]  # the best one is in the record itself, too
    for number, attempt in enumerate(attempts):
        history = attempt["history"] if "history" in attempt else attempt.get("messages")
        if not isinstance(history, list):
            raise DataError(f"history: got {brief(history)}, wanted a list of objects with role and content")
        query = at((attempt.get("trajectory") or [None])[-1], "query")
        changed = isinstance(query, list) and any(at(one, "content") not in (None, at(message, "content"))
                                                  for one, message in zip(query, history, strict=False))  # fmt: skip
        messages = [_item(one) for one in history if not _ended(one)]
        left = (_SHORTENED if changed else None, _EXIT if len(messages) < len(history) else None)
        told = {**_task(record, name), **record, **attempt, "messages": messages}
        place = f"{name}/{number}" if len(attempts) > 1 else name
        yield from as_openai(told, place, fields, "; ".join(filter(None, left)) or None)


def _ended(given: Any) -> bool:
    """Return whether an entry says in the model's name why the run ended."""
    own = at(given, "role") == "assistant" and not at(given, "tool_calls")
    return own and str(at(given, "content")).startswith("Exit due to ")


def _item(given: Any) -> Any:
    """Return an entry of the history in OpenAI's form; turns of a demonstration are not to be learnt."""
    if not isinstance(given, Mapping):
        return given
    out = {key: given[key] for key in _KEPT if given.get(key) is not None}
    if given.get("tool_call_ids"):
        out["tool_call_id"] = given["tool_call_ids"][0]
    return {**out, "train": False} if given.get("is_demo") and given.get("role") == "assistant" else out


def _mini(record: Mapping[str, Any]) -> str | None:
    version = record.get("trajectory_format")
    return f"trajectory_format {version}" if isinstance(version, str) and version.startswith("mini-swe-agent") else None


def _read_mini(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    if record["trajectory_format"] not in _MINI:
        raise DataError(f"trajectory_format: got {record['trajectory_format']!r:.60}, read are {', '.join(_MINI)}")
    messages = record.get("messages")
    if not isinstance(messages, list):
        raise DataError(f"messages: got {brief(messages)}, wanted a list of objects with role and content")
    said = [{key: value for key, value in one.items() if key not in ("extra", "provider_specific_fields")}
            if isinstance(one, Mapping) else one
            for one in messages if at(one, "role") != "exit"]  # fmt: skip
    yield from as_openai({**_task(record, name), **record, "messages": said}, name, fields)


def _nebius(record: Mapping[str, Any]) -> str | None:
    known = has_objects(record.get("messages"), "role", "text", "system_prompt")
    return "a trajectory of role, text and system_prompt" if known else None


def _read_nebius(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    messages = [
        {"role": "assistant" if one.get("role") == "ai" else one.get("role"),
         "content": one.get("system_prompt") if one.get("text") is None else one["text"],
         **({"train": False} if one.get("mask") and one.get("role") == "ai" else {})}
        for one in record["messages"]
    ]  # fmt: skip
    yield from as_openai({**record, "messages": messages}, name, fields, outcome="target")


READERS = (
    Reader("swe_agent", _swe_agent, _read_swe_agent), Reader("mini_swe_agent", _mini, _read_mini),
    Reader("nebius", _nebius, _read_nebius),
)  # fmt: skip
