"""SWE-agent's histories: `.traj` files, and rows of data sets that were made of them, such as SWE-smith's.

`SWE-agent/SWE-agent`, `sweagent/types.py` (`HistoryItem`, commit 3ea751c0), has OpenAI's messages with `message_type`
and more. `content` is all that the model wrote, so `thought` and `action`, its parts, are passed over. Turns of a
demonstration (`is_demo`) are not to be learnt. What SWE-agent writes in the model's name where a run ends is left out,
and said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from offline_agent.errors import DataError, located
from offline_agent.formats import openai
from offline_agent.logs.episode import Fields, LoggedEpisode, at, left_out

NAME = "swe_agent"
SUFFIX = ".traj"
_OWN = ("agent", "message_type", "thought", "action", "tags", "is_demo", "tool_call_ids")
_ENDED = "Exit due to "


def recognised(record: Mapping[str, Any]) -> str | None:
    """See `formats.Format`."""
    history = _history(record)
    found = isinstance(history, list) and any(isinstance(at(item, "message_type"), str) for item in history)
    return "a history of messages with message_type" if found else None


def read(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    """See `formats.Format`."""
    left: Counter[str] = Counter()
    messages = []
    for number, item in enumerate(_history(record)):
        ours = at(item, "role") == "assistant"
        if ours and str(item.get("content")).startswith(_ENDED) and not item.get("tool_calls"):
            left["messages in the model's name that say why the run ended"] += 1
            continue
        with located(f"message {number}"):
            messages.append(_message(item, ours) if isinstance(item, Mapping) else item)
    task = {"task_id": Path(name).name.removesuffix(SUFFIX)} if name.endswith(SUFFIX) else {}
    for episode in openai.read({**task, **record, "messages": messages}, name, fields):
        yield replace(episode, left=left_out(left))


def _history(record: Mapping[str, Any]) -> Any:
    return record.get("messages") or record.get("history")


def _message(item: Mapping[str, Any], ours: bool) -> dict[str, Any]:
    out = {key: value for key, value in item.items() if key not in _OWN}
    if ours and item.get("is_demo"):
        out["train"] = False
    ids = item.get("tool_call_ids")
    if ids is None:
        return out
    if not isinstance(ids, list) or len(ids) != 1:
        raise DataError(f"tool_call_ids: got {ids!r:.60}, wanted a list of one id")
    return {**out, "tool_call_id": ids[0]}
