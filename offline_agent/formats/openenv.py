"""OpenEnv's captures: one document a rollout, with the calls of the model linked by token prefix into sequences.

A sequence is a conversation from its first call to its last. Its `role` is `agent`, `auxiliary` (a title, a summary) or
`discarded` (a retry that the agent left); the outcome of the document is that of the agent's sequences alone. The
messages are those of `turns`, which a capture has where it was exported with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from offline_agent.errors import DataError, located
from offline_agent.logs.conversation import conversation
from offline_agent.logs.episode import Fields, LoggedEpisode, TurnTokens, has_objects, inner, turn_tokens
from offline_agent.messages import schemas

NAME = "openenv"

_ROLES = ("agent", "auxiliary", "discarded")


def recognised(record: Mapping[str, Any]) -> str | None:
    """See `formats.Format`."""
    found = record.get("sequences") == [] or has_objects(record.get("sequences"), "input_ids", "loss_mask", "role")
    named = "session_id" in record or "turns" in record
    return "sequences with input_ids, loss_mask and role" if found and named else None


def read(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    """See `formats.Format`."""
    turns, known = record.get("turns"), fields.read({**inner(record, "metadata"), **record})
    if not record["sequences"]:
        raise DataError("sequences: there is none, so the session made no call")
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        raise DataError("turns: wanted the calls of the session; the document has none, so nothing says what was said")
    calls = {turn.get("node_id"): turn for turn in turns}
    for number, sequence in enumerate(record["sequences"]):
        with located(f"sequence {number}"):
            place = name if len(record["sequences"]) == 1 else f"{name}/{number}"
            episode = _episode(sequence, calls, place, known, fields.ignore)
        yield episode


def _episode(
    sequence: Any, calls: Mapping[Any, Mapping[str, Any]], name: str, known: Mapping[str, Any], ignored: tuple[str, ...]
) -> LoggedEpisode:
    role, nodes = sequence.get("role"), sequence.get("node_ids")
    if role not in _ROLES:
        raise DataError(f"role: got {role!r:.60}, allowed: {', '.join(_ROLES)}")
    if not isinstance(nodes, list) or not nodes or not all(isinstance(node, str) and node in calls for node in nodes):
        raise DataError(f"node_ids: got {nodes!r:.60}, wanted ids of turns")
    last = calls[nodes[-1]]
    if not isinstance(last.get("request_messages"), list) or not isinstance(last.get("response_message"), Mapping):
        raise DataError(
            "it has ids without messages, and ids alone are no conversation; export the capture with "
            "include_messages=true"
        )
    answer = last["response_message"]
    if answer.get("role") not in (None, "assistant"):
        raise DataError(f"response_message: role: got {answer['role']!r:.60}, wanted assistant")
    messages = conversation([*last["request_messages"], {**answer, "role": "assistant"}], ignored)
    episode = LoggedEpisode(name, messages, schemas(last.get("request_tools")), **known)
    if role != "agent":
        episode = replace(episode, score=None, success=None, outcome=None)
    return replace(
        episode, cut=last.get("finish_reason") == "length",
        tokens=_tokens(sequence, [calls[node] for node in nodes], episode.turns),
    )  # fmt: skip


def _tokens(
    sequence: Mapping[str, Any], calls: Sequence[Mapping[str, Any]], turns: int
) -> tuple[TurnTokens | None, ...]:
    """Return the ids of each turn: the place of a call in `input_ids` is that of its prompt and of what it sampled."""
    ids, mask, logps = (sequence.get(name) for name in ("input_ids", "loss_mask", "logprobs"))
    if ids == [] or ids is None:  # captured without ids
        return ()
    if not isinstance(ids, list) or not isinstance(mask, list) or len(ids) != len(mask):
        raise DataError(f"loss_mask: wanted one entry for each of the input_ids, got {mask!r:.60}")
    if not isinstance(logps, list) or len(logps) != len(ids):
        raise DataError(f"logprobs: wanted one entry for each of the {len(ids)} input_ids, got {logps!r:.60}")
    out: list[TurnTokens | None] = []
    for call in calls:
        start, count = call.get("n_prompt"), call.get("n_sampled")
        if type(start) is not int or type(count) is not int or not 0 < start < start + count <= len(ids):
            raise DataError(f"n_prompt and n_sampled: got {start!r:.20} and {count!r:.20}, beyond the input_ids")
        end = start + count
        sampled = all(value in (1, True) for value in mask[start:end])  # else their log-probabilities are not known
        out.append(turn_tokens(ids[:start], ids[start:end], logps[start:end] if sampled else None))
    return (*(None for _ in range(turns - len(out))), *out) if len(out) <= turns else ()
