"""Codex's rollouts, `~/.codex/sessions/**/rollout-*.jsonl`: lines of `type` and `payload`.

`openai/codex` writes them, `codex-rs/protocol/src/protocol.rs` (`RolloutItem`, `SessionMeta`, `CompactedItem`; read at
commits 152e7cae of 2025 and edb4efee of 2026): `session_meta` has id and base instructions, `response_item` what the
model read and wrote, `compacted` the history that replaces the one before; of events only `thread_rolled_back` counts,
by which the last turns of the user are taken back. Codex logs no schemas of its tools and no outcome. What is injected
(instructions, the environment, a summary) is the user's or the developer's, so nobody learns it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from offline_agent.formats import responses
from offline_agent.logs.conversation import conversation
from offline_agent.logs.episode import Fields, LoggedEpisode, at, inner, left_out
from offline_agent.logs.files import Record

NAME = "codex"
_INJECTED = ("<environment_context>", "<user_instructions>", "# AGENTS.md instructions", "<turn_aborted>", "<skill>",
             "<user_shell_command>", "<subagent_notification>")  # fmt: skip
"""Beginnings of messages of the role user that Codex writes itself: they begin no turn of the user."""
_ANSWERED = ("message", *responses.CALLS)

Item = tuple[str, Mapping[str, Any]]


def is_line(value: Any) -> bool:
    """Return whether a JSON value may be a line of a rollout."""
    return isinstance(at(value, "payload"), Mapping) and isinstance(at(value, "type"), str)


def is_sure(line: Mapping[str, Any]) -> bool:
    """Return whether a line that may be of a rollout is of one."""
    return line["type"] in ("session_meta", "response_item", "compacted", "event_msg", "turn_context")


def branches(path: Path, lines: Sequence[Record]) -> Iterator[Record]:
    """Yield the histories that a model went on from, each as it was before it was taken back, replaced, or ended."""
    meta: Mapping[str, Any] | None = None
    items: list[Item] = []
    start, count, part = 0, 0, False  # items that an earlier branch has; branches so far; a history was replaced
    for number, line in enumerate(lines):
        kind, payload = at(line.value, "type"), inner(line.value, "payload")
        if line.damage is not None and number + 1 == len(lines):
            break  # it was being written when the session ended
        if meta is None:
            if kind != "session_meta":
                yield Record(line.name, None, "the session does not begin with session_meta: its beginning is missing")
                return
            meta = payload  # a fork repeats that of its parent later
        elif kind == "response_item":
            items.append((line.name, payload))
        elif line.damage is not None or kind == "compacted" or payload.get("type") == "thread_rolled_back":
            kept = _before(items, payload.get("num_turns"))  # of another line all
            if _spoken(items[start:]):
                left = line.name if _spoken(items[len(kept) :]) else None
                goes_on = kind == "compacted" or line.damage is not None
                yield _branch(path, meta, items, left=left, goes_on=goes_on, part=part)
                count += 1
            if line.damage is not None:
                yield Record(line.name, None, "what follows in the session is not read: a line before it is damaged")
                return
            if kind == "compacted":
                part = True
                items = [(line.name, item) for item in payload.get("replacement_history") or ()]
                fault = _unreadable(items)
                if fault is not None:
                    yield Record(line.name, None, f"what follows in the session is not read: {fault}")
                    return
            else:
                items = kept
            start = len(items)
    if meta is not None and (_spoken(items[start:]) or not count):
        yield _branch(path, meta, items, part=part)


def _branch(path: Path, meta: Mapping[str, Any], items: Sequence[Item], **marks: Any) -> Record:
    name = items[-1][0] if items else str(path)
    return Record(name, {NAME: list(items), "session_meta": meta, "marks": marks})


def _spoken(items: Sequence[Item]) -> bool:
    return any(item.get("type") in _ANSWERED and item.get("role", "assistant") == "assistant" for _, item in items)


def _unreadable(items: Sequence[Item]) -> str | None:
    """Return why a history that replaces another one cannot be read; None where it can."""
    if not items:
        return "compacted has no replacement_history, so nobody knows what the model read from here on"
    others = sorted({str(at(item, "role") or at(item, "type")) for _, item in items} - {"user", "developer", "system"})
    if others:
        return f"replacement_history holds {', '.join(others)}, which would be learnt after another history"
    return None


def _before(items: Sequence[Item], count: Any) -> list[Item]:
    """Return the items before the user's last turns, and before what Codex told about the first of them."""
    if type(count) is not int or count < 1:
        return list(items)
    begins = [place for place, (_, item) in enumerate(items) if item.get("role") == "user" and not _injected(item)]
    if not begins:
        return list(items)
    end = begins[max(0, len(begins) - count)]
    while end > begins[0] and items[end - 1][1].get("role") in ("user", "developer") and _injected(items[end - 1][1]):
        end -= 1
    return list(items[:end])


def _injected(item: Mapping[str, Any]) -> bool:
    content = item.get("content")
    first = next(iter(content), None) if isinstance(content, list) else None
    return item.get("role") == "developer" or str(at(first, "text")).lstrip().startswith(_INJECTED)


def recognised(record: Mapping[str, Any]) -> str | None:
    """See `formats.Format`."""
    return "lines of a rollout" if isinstance(record.get(NAME), list) and "session_meta" in record else None


def read(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    """See `formats.Format`."""
    meta, left = record["session_meta"], Counter[str]()
    given = meta.get("base_instructions")
    told = responses.instructions(given.get("text") if isinstance(given, Mapping) else given)
    messages, places = responses.turns([*told, *record[NAME]], left)
    known = fields.read({**meta, "session_id": meta.get("id")})
    said = conversation(messages, fields.ignore, places)
    last = max((number for number, message in enumerate(said) if message["role"] == "assistant"), default=0)
    after = [[name, message["content"]] for message in said[last + 1 :] if message["role"] == "user"]
    signs = {"after": after, **record.get("marks", {})}
    yield LoggedEpisode(name, said, **known, left=left_out(left), signs=signs)
