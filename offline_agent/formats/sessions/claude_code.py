"""Claude Code's sessions, `~/.claude/projects/*/*.jsonl`: lines that `parentUuid` makes a tree.

The form is nowhere published; what is read is what open tools agree on, such as `alicoding/claude-parser`
(`docs/JSONL-STRUCTURE.md`), of Claude Code 1.0 to 2.1: `message` is Anthropic's; a turn is written block by block, on
lines with one `message.id`; each result is the child of the line that called, so turns and results are joined before
the tree is read. Each turn that no other follows ends a branch: a rewind or a retry leaves one history in two ways.
After a compaction the model reads a summary, which is the user's, with no line before it. A side chain begins with a
request of its own, too; its branches are of a session `SESSION/AGENT`.

Claude Code logs no system prompt, no schemas of its tools and no outcome. Errors of the API in an assistant's name,
and lines that the transcript alone shows, are no part of the conversation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from offline_agent.errors import DataError, located
from offline_agent.formats import anthropic
from offline_agent.logs.conversation import conversation
from offline_agent.logs.episode import Fields, LoggedEpisode, at, left_out
from offline_agent.logs.files import Record

NAME = "claude_code"
_LINE = ("parentUuid", "sessionId", "leafUuid", "messageId")
_OTHERS = ("messages", "conversations", "content", "steps", "nodes", "prompt", "input")  # of records of other formats
_TOLD = {
    "attachment": "attachments, which the model read in words that are not logged",
    "local_command": "outputs of local commands, which the model may have read",
    "microcompact_boundary": "times at which older results were taken out of what the model read",
    "assistant": "messages in the assistant's name that no model wrote",
}
"""Lines that are passed over and said, by type or subtype; others say nothing that a model reads."""


def is_line(value: Any) -> bool:
    """Return whether a JSON value is a line of a session."""
    return isinstance(at(value, "type"), str) and any(key in value for key in _LINE) and not any(
        isinstance(value.get(key), list | Mapping) for key in _OTHERS
    )  # fmt: skip


class _Tree:
    """The lines of a session, joined to nodes: turns, the results of one, and every other line by itself.

    Attributes:
        lines: By node.
        last: The number of a node's last line, which says when it ended.
    """

    def __init__(self, lines: Sequence[Record]) -> None:
        self.lines: dict[str, list[Record]] = {}
        self.last: dict[str, int] = {}
        self._node: dict[str, str] = {}  # by uuid
        callers: dict[Any, str] = {}  # by id of a call: its turn
        for number, line in enumerate(lines):
            uuid = at(line.value, "uuid")
            if not isinstance(uuid, str) or uuid in self._node:  # a line that comes twice is one
                continue
            node, blocks = uuid, _blocks(line.value)
            if is_turn(line.value):
                node = f"turn {at(line.value, 'message.id') or uuid}"
                callers |= {str(at(block, "id")): node for block in blocks if at(block, "type") == "tool_use"}
            elif results := [block for block in blocks if at(block, "type") == "tool_result"]:
                caller = callers.get(str(results[0].get("tool_use_id")))
                node = uuid if caller is None else f"results of {caller}"
            self._node[uuid] = node
            self.lines.setdefault(node, []).append(line)
            self.last[node] = number

    def before(self, node: str) -> str | None:
        """Return the node before a node; None where its conversation begins.

        Raises:
            DataError: The line before it is missing.
        """
        line = self.lines[node][0]
        uuid = at(line.value, "parentUuid")
        if uuid is None:
            return None
        found = self._node.get(uuid)
        if found is None:
            raise DataError(
                f"{line.name}: parentUuid: got {uuid!r:.60}, wanted the uuid of another line; what was said before is "
                "missing or damaged"
            )
        # a side chain is a conversation of its own, wherever it was started
        return found if _one_chain(self.lines[found][0].value, line.value) else None

    def path(self, node: str) -> list[str]:
        """Return the nodes from the beginning to a turn and its results. Raises DataError where it is not known."""
        out = [node]
        while (before := self.before(out[-1])) is not None:
            if before in out[-1:] or len(out) > len(self.lines):
                raise DataError(f"{self.lines[before][0].name}: parentUuid leads back to the line itself")
            out.append(before)
        for other, (line, *_) in self.lines.items():
            kept = at(line.value, "compactMetadata.preservedSegment")
            if kept and (other in out or self.last[out[-1]] < self.last[other] < self.last[node]):
                raise DataError(f"{line.name}: a compaction kept turns of its history, which would be learnt again")
        answers = f"results of {node}"
        return [*out[::-1], *([answers] if answers in self.lines else [])]

    def turns(self) -> Iterator[str]:
        """Yield the turns that no other turn follows, in the order in which they ended."""
        every = [node for node, (line, *_) in self.lines.items() if is_turn(line.value)]
        followed = set()
        for turn in every:
            seen, before = {turn}, self._known(turn)
            while before is not None and before not in seen and not is_turn(self.lines[before][0].value):
                seen.add(before)
                before = self._known(before)
            followed.add(before)
        yield from sorted((turn for turn in every if turn not in followed), key=self.last.__getitem__)

    def _known(self, node: str) -> str | None:
        try:
            return self.before(node)
        except DataError:
            return None


def is_turn(line: Any) -> bool:
    """Return whether a line is a part of what a model wrote."""
    return (at(line, "type") == "assistant" and at(line, "message.model") != "<synthetic>"
            and not at(line, "isApiErrorMessage"))  # fmt: skip


def _one_chain(line: Any, other: Any) -> bool:
    """Return whether two lines are both of the main conversation, or of the side chain of one agent."""
    sides = {bool(at(one, "isSidechain")) for one in (line, other)}
    agents = {agent for one in (line, other) if (agent := at(one, "agentId")) is not None}  # the main one names others
    return len(sides) == 1 and (sides == {False} or len(agents) < 2)


def _blocks(line: Any) -> list[Any]:
    content = at(line, "message.content")
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def branches(path: Path, lines: Sequence[Record]) -> Iterator[Record]:
    """Yield a record for each turn that no other turn follows: its lines and all before, node by node."""
    tree = _Tree(lines)
    turns = list(tree.turns())
    if not turns:
        yield Record(str(path), None, "no line of the session is a model's, so there is nothing to learn")
    for turn in turns:
        name = tree.lines[turn][-1].name
        try:
            yield Record(name, {NAME: [[(line.name, line.value) for line in tree.lines[n]] for n in tree.path(turn)]})
        except DataError as error:
            yield Record(name, None, str(error))


def recognised(record: Mapping[str, Any]) -> str | None:
    """See `formats.Format`."""
    return "lines of a session" if isinstance(record.get(NAME), list) else None


def read(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    """See `formats.Format`."""
    left: Counter[str] = Counter()
    messages: list[Mapping[str, Any]] = []
    places: list[str] = []  # of each message
    turns = []
    for node in record[NAME]:
        place, line = node[0]
        with located(place):
            if is_turn(line):
                turns.append(node)
                blocks: list[Any] = []
                for _, one in node:
                    blocks += [block for block in _blocks(one) if block not in blocks]
                messages += anthropic.plain({"role": "assistant", "content": blocks}, left)
            elif _is_read(line):
                given = [{"role": "user", "content": at(one, "message.content")} for _, one in node]
                found = [message for one in given for message in anthropic.plain(one, left)]
                messages += sorted(found, key=lambda message: message["role"] != "tool")  # as the API wants them
            else:
                left[_TOLD.get(line["type"]) or _TOLD.get(line.get("subtype")) or ""] += 1
        places += [place] * (len(messages) - len(places))
    del left[""]
    _, last = turns[-1][-1]
    session = str(last.get("sessionId"))
    if last.get("isSidechain"):
        named = (agent for node in record[NAME] for _, one in node if (agent := one.get("agentId")))
        session += f"/{next(named, record[NAME][0][0][1].get('uuid'))}"
    cut = at(last, "message.stop_reason") == "max_tokens"
    known = fields.read({**last, "session_id": session})
    yield LoggedEpisode(name, conversation(messages, fields.ignore, places), **known, cut=cut, left=left_out(left))


def _is_read(line: Any) -> bool:
    """Return whether a model reads a line: a summary is shown in the transcript alone, too, but read."""
    shown = at(line, "isVisibleInTranscriptOnly") and not at(line, "isCompactSummary")
    return at(line, "type") == "user" and not shown
