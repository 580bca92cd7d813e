"""The verifiers library: rows of its results (`prompt`, `completion`, `reward`), and traces from version 0.4 on.

A trace is a tree of messages, `nodes` with `parent`; each path to a leaf is an episode, if a turn is on it. Its reward
is the weighted sum of `rewards`, its task `task.key`, else `task.hash`; fields of `task.data` and `info` are read as
the record's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from offline_agent.errors import DataError
from offline_agent.logs.conversation import conversation, told_tools, with_system
from offline_agent.logs.episode import Fields, LoggedEpisode, TurnTokens, has_objects, inner, turn_tokens
from offline_agent.messages import arrow, schemas

NAME = "verifiers"


def recognised(record: Mapping[str, Any]) -> str | None:
    """See `formats.Format`."""
    if _is_messages(record.get("prompt")) and _is_messages(record.get("completion")):
        return "prompt and completion as messages"
    traced = isinstance(record.get("task"), Mapping) and has_objects(record.get("nodes"), "message")
    return "a task and nodes with messages" if traced else None


def read(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    """See `formats.Format`."""
    if "nodes" in record:
        yield from _trace(record, name, fields)
        return
    if not record["completion"]:
        raise DataError("completion: it is empty")
    messages = [*record["prompt"], *record["completion"]]
    said = conversation(with_system(messages, fields.ignore, record), fields.ignore)
    yield LoggedEpisode(name, said, told_tools(arrow(messages), record), **fields.read(record))


def _is_messages(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(message, Mapping) and "role" in message for message in value)


def _trace(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    nodes, task = record["nodes"], record["task"]
    if record.get("errors"):
        raise DataError(f"the rollout ended in an error: {str(record['errors'])[:100]}")
    own = {"task_id": task.get("key") or task.get("hash"), "id": record.get("id"), "reward": _reward(record)}
    known = fields.read({**inner(task, "data"), **inner(record, "info"), **own})
    ended = (call.get("node") for call in record.get("calls") or () if call.get("finish_reason") == "length")
    cut = {id(nodes[number]) for number in ended if type(number) is int and 0 <= number < len(nodes)}
    inside = {node["parent"] for number, node in enumerate(nodes) if _begins_after(node, number) is not None}
    paths = [_path(nodes, leaf) for leaf in range(len(nodes)) if leaf not in inside]
    spoken = [path for path in paths if any(node["message"].get("role") == "assistant" for node in path)]
    for number, path in enumerate(spoken or paths[:1]):  # the others are prompts that nobody answered
        messages = conversation([node["message"] for node in path], fields.ignore)
        tools = schemas(path[0].get("tools") or record.get("tools"), loose=True)
        place = name if len(spoken) < 2 else f"{name}/{number}"
        yield LoggedEpisode(place, messages, tools, **known, cut=id(path[-1]) in cut, tokens=_tokens(path))


def _begins_after(node: Any, number: int) -> int | None:
    """Return the number of the node before a node, which must be less than its own; None for a root."""
    if not isinstance(node, Mapping) or not isinstance(node.get("message"), Mapping):
        raise DataError(f"node {number}: got {node!r:.60}, wanted an object with a message")
    parent = node.get("parent")
    if parent is not None and (type(parent) is not int or not 0 <= parent < number):
        raise DataError(f"node {number}: parent: got {parent!r:.60}, wanted the number of a node before it, or null")
    return parent


def _path(nodes: Sequence[Mapping[str, Any]], leaf: int) -> list[Mapping[str, Any]]:
    """Return the nodes from a root to a leaf."""
    out = [nodes[leaf]]
    while out[-1].get("parent") is not None:
        out.append(nodes[out[-1]["parent"]])
    return out[::-1]


def _reward(record: Mapping[str, Any]) -> Any:
    rewards = inner(record, "rewards")
    try:
        known = [one for one in rewards.values() if one is not None and one["score"] is not None]  # None: it failed
        return sum(float(one["score"]) * float(one.get("weight", 1.0)) for one in known) if known else None
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise DataError(f"rewards: got {rewards!r:.60}, wanted a score and a weight by name") from error


def _tokens(path: Sequence[Mapping[str, Any]]) -> tuple[TurnTokens | None, ...]:
    """Return the ids of each turn: those that a node adds, of which the masked ones at its end were sampled."""
    out: list[TurnTokens | None] = []
    before: list[Any] = []
    for node in path:
        ids, mask = node.get("token_ids") or [], node.get("mask") or []
        if not isinstance(ids, list) or not isinstance(mask, list) or len(ids) != len(mask):
            raise DataError(f"mask: wanted one entry for each of the token_ids, got {mask!r:.60}")
        if node["message"].get("role") == "assistant":
            start = mask.index(True) if True in mask else len(mask)
            sampled = ids[start:] if all(mask[start:]) else None  # a turn that was sampled in parts is no turn
            out.append(turn_tokens([*before, *ids[:start]] or None, sampled or None, node.get("logprobs") or None))
        before += ids
    return tuple(out) if any(out) else ()
