"""Stored rows against their certificates and their own messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from offline_agent._rendering import certificate
from offline_agent.errors import DataError
from offline_agent.records import Action

if TYPE_CHECKING:
    from offline_agent.rendering import Renderer

_TRAJECTORY = ("input_ids", "action_mask")
_PAIR = ("prompt_ids", "chosen_ids", "rejected_ids", "chosen_mask", "rejected_mask")


def check_row(renderer: Renderer, row: Mapping[str, Any]) -> None:
    """Check one row of preferences, trajectories or filtered trajectories.

    Raises:
        DataError: Something disagrees.
    """
    columns = _PAIR if "chosen_ids" in row or "prompt_ids" in row else _TRAJECTORY
    values = [row.get(column) for column in columns]
    if all(value is None for value in values) and row.get("certificate") is None:
        return
    missing = [column for column, value in zip(columns, values, strict=True) if value is None]
    if missing:
        raise DataError(f"it lacks {', '.join(missing)}, though other token columns are there")
    data = certificate.read(row.get("certificate"), renderer.template_hash, renderer.tokenizer_hash)
    if columns is _TRAJECTORY:
        pieces = _check(renderer, data, "sequence", row["input_ids"], row["action_mask"], row.get("logps"))
        _check_messages("messages", row.get("messages"), [renderer.action_of_span(piece) for piece in pieces])
        return
    _check(renderer, data, "prompt", row["prompt_ids"], None, None)
    for side in ("chosen", "rejected"):
        logps = row.get(f"ref_{side}_logps")
        pieces = _check(renderer, data, side, row[f"{side}_ids"], row[f"{side}_mask"], logps)
        _check_messages(side, row.get(side), [renderer.action_of_span(piece) for piece in pieces])


def _check(
    renderer: Renderer, data: Mapping[str, Any], name: str, ids: object, mask: object, logps: object
) -> list[list[int]]:
    def decode(piece: Sequence[int]) -> str:
        return renderer.action_of_span(piece).text

    return certificate.check_side(name, data.get(name), ids, mask, logps, renderer.vocab_size, decode)


def _check_messages(column: str, messages: object, actions: Sequence[Action]) -> None:
    """Compare a message column's assistant turns with the actions that the ids decode to."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        return
    turns = [message for message in messages if message.get("role") == "assistant"]
    if len(turns) != len(actions):
        raise DataError(f"its {column} have {len(turns)} assistant turns, its masked spans are {len(actions)}")
    for index, (turn, action) in enumerate(zip(turns, actions, strict=True)):
        want = action.message()
        if (turn.get("content") or "") != want["content"] or not _same_calls(
            turn.get("tool_calls"), want.get("tool_calls")
        ):
            raise DataError(f"assistant turn {index} of its {column} is not what its masked span decodes to")


def _same_calls(got: object, want: Sequence[Mapping[str, Any]] | None) -> bool:
    if got is None or want is None:
        return not got and not want
    calls = list(got)  # type: ignore[call-overload]
    if len(calls) != len(want):
        return False
    for one, other in zip(calls, want, strict=True):
        function, wanted = one.get("function", one), other["function"]
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError:
                return False
        if function.get("name") != wanted["name"] or _bare(arguments) != _bare(wanted["arguments"]):
            return False
    return True


def _bare(value: Any) -> Any:
    """Return a value without its null members: Arrow adds them where rows of one column differ in their keys."""
    if isinstance(value, Mapping):
        return {key: _bare(item) for key, item in value.items() if item is not None}
    return [_bare(item) for item in value] if isinstance(value, (list, tuple)) else value
