"""Logged episodes: one conversation of an agent with its outcome, whatever format it was logged in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pydantic import model_validator

from offline_agent.errors import DataError
from offline_agent.logs.conversation import is_turn
from offline_agent.records import Message
from offline_agent.sections import Section, key

OUTCOMES = ("success", "resolved", "correct", "outcome", "reward", "score", "label")
"""Fields that may hold an outcome, in the order in which they are looked for."""
TASKS = ("task_id", "task", "instance_id", "example_id", "problem_id", "question_id")
SESSIONS = ("session_id", "trajectory_id", "episode_id", "trace_id", "rollout_id", "run_id", "id", "session")
_FOLDERS = ("cwd", "info.config.environment.cwd")
_COMMITS = ("git.commit_hash", "base_commit")  # of Codex; of SWE-bench's rows
SPLITS = ("train", "validation", "test")
Rule = Literal["tests", "undone", "refused"]


class TurnTokens(NamedTuple):
    """The ids of one turn, as the server gave them.

    Attributes:
        prompt: int [P], the whole prompt of the turn.
        sampled: int [n], the turn, its end included where it was sampled.
        logps: float [n], natural logarithms; None where the log has none.
    """

    prompt: tuple[int, ...]
    sampled: tuple[int, ...]
    logps: tuple[float, ...] | None = None


def turn_tokens(prompt: Any, sampled: Any, logps: Any = None) -> TurnTokens | None:
    """Return the ids that a record has for a turn; None where it has none.

    Raises:
        DataError: They are no lists of ids, or not as many log-probabilities.
    """
    if prompt is None or sampled is None:
        return None
    for name, ids in (("prompt ids", prompt), ("ids of the turn", sampled)):
        if not isinstance(ids, list) or not ids or not all(type(id) is int and id >= 0 for id in ids):
            raise DataError(f"{name}: got {ids!r:.60}, wanted a list of integers")
    if logps is not None:
        numbers = isinstance(logps, list) and all(isinstance(value, int | float) and value <= 0 for value in logps)
        if not numbers or len(logps) != len(sampled):
            raise DataError(f"log-probabilities: got {logps!r:.60}, wanted {len(sampled)} numbers of at most 0")
        logps = tuple(map(float, logps))
    return TurnTokens(tuple(prompt), tuple(sampled), logps)


@dataclass(frozen=True, slots=True)
class LoggedEpisode:
    """One attempt as a log tells it.

    Attributes:
        name: `file:line`, or `file:line/number` where a line has several.
        messages: In one form (`conversation.conversation`); at least one is the assistant's, and one comes before it.
        tools: Schemas of the tools; empty where the log does not say.
        task: Its task; None where the log does not say.
        session: Its id; None where the log does not say.
        split: `train`, `validation` or `test`.
        score: The outcome in [0, 1]; None where it is not known.
        success: Whether the task was achieved; None exactly where `score` is None.
        outcome: Name of the field with the outcome; None where there is none.
        stated: Name of the record apart from its own that tells its outcome; None = its own tells it.
        cut: The provider ended the last turn at its token limit.
        args: Fields that a judge needs, as arguments of the task.
        tokens: For each of its turns the ids that the log has, or None; empty where it has none at all.
        choice: Its number among the choices of one record.
        unread: Field and value of an outcome that is a text, which is not read; None where there is none.
        left: What of its record was left out though the model read or wrote it; None where nothing was.
        signs: Marks beside the messages of how it ended, which rules read: `ends` for each call its exit status,
            `refused` or None; `left`, the place where its user went back and left it; `after`, place and text of what
            the user said or ran after its last turn; `goes_on`, whether a summary of it does; `part`, whether it is
            not all of what its session did before.
        begun: `folder` and `commit` that a coding session began with, where its record names them.
        evidence: What rules read its outcome off, by rule (`coding.ruled`); empty where none did.
        labels: `by`, the hash of the model that named its calls, their `probabilities`, and how many of them are
            `left_out` (`labels.Labels`); empty where the log has its calls.
    """

    name: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    task: str | None = None
    session: str | None = None
    split: str = "train"
    score: float | None = None
    success: bool | None = None
    outcome: str | None = None
    stated: str | None = None
    cut: bool = False
    args: Mapping[str, Any] = field(default_factory=dict)
    tokens: tuple[TurnTokens | None, ...] = ()
    choice: int = 0
    unread: str | None = None
    left: str | None = None
    signs: Mapping[str, Any] = field(default_factory=dict)
    begun: Mapping[str, Any] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        first = next((n for n, message in enumerate(self.messages) if is_turn(message)), None)
        if first is None:
            raise DataError(
                "no message is the assistant's and to be learnt, so there is nothing to learn (a log of observations "
                "alone: label.model=MODEL, docs/logs.md)"
            )
        if first == 0:
            raise DataError("it begins with the assistant's turn: the request before it is missing")

    @property
    def by_place(self) -> int:
        """The number of its results that were taken for a call by their place (`conversation.Conversation`)."""
        return getattr(self.messages, "by_place", 0)

    @property
    def turns(self) -> int:
        """The number of its turns."""
        return sum(map(is_turn, self.messages))

    @property
    def record(self) -> str:
        """The name of its record, which the other choices share."""
        return self.name.removesuffix(f"/{self.choice}")

    @property
    def group(self) -> str:
        """The name of its task; of the request's hash where the log does not name one."""
        if self.task is not None:
            return self.task
        start = next(n for n, message in enumerate(self.messages) if is_turn(message))
        return f"request-{digest([self.messages[:start], self.tools])}"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LoggedEpisode:
        """Rebuild it from `to_json`."""
        kept = ([None if ids is None else tuple(ids) for ids in turn or ()] for turn in data["tokens"])
        tokens = tuple(TurnTokens(*ids) if ids else None for ids in kept)  # type: ignore[arg-type]  # logps may be None
        lists = {"messages": tuple(data["messages"]), "tools": tuple(data["tools"]), "tokens": tokens}
        return cls(**{**data, **lists})


class LogSection(Section):
    """The fields of a record that tell of its episode; a dot leads into an object (`info.reward`)."""

    outcome: str | None = key(
        None,
        "true, false, or a number; null = the first there is of success, resolved, correct, outcome, "
        "reward, score, label",
    )
    range: tuple[float, float] = key((0.0, 1.0), "the least and the most that an outcome can be", strict=False)
    threshold: float | None = key(None, "an outcome of at least so much is a success; null = the most it can be")
    task: str | None = key(
        None, "the task, by which attempts are grouped; null = task_id, task, instance_id and the like, else the "
        "request itself",
    )  # fmt: skip
    session: str | None = key(None, "the episode's id; null = session_id, trajectory_id, id and the like")
    rules: tuple[Rule, ...] = key(
        (), "rules that read the outcome of a coding session off its log, where it tells none: tests (passed or failed "
        "at the end), undone (the user went back, or took the files back), refused (the last call was not allowed)",
        strict=False,
    )  # fmt: skip
    args: tuple[str, ...] = key((), "fields that judge= needs, such as [gold]: arguments of the task", strict=False)
    ignore: tuple[str, ...] = key(
        (), "keys of records and messages that are passed over, such as [thoughts]; a message with another key that is "
        "not known is refused", strict=False,
    )  # fmt: skip

    @model_validator(mode="after")
    def _ordered(self) -> LogSection:
        low, high = self.range
        if not low < high:
            raise ValueError(f"log.range: got [{low:g}, {high:g}], allowed: the least value, then a greater one")
        if self.threshold is not None and not low < self.threshold <= high:
            raise ValueError(f"log.threshold: got {self.threshold:g}, allowed: above {low:g}, to {high:g} (log.range)")
        return self


class Fields(LogSection):
    """The fields of a log's records.

    Attributes:
        split: The split of episodes whose log does not say.
    """

    split: str = "train"

    def read(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return `task`, `session`, `split`, `score`, `success`, `outcome`, `args`, `unread` and `begun` of a
        record.

        Raises:
            DataError: A field has a value of another kind; the text has field and value.
        """
        task = _first(record, (self.task,) if self.task else TASKS)[1]
        session = _first(record, (self.session,) if self.session else SESSIONS)[1]
        split = record.get("split") or self.split
        if split not in SPLITS:
            raise DataError(f"split: got {split!r:.60}, allowed: {', '.join(SPLITS)}")
        name, value = _first(record, (self.outcome,)) if self.outcome else _usual(record)
        least, most = self.range
        number = None if value is None else self._number(name, value)
        return {
            "task": None if task is None else task if isinstance(task, str) else json.dumps(task, sort_keys=True),
            "session": None if session is None else str(session),
            "split": split,
            "score": None if number is None else (number - least) / (most - least),
            "success": None if number is None else number >= (most if self.threshold is None else self.threshold),
            "outcome": name if number is not None else None,
            "args": {name: value for name in self.args if (value := at(record, name)) is not None},
            "unread": None if number is not None or self.outcome else _text_outcome(record),
            "begun": {"folder": _first(record, _FOLDERS)[1], "commit": _first(record, _COMMITS)[1]},
        }

    def _number(self, name: str | None, value: Any) -> float:
        if isinstance(value, Mapping):  # several rewards by name, as Harbor's verifiers write them: the main one
            value = next((value[key] for key in ("reward", "score", "success") if key in value), value)
        least, most = self.range
        if isinstance(value, bool):
            return most if value else least
        if not isinstance(value, int | float) or not least <= value <= most:
            raise DataError(
                f"{name}: got {value!r:.60}, wanted an outcome: true, false, or a number from {least:g} to "
                f"{most:g}. Say its range with log.range=[LEAST,MOST], or name another field with "
                "log.outcome=FIELD"
            )
        return float(value)


def digest(value: Any) -> str:
    """Return 16 hex digits that identify a JSON value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def left_out(counts: Mapping[str, int]) -> str | None:
    """Return what was left out of a record, in words: how many of which; None where it was nothing."""
    return "; ".join(f"{count:,} {what}" for what, count in counts.items() if count) or None


def _first(record: Mapping[str, Any], names: Sequence[str]) -> tuple[str | None, Any]:
    """Return the first of these fields that is there and not null; (None, None) where none is."""
    found = ((name, at(record, name)) for name in names)
    return next(((name, value) for name, value in found if value is not None), (None, None))


def _usual(record: Mapping[str, Any]) -> tuple[str | None, Any]:
    """Return the first usual field of an outcome that has a number; texts there are something else."""
    found = [(name, record.get(name)) for name in OUTCOMES]
    return next((one for one in found if isinstance(one[1], bool | int | float | Mapping)), (None, None))


def _text_outcome(record: Mapping[str, Any]) -> str | None:
    """Return field and value of the first usual field of an outcome that holds a text."""
    return next((f"{name}: got {record[name]!r:.60}" for name in OUTCOMES if isinstance(record.get(name), str)), None)


def at(record: Any, path: str) -> Any:
    """Return the value at a path with dots; None where there is none."""
    if isinstance(record, Mapping) and path in record:
        return record[path]
    for part in path.split("."):
        record = record.get(part) if isinstance(record, Mapping) else None
    return record


def inner(record: Any, path: str) -> Mapping[str, Any]:
    """Return the object at a path with dots; an empty one where there is none."""
    value = at(record, path)
    return value if isinstance(value, Mapping) else {}


def labels_of(verdict: Any) -> Mapping[str, Any]:
    """Return `LoggedEpisode.labels` as a row's verdict, a JSON text, tells of them; empty where it does not."""
    if not isinstance(verdict, str) or '"labels"' not in verdict:
        return {}
    try:
        return inner(json.loads(verdict), "evidence.labels")
    except ValueError:
        return {}


def has_objects(value: Any, *keys: str) -> bool:
    """Return whether a value is a list with an entry, whose first entries are objects with these keys."""
    return isinstance(value, list) and bool(value) and all(
        isinstance(one, Mapping) and one.keys() >= set(keys) for one in value[:3]
    )  # fmt: skip
