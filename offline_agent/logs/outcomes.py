"""Outcomes of sessions: records that tell how a session ended, apart from those of its calls.

An outcome belongs to the ends of its session: not to a turn that the agent asked for again later, and not to one of
several choices while nobody knows which one the agent took.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from offline_agent.errors import DataError
from offline_agent.logs.episode import OUTCOMES, SESSIONS, TASKS, Fields, LoggedEpisode, digest
from offline_agent.preferences.refusals import Refusal

_ALLOWED = frozenset({*TASKS, *SESSIONS, *OUTCOMES, "split", "time", "timestamp", "created_at"})
"""Keys that a record of an outcome may have, beside those that the configuration names."""


class Outcomes:
    """The outcomes of sessions, as they are read.

    Args:
        fields: The fields of a record that tell of its session.
    """

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._known: dict[str, dict[str, Any]] = {}
        self._places: dict[str, list[tuple[str, list[str]]]] = {}  # by session: record, fields

    def __len__(self) -> int:
        return len(self._known)

    def take(self, record: Any, name: str) -> bool:
        """Return whether a record tells the outcome of a session; it is kept.

        Args:
            record: One JSON value of a log.
            name: `file:line`, for messages.

        Raises:
            DataError: It tells another outcome or task than a record before it, or a value that is none, after which
                the session has no outcome; or it holds more than an outcome.
        """
        if not isinstance(record, Mapping):
            return False
        told = self._fields.read(record)
        if told["session"] is None or told["score"] is None:
            return False
        session, fields = told["session"], self._fields
        named = filter(None, (fields.task, fields.session, fields.outcome, *fields.args))
        allowed = _ALLOWED.union(*({path, path.partition(".")[0]} for path in named))
        if others := sorted(map(str, record.keys() - allowed)):
            raise DataError(
                f"it tells the outcome of session {session}, but is of no known format and holds more: got "
                f"{', '.join(others)}, allowed: the fields of session, task and outcome, split, time. Leave the other "
                "keys out, where they are no conversation, or write it in a known format"
            )
        kept = {key: told[key] for key in ("task", "score", "success", "outcome")}
        before = self._known.setdefault(session, kept)
        if before != kept:
            self._known[session] = {**kept, "task": before["task"], "score": None, "success": None, "outcome": None}
            first = self._places[session][0][0]
            raise DataError(f"session {session} has another outcome or task in {first}; it gets none")
        self._places.setdefault(session, []).append((name, sorted(map(str, record))))
        return True

    def unmatched(self, sessions: Container[str | None]) -> Iterator[Refusal]:
        """Yield the records whose session has no episode.

        Args:
            sessions: Those of the episodes that were read.
        """
        why = "it tells an outcome, but no record of its session was read as an episode, nor is its own shape known"
        for session, records in self._places.items():
            for name, fields in records if session not in sessions else ():
                yield Refusal("log", name, why, {"session": session, "fields": fields})

    def task(self, session: str | None) -> str | None:
        """Return the task that the record of a session names."""
        told = self._known.get(session or "")
        return None if told is None else told["task"]

    def told(self, episodes: Sequence[LoggedEpisode]) -> list[LoggedEpisode]:
        """Return episodes with the outcomes of their sessions.

        Args:
            episodes: Those of one task that no other one continues, in the order of the logs.
        """
        sessions: dict[str, list[LoggedEpisode]] = {}
        for episode in episodes:
            if episode.session in self._known:
                sessions.setdefault(episode.session, []).append(episode)
        ends = {id(episode) for group in sessions.values() for episode in _ends(group)}
        return [self._of(episode) if id(episode) in ends else episode for episode in episodes]

    def _of(self, episode: LoggedEpisode) -> LoggedEpisode:
        session = episode.session or ""
        told, stated = self._known[session], self._places[session][0][0]
        if episode.score is not None or told["score"] is None:
            return episode
        known = {key: told[key] for key in ("score", "success", "outcome")}
        return replace(episode, stated=stated, **known)


def _ends(episodes: Sequence[LoggedEpisode]) -> list[LoggedEpisode]:
    """Return the episodes of a session that the agent did not leave."""
    requests = [_requests(episode) for episode in episodes]
    answers: dict[str, list[tuple[int, str]]] = {}  # by request: the episodes that answer it, and by which turn
    for number, asked in enumerate(requests):
        for request, turn in asked:
            answers.setdefault(request, []).append((number, turn))

    def left(number: int) -> bool:
        for place, (request, turn) in enumerate(requests[number], 1):
            for other, given in answers[request]:
                later = other > number and (given != turn or place == len(requests[number]))
                if other != number and (later or episodes[other].record == episodes[number].record):
                    return True
        return False

    return [episode for number, episode in enumerate(episodes) if not left(number)]


def _requests(episode: LoggedEpisode) -> list[tuple[str, str]]:
    """Return for each turn the digests of the messages before it and of itself."""
    at, out = digest(episode.tools), []
    for message in episode.messages:
        if message["role"] == "assistant":
            out.append((at, digest(message)))
        at = digest([at, message])
    return out
