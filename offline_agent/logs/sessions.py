"""Sessions of logs: calls that a later call goes on with, and records that tell how a session ended.

An outcome belongs to the ends of its session: not to a turn that the agent asked for again later, and not to one of
several choices while nobody knows which one the agent took.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from offline_agent.errors import DataError
from offline_agent.logs.episode import OUTCOMES, SESSIONS, TASKS, Fields, LoggedEpisode, TurnTokens, digest
from offline_agent.preferences.records import Refusal

_ALLOWED = frozenset({*TASKS, *SESSIONS, *OUTCOMES, "scores", "split", "time", "timestamp", "created_at"})
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
        if before | {"outcome": None} != kept | {"outcome": None}:  # two fields may tell the same
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
    pairs = zip(_starts(episode), episode.messages, strict=False)
    return [(at, digest(message)) for at, message in pairs if message["role"] == "assistant"]


def _starts(episode: LoggedEpisode) -> list[str]:
    """Return a digest of the tools and the first n messages, for each n from 0."""
    out = [digest(episode.tools)]
    for message in episode.messages:
        out.append(digest([out[-1], message]))
    return out


def without_parts(episodes: Sequence[LoggedEpisode]) -> list[LoggedEpisode]:
    """Return the episodes that no other one continues, with the ids that their parts have."""
    inside: dict[str, list[int]] = {}  # those that go on after these messages
    ends = []
    for number, episode in enumerate(episodes):
        _, *starts, end = _starts(episode)
        for at, message in zip(starts, episode.messages, strict=False):
            if message["role"] == "assistant":
                inside.setdefault(at, []).append(number)
        ends.append(end)
    longer = [[n for n in inside.get(end, ()) if _is_part(one, episodes[n])]
              for one, end in zip(episodes, ends, strict=True)]  # fmt: skip
    tokens: dict[int, dict[int, TurnTokens]] = {}  # by episode and turn, of the parts, which end with that turn
    for part, wholes in zip(episodes, longer, strict=True):
        if part.tokens and (last := part.tokens[-1]) is not None:
            for number in wholes:
                tokens.setdefault(number, {})[part.turns - 1] = last
    return [
        _with_tokens(episode, tokens.get(number, {})) for number, episode in enumerate(episodes) if not longer[number]
    ]


def _with_tokens(episode: LoggedEpisode, of_parts: Mapping[int, TurnTokens]) -> LoggedEpisode:
    """Return an episode with the ids of its turns that are in the records of its parts."""
    if not of_parts:
        return episode
    own = episode.tokens or (None,) * episode.turns
    return replace(episode, tokens=tuple(known or of_parts.get(turn) for turn, known in enumerate(own)))


def _is_part(episode: LoggedEpisode, longer: LoggedEpisode) -> bool:
    same_session = episode.session == longer.session
    if not same_session and None not in (episode.session, longer.session):
        return False
    return episode.score is None or (same_session and episode.session is not None and episode.score == longer.score)
