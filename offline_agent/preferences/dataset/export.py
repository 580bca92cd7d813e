"""Pairs and trajectories as rows with exactly the columns of the run directory's tables, by known names."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from offline_agent.envs.tools.validation import clean_text
from offline_agent.errors import DataError
from offline_agent.preferences.records import PreferencePair, Refusal, extend
from offline_agent.records import Message, Trajectory, Verdict
from offline_agent.rendering import certificate
from offline_agent.rendering.columns import check_row, has_ids, pair_columns, trajectory_columns
from offline_agent.store.columns import PAIR_TOKENS, TRAJECTORY_TOKENS

if TYPE_CHECKING:
    from offline_agent.rendering.renderer import Renderer

Row = dict[str, Any]


class Refusals(Protocol):
    """Takes refusals one by one: a list, or what writes each down at once."""

    def append(self, refusal: Refusal, /) -> None:
        """Take one."""


_DEEPEST = 200  # Python's own encoder and the JSON reader of `datasets` give up at about 1000


def pair_row(pair: PreferencePair, renderer: Renderer | None, model_hash: str | None = None) -> Row:
    """Return one row of the table `preferences`, or of `multiturn_preferences` where a side has several turns.

    Each side ends with the policy's last turn: what answered that turn is not part of a completion, and a trainer
    without masks would train on it.

    Args:
        pair: The pair.
        renderer: Gives the token columns; they are null without one, and where the history is of a log without ids.
        model_hash: Of the policy's model, for the certificate.

    Returns:
        One value per column of `PAIR_COLUMNS`: messages as lists of dicts, `tools`, verdicts and the certificate as
        JSON text, ids int [n], masks int [n] of 0 and 1, log-probabilities float [n] or None.

    Raises:
        DataError: The pair fails its certificate, has a number out of range, or cannot be stored as JSON.
    """
    chosen, rejected = (extend(pair.prefix, steps, closing=False) for steps in (pair.chosen, pair.rejected))
    before = len(pair.prefix.messages())
    row: Row = {
        "prompt": storable(pair.prefix.shown.messages()),
        "chosen": storable(chosen.messages()[before:]),
        "rejected": storable(rejected.messages()[before:]),
        "tools": _tools(pair.prefix.shown.tools),
        "kind": pair.kind,
        "task_id": pair.prefix.task.task_id,
        "split": pair.prefix.task.split,
        "tree_id": pair.tree_id,
        "node_id": pair.node_id,
        "chosen_edge": pair.chosen_edge,
        "rejected_edge": pair.rejected_edge,
        "q_chosen": pair.q_chosen,
        "q_rejected": pair.q_rejected,
        "visits_chosen": pair.visits_chosen,
        "visits_rejected": pair.visits_rejected,
        "confidence": pair.confidence,
        "rest_confidence": pair.rest_confidence,
        "weight": pair.weight,
        "verdict_chosen": _verdict(pair.verdict_chosen),
        "verdict_rejected": _verdict(pair.verdict_rejected),
        **dict.fromkeys(PAIR_TOKENS),
    }
    if renderer is not None and has_ids(chosen) and has_ids(rejected):
        row |= pair_columns(renderer, pair.prefix, chosen, rejected, model_hash)
    return _sealed(row, renderer)


def trajectory_row(trajectory: Trajectory, renderer: Renderer | None, model_hash: str | None = None) -> Row:
    """Return one row of the tables `trajectories` and `filtered`; see `pair_row` for types and errors.

    `reward` and `success` are None where nobody could judge.
    """
    verdict = trajectory.verdict
    row: Row = {
        "messages": storable(_marked(trajectory)),
        "tools": _tools(trajectory.context.tools),
        "task_id": trajectory.task.task_id,
        "split": trajectory.task.split,
        "origin": trajectory.origin,
        "reward": None if verdict is None else verdict.score,
        "success": None if verdict is None else verdict.success,
        "verdict": _verdict(verdict),
        "steps": len(trajectory.steps),
        "terminated": trajectory.terminated,
        "truncated": trajectory.truncated,
        "criticality": None,
        **dict.fromkeys(TRAJECTORY_TOKENS),
    }
    if renderer is not None and has_ids(trajectory.context):
        row |= trajectory_columns(renderer, trajectory.context, model_hash, trajectory.first)
    return _sealed(row, renderer)


def _marked(trajectory: Trajectory) -> list[Message]:
    """Return the messages; turns that are not learnt have `train` False."""
    messages, left = trajectory.context.messages(), trajectory.first
    for message in messages if left else ():
        if left and message["role"] == "assistant" and "train" not in message:
            message["train"], left = False, left - 1
    return messages


def pair_rows(
    pairs: Iterable[PreferencePair], renderer: Renderer | None, refusals: Refusals, model_hash: str | None = None
) -> Iterator[Row]:
    """Yield the rows of the pairs; one that fails its certificate goes to `refusals` instead."""
    for pair in pairs:
        try:
            yield pair_row(pair, renderer, model_hash)
        except DataError as error:
            facts = {"pair_kind": pair.kind, "tree_id": pair.tree_id, "node_id": pair.node_id}
            refusals.append(Refusal("row", f"{pair.prefix.task.task_id}/{pair.kind}", str(error), facts))


def trajectory_rows(
    trajectories: Iterable[Trajectory], renderer: Renderer | None, refusals: Refusals, model_hash: str | None = None
) -> Iterator[Row]:
    """Yield the rows of the trajectories; one that fails its certificate goes to `refusals` instead."""
    for one in trajectories:
        try:
            yield trajectory_row(one, renderer, model_hash)
        except DataError as error:
            name = f"{one.task.task_id}/{one.origin}"
            refusals.append(Refusal("row", name, str(error), {"steps": len(one.steps)}))


def storable(messages: Sequence[Message]) -> list[Message]:
    """Return messages that any JSON reader gives back as they are, where it can.

    Numbers beyond 64 bits become floats, those beyond a double become text, lone surrogates become U+FFFD: all of
    them make other readers refuse the whole file. The token columns keep what was really written.

    Raises:
        DataError: Arguments are nested too deeply to be read back.
    """
    return [_clean(message, 0) for message in messages]


def _clean(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        raise DataError(f"a message nests deeper than {_DEEPEST} levels, which readers of the file refuse")
    if type(value) is dict:  # nearly everything there is, and nearly all in it is plain text
        return {
            key if type(key) is str and key.isascii() else _clean(str(key), depth): item
            if type(item) is str and item.isascii()
            else _clean(item, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else _clean(_as_float(value), depth)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {_clean(str(key), depth): _clean(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item, depth + 1) for item in value]
    return str(value)


def _as_float(value: int) -> float | str:
    try:
        return float(value)
    except OverflowError:
        return hex(value)


def _sealed(row: Row, renderer: Renderer | None) -> Row:
    """Check a row as a reader does, and return it with a certificate that covers all of its columns."""
    check_row(renderer, row)
    return {**row, "certificate": certificate.seal(row["certificate"], row)}


def _verdict(verdict: Verdict | None) -> str | None:
    return None if verdict is None else _json(verdict.to_json())


_written: deque[tuple[Sequence[Mapping[str, Any]], str]] = deque(maxlen=4)


def _tools(tools: Sequence[Mapping[str, Any]]) -> str:
    """Return tool schemas as JSON; written once for rows in a row that share them."""
    for schemas, text in _written:
        if schemas is tools:
            return text
    text = _json(list(tools))
    _written.append((tools, text))
    return text


def _json(value: Any) -> str:
    return json.dumps(_clean(value, 0), ensure_ascii=False, default=str)
