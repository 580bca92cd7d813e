"""Logs that are damaged in many ways, what must become of each record, and the comparison with what was imported.

Nothing here uses the readers: records are changed as JSON values, as lines, and as files.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offline_agent.store.columns import known
from offline_agent.store.tables import read_table
from tests.helpers.agent_log_writers import AGENT_WRITERS
from tests.helpers.log_writers import WRITERS, Spoken

READ, REFUSED, TWICE, CONTRADICTED = "read", "refused", "twice", "contradicted"
UNREADABLE = "unreadable"  # a file: it is named, and what was read before the damage is kept

Json = dict[str, Any]
_WRITERS = {**WRITERS, **AGENT_WRITERS}


@dataclass(frozen=True)
class Shape:
    """Places in a record of a format, as paths with slashes.

    Attributes:
        items: The list of its messages.
        role, text: In a message.
        outcome, session, task, split: In the record.
    """

    items: str
    role: str
    text: str
    outcome: str
    session: str
    task: str
    split: str = "split"


SHAPES = {
    "openai": Shape("messages", "role", "content", "success", "session_id", "task_id"),
    "verifiers": Shape("completion", "role", "content", "reward", "session_id", "task_id"),
    "sharegpt": Shape("conversations", "from", "value", "label", "id", "task"),
    "atif": Shape("steps", "source", "message", "extra/reward", "session_id", "extra/task_id"),
    "inspect": Shape("samples/0/messages", "role", "content", "samples/0/scores/match/value", "samples/0/uuid",
                     "samples/0/id", "samples/0/split"),
    "adp": Shape("content", "class_", "content", "content/-1/reward", "id", "details/task"),
    "verifiers-trace": Shape("nodes", "message/role", "message/content", "rewards/main/score", "id", "task/key",
                             "info/split"),
    "anthropic": Shape("messages", "role", "content", "success", "session_id", "task_id"),
    "responses": Shape("input", "role", "content", "success", "session_id", "task_id"),
    "text_calls": Shape("conversations", "from", "value", "label", "id", "task"),
    "swe_agent": Shape("history", "role", "content", "success", "session_id", "task_id"),
    "mini_swe_agent": Shape("messages", "role", "content", "success", "session_id", "task_id"),
    "tau_bench": Shape("traj", "role", "content", "reward", "session_id", "task_id"),
}  # fmt: skip


def _at(record: Any, path: str) -> tuple[Any, Any]:
    """Return the container of a place, and its key."""
    *parents, last = [int(part) if part.lstrip("-").isdigit() else part for part in path.split("/")]
    for part in parents:
        record = record[part]
    return record, last


def get(record: Any, path: str) -> Any:
    """Return the value at a place."""
    container, key = _at(record, path)
    return container[key]


def put(record: Any, path: str, value: Any) -> None:
    """Set the value at a place."""
    container, key = _at(record, path)
    container[key] = value


def drop(record: Any, path: str) -> None:
    """Remove a place."""
    container, key = _at(record, path)
    del container[key]


Change = Callable[[Json, Shape], None]


def _item(place: str | None, value: Any) -> Change:
    """Return a change of the last message (or of its `role` or `text`): another value; `drop` removes it."""

    def change(record: Json, shape: Shape) -> None:
        path = f"{shape.items}/-1" + ("" if place is None else f"/{getattr(shape, place)}")
        drop(record, path) if value is drop else put(record, path, value)

    return change


def _items(value: Any) -> Change:
    return lambda record, shape: put(record, shape.items, value)


def _field(place: str, value: Any) -> Change:
    def change(record: Json, shape: Shape) -> None:
        path = getattr(shape, place)
        drop(record, path) if value is drop else put(record, path, value)

    return change


def _without_request(record: Json, shape: Shape) -> None:
    record.pop("system", None)
    record.pop("instructions", None)
    if "prompt" in record:
        record["prompt"] = []
    else:
        put(record, shape.items, get(record, shape.items)[-1:])


RECORDS: dict[str, tuple[Change, str]] = {
    "an unknown role": (_item("role", "oracle"), REFUSED),
    "no role": (_item("role", drop), REFUSED),
    "a role that is a number": (_item("role", 7), REFUSED),
    "a message that is null": (_item(None, None), REFUSED),
    "a message that is a list": (_item(None, [["role"], "x"]), REFUSED),
    "a message that is text": (_item(None, "done"), REFUSED),
    "a text that is a number": (_item("text", 12), REFUSED),
    "a text of nested nulls": (_item("text", [[None]]), REFUSED),
    "a picture": (_item("text", [{"type": "image_url", "image_url": {"url": "x"}}]), REFUSED),
    "no messages": (_items(None), REFUSED),
    "an empty list of messages": (_items([]), REFUSED),
    "messages that are text": (_items("hello"), REFUSED),
    "messages that are nested nulls": (_items([[None], None]), REFUSED),
    "no request": (_without_request, REFUSED),
    "an outcome beyond its range": (_field("outcome", 7), REFUSED),
    "a huge outcome": (_field("outcome", 1e300), REFUSED),
    "an outcome that is negative": (_field("outcome", -1), REFUSED),
    "an unknown split": (_field("split", "dev"), REFUSED),
    "a split that is a list": (_field("split", ["train"]), REFUSED),
    "no outcome": (_field("outcome", None), READ),
    "no session": (_field("session", None), READ),
    "a session that is a number": (_field("session", 123456789), READ),
    "no task": (_field("task", None), READ),
    "a task that is an object": (_field("task", {"b": 1, "a": [None]}), READ),
    "unknown fields": (lambda record, _: record.update({"x-trace": {"deep": [[{"a": None}]]}, "note": "hi"}), READ),
}
"""Damages of records, and what must become of the record."""
_NO_OUTCOME = "no outcome"


# -- calls -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Called:
    """A call of a record and its result.

    Attributes:
        function: The object with name and arguments, under the keys `name` and `arguments`.
        results, place: The list of results, and the place of the call's.
        id: Key of the id in a result.
    """

    function: Json
    name: str
    arguments: str
    results: list[Any]
    place: int
    id: str


def called(format: str, record: Json) -> Called | None:
    """Return the first call that is alone in its turn, with its result; None where a record has none."""
    items = get(record, SHAPES[format].items)
    for at, item in enumerate(items):
        if format == "atif" and len(item.get("tool_calls", ())) == 1 == len(item["observation"]["results"]):
            return Called(item["tool_calls"][0], "function_name", "arguments", item["observation"]["results"], 0,
                          "source_call_id")  # fmt: skip
        if format == "adp" and [one["class_"] for one in items[max(0, at - 1) : at + 2]][-2:] == [
            "api_action", "text_observation"] and items[at - 1]["class_"] != "api_action" and item.get("tool_call_id"):
            return Called(item, "function", "kwargs", items, at + 1, "tool_call_id")
        message = item["message"] if format == "verifiers-trace" else item
        if format == "anthropic" and at + 1 < len(items):
            uses = [block for block in item["content"] if item["role"] == "assistant" and block["type"] == "tool_use"]
            if len(uses) == 1:
                return Called(uses[0], "name", "input", items[at + 1]["content"], 0, "tool_use_id")
        if format == "responses" and [one.get("type") for one in items[max(0, at - 1) : at + 2]][-2:] == [
            "function_call", "function_call_output"] and items[at - 1].get("type") != "function_call":
            return Called(item, "name", "arguments", items, at + 1, "call_id")
        others = ("sharegpt", "adp", "atif", "anthropic", "responses")
        if format in others or len(message.get("tool_calls") or ()) != 1 or at + 1 == len(items):
            continue
        call = message["tool_calls"][0]
        function, name = {"inspect": (call, "function"), "verifiers-trace": (call, "name")}.get(
            format, (call.get("function"), "name"))  # fmt: skip
        id = "tool_call_ids" if format == "swe_agent" else "tool_call_id"
        return Called(function, name, "arguments", items, at + 1, id)
    return None


def _result(one: Called) -> Json:
    found = one.results[one.place]
    return found["message"] if "message" in found and "parent" in found else found


CALLS: dict[str, tuple[Callable[[Called], None], str]] = {
    "a result without an id": (lambda one: _result(one).update({one.id: None}), READ),
    "a result with an unknown id": (lambda one: _result(one).update({one.id: "call_nobody"}), REFUSED),
    "a result that comes twice": (lambda one: one.results.insert(one.place, copy.deepcopy(one.results[one.place])),
                                  REFUSED),
    "a result of another type": (lambda one: _result(one).update(
        dict.fromkeys({"content", "output"} & _result(one).keys(), [{"a": 1}])), REFUSED),
    "arguments that are a list": (lambda one: one.function.update({one.arguments: [1, 2]}), REFUSED),
    "arguments that are cut": (lambda one: one.function.update({one.arguments: '{"q": "lam'}), REFUSED),
    "arguments with NaN": (lambda one: one.function.update({one.arguments: '{"q": NaN}'}), REFUSED),
    "a call without a name": (lambda one: one.function.update({one.name: None}), REFUSED),
    "a call whose name is an object": (lambda one: one.function.update({one.name: {"a": 1}}), REFUSED),
}  # fmt: skip
"""Damages of calls and results."""


# -- lines -------------------------------------------------------------------------------------------------------------


def _inserted(text: str) -> Callable[[str], str]:
    return lambda line: f"{line[:-1]}, {text}}}"


LINES: dict[str, tuple[Callable[[str], str | bytes], str]] = {
    "a line cut at its end": (lambda line: line[: 2 * len(line) // 3], REFUSED),
    "a line without its last brace": (lambda line: line[:-1], REFUSED),
    "a line cut at its start": (lambda line: line[len(line) // 3 :], REFUSED),
    "a line that begins in another": (lambda line: line[: len(line) // 2] + line, REFUSED),
    "a NUL byte in a line": (lambda line: line[:9] + "\0" + line[9:], REFUSED),
    "a line of NUL bytes": (lambda line: "\0" * 64, REFUSED),
    "Latin-1 in a line": (lambda line: _inserted('"x": "\u00e9"')(line).encode("latin-1", "replace"), REFUSED),
    "half of a UTF-8 character": (lambda line: _inserted('"x": "')(line).encode()[:-1] + b'\xe2\x82"}', REFUSED),
    "half of a surrogate pair": (_inserted('"x": "\\ud83d"'), REFUSED),
    "a trailing comma": (lambda line: f"{line[:-1]},}}", REFUSED),
    "a comma after the line": (lambda line: f"{line},", REFUSED),
    "single quotes": (lambda line: repr(json.loads(line)), REFUSED),
    "a comment": (lambda line: f"{line} // good", REFUSED),
    "NaN": (_inserted('"x": NaN'), REFUSED),
    "a float without end": (_inserted('"x": [1.5, 1e999]'), REFUSED),
    "an integer of 5,000 digits": (_inserted(f'"x": {"9" * 5000}'), REFUSED),
    "a key that comes twice": (lambda line: f'{{{line[1:-1]}, {line[1:-1]}}}', REFUSED),
    "nesting without end": (lambda line: "[" * 100_000, REFUSED),
    "a list for a record": (lambda line: f"[{line}]", REFUSED),
    "null for a record": (lambda line: "null", REFUSED),
    "a number for a record": (lambda line: "-0.5", REFUSED),
    "a record in a text": (lambda line: json.dumps(line), REFUSED),
    "another object": (lambda line: '{"level": "INFO", "msg": "started", "ts": 1.5}', REFUSED),
    "a page of an error": (lambda line: "<html><body>502 Bad Gateway</body></html>", REFUSED),
    "space around a line": (lambda line: f" \t{line}  \r", READ),
    "empty lines": (lambda line: f"\n   \n{line}\n\t\r", READ),
}
"""Damages of lines, and what must become of the record."""


# -- files -------------------------------------------------------------------------------------------------------------

FILES: dict[str, tuple[str, Callable[[Sequence[str]], bytes], str]] = {
    "UTF-8 with a mark": (".jsonl", lambda lines: "\n".join(lines).encode("utf-8-sig"), READ),
    "UTF-16": (".jsonl", lambda lines: "\n".join(lines).encode("utf-16"), READ),
    "UTF-16, big end first": (".ndjson", lambda lines: b"\xfe\xff" + "\n".join(lines).encode("utf-16-be"), READ),
    "UTF-32": (".jsonl", lambda lines: "\n".join(lines).encode("utf-32"), READ),
    "UTF-16 as one list": (".json", lambda lines: f"[{','.join(lines)}]".encode("utf-16"), READ),
    "Windows line ends": (".jsonl", lambda lines: "\r\n".join(lines).encode(), READ),
    "old Macintosh line ends": (".jsonl", lambda lines: "\r".join(lines).encode(), READ),
    "no line ends at all": (".jsonl", lambda lines: "".join(lines).encode(), READ),
    "lines in .json": (".json", lambda lines: "\n".join(lines).encode(), READ),
    "one list": (".json", lambda lines: f"[{', '.join(lines)}]\n".encode(), READ),
    "gzip": (".jsonl.gz", lambda lines: gzip.compress("\n".join(lines).encode()), READ),
    "gzip in two members": (".jsonl.gz", lambda lines: b"".join(gzip.compress(f"{line}\n".encode()) for line in lines),
                            READ),
    "gzip cut short": (".jsonl.gz", lambda lines: gzip.compress("\n".join(lines).encode())[:-300], UNREADABLE),
    "something after gzip": (".jsonl.gz", lambda lines: gzip.compress("\n".join(lines).encode()) + b"more", UNREADABLE),
    "gzip that is none": (".jsonl.gz", lambda lines: "\n".join(lines).encode(), UNREADABLE),
    "UTF-16 without a mark": (".jsonl", lambda lines: "\n".join(lines).encode("utf-16-le"), REFUSED),
    "a list cut short": (".json", lambda lines: f"[{', '.join(lines)}".encode()[:-20], UNREADABLE),
}  # fmt: skip
"""Damages of files: suffix, what is written of the lines, what must become of them."""


@dataclass
class Expected:
    """A record, and what must become of it.

    Attributes:
        name: `file:line`.
        damage: Its damage; None where it has none.
        fate: `READ` …
        conversation: JSON of its messages.
        success: Its outcome; None where it must have none.
    """

    name: str
    damage: str | None
    fate: str
    conversation: str
    success: bool | None


@dataclass
class Found:
    """The result of a comparison.

    Attributes:
        read, refused: Records.
        lost: Sentences: records that are neither imported nor named.
        invented: Sentences: what was imported and no log says, or with another outcome.
    """

    read: int = 0
    refused: int = 0
    lost: list[str] = field(default_factory=list)
    invented: list[str] = field(default_factory=list)


def _conversation(one: Spoken, format: str) -> str:
    return json.dumps(one.expected(calls_apart=format == "sharegpt"))


def write(said: Sequence[Spoken], format: str, folder: Path, rng: random.Random, per_file: int) -> list[Expected]:
    """Write conversations as logs of a format, with every damage at least once; return what must become of each.

    The conversations must differ. Every damage of a record or a line is one of a conversation; each damaged file has
    `per_file` of them. The others are not damaged.
    """
    folder.mkdir(parents=True)
    rest = list(said)
    out: list[Expected] = []
    lines: list[str | bytes] = []
    main = folder / "log.jsonl"
    damaged = list(_damaged(rest, format, rng, main))
    taken = {id(one) for one, *_ in damaged}
    rest = [one for one in rest if id(one) not in taken]
    for number, (damage, (suffix, encode, fate)) in enumerate(FILES.items()):
        chosen, rest = rest[:per_file], rest[per_file:]
        path = folder / f"file-{number:02}{suffix}"
        path.write_bytes(encode([_line(one, format, rng) for one in chosen]))
        for at, one in enumerate(chosen, 1):
            name = f"{path}:{at}" if fate == REFUSED else str(path)
            out.append(Expected(name, damage, fate, _conversation(one, format), one.success))
    plain = [(one, None, READ, one.success, [_line(one, format, rng)]) for one in rest]
    every = [*damaged, *plain]
    rng.shuffle(every)
    for one, damage, fate, success, texts in every:
        for at, text in enumerate(texts):
            before = sum(_count(line) for line in lines)
            own = READ if fate == TWICE and not at else fate  # the first of the two
            out.append(Expected(f"{main}:{before + 1}", damage, own, _conversation(one, format), success))
            lines.append(text)
    main.write_bytes(b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines))
    return out


def _count(line: str | bytes) -> int:
    """Return the number of lines that a text takes, with its end."""
    return (line.count(b"\n") if isinstance(line, bytes) else line.count("\n")) + 1


def _line(one: Spoken, format: str, rng: random.Random) -> str:
    return json.dumps(_WRITERS[format](one, rng), ensure_ascii=rng.random() < 0.5)


Damaged = tuple[Spoken, str | None, str, "bool | None", "list[str | bytes]"]


def _damaged(said: Sequence[Spoken], format: str, rng: random.Random, path: Path) -> Iterator[Damaged]:
    """Yield conversations with their damage, their fate, their outcome, and the lines to write."""
    left = iter(said)
    for damage, (change, fate) in RECORDS.items():
        one = next(left)
        record = _WRITERS[format](one, rng)
        change(record, SHAPES[format])
        yield one, damage, fate, None if damage == _NO_OUTCOME else one.success, [json.dumps(record)]
    for damage, (alter, fate) in CALLS.items():
        while format not in ("sharegpt", "text_calls"):  # their calls are texts
            one = next(left)
            record = _WRITERS[format](one, rng)
            found = called(format, record)
            if found is not None:
                alter(found)
                yield one, damage, fate, one.success, [json.dumps(record)]
                break
    for damage, (spoil, fate) in LINES.items():
        one = next(left)
        yield one, damage, fate, one.success, [spoil(_line(one, format, rng))]
    one = next(left)
    line = _line(one, format, rng)
    yield one, "a session that comes twice", TWICE, one.success, [line, line]
    one = next(left)
    record = _WRITERS[format](one, rng)
    other = copy.deepcopy(record)
    value = get(other, SHAPES[format].outcome)
    put(other, SHAPES[format].outcome, {"C": "I", "I": "C"}.get(value) or type(value)(not value))
    yield one, "a session with two outcomes", CONTRADICTED, one.success, [json.dumps(record), json.dumps(other)]


def compare(run: Path, expected: Sequence[Expected]) -> Found:
    """Compare a run with what must have become of each record."""
    found = Found()
    rows: dict[str, bool | None] = {}
    for file in sorted((run / "trajectories").glob("*.parquet")):
        for row in map(known, read_table(file)):
            key = json.dumps(row["messages"])
            if key in rows:
                found.invented.append(f"twice in the table: {key[:80]}")
            rows[key] = row["success"]
    entries = [json.loads(line) for line in (run / "quarantine.jsonl").read_text().splitlines()]
    named = [entry["name"] for entry in entries if entry["kind"] == "log"]
    reasons = " ".join(entry["reason"] for entry in entries if entry["kind"] != "log")
    pending = dict(rows)
    for one in expected:
        refused = any(name == one.name or name.startswith((f"{one.name}:", f"{one.name}/", f"{one.name}."))
                      for name in named)  # fmt: skip
        there = one.conversation in rows
        what = f"{one.name} ({one.damage})"
        if one.fate == READ or (one.fate == UNREADABLE and there):
            pending.pop(one.conversation, None)
            found.read += 1
            if not there:
                found.lost.append(what)
            elif rows[one.conversation] != one.success:
                found.invented.append(f"{what}: success {rows[one.conversation]}, the log says {one.success}")
            if refused and one.fate == READ:
                found.invented.append(f"{what}: it is named as refused")
            continue
        found.refused += 1
        if one.fate == CONTRADICTED:
            refused = one.name in reasons
        if one.fate == TWICE:
            there = False  # the first of the two is
        if not refused:
            found.lost.append(what)
        if there:
            found.invented.append(f"{what}: it was imported")
    found.invented += [f"no log says {key[:120]}" for key in pending]
    return found
