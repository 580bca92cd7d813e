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

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from offline_agent.errors import DataError, located
from offline_agent.formats import anthropic
from offline_agent.logs.coding import FAILED, REFUSED
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
    """Return whether a JSON value may be a line of a session."""
    return isinstance(at(value, "type"), str) and any(key in value for key in _LINE) and not any(
        isinstance(value.get(key), list | Mapping) for key in _OTHERS
    )  # fmt: skip


def is_sure(line: Mapping[str, Any]) -> bool:
    """Return whether a line that may be of a session is of one: some lines have no key that no other format has."""
    return "uuid" in line and "parentUuid" in line


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
            elif results := _results(line.value):
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
        followed = {self._nearest(self._known(turn), is_turn) for turn in every}
        yield from sorted((turn for turn in every if turn not in followed), key=self.last.__getitem__)

    def requests(self) -> dict[str, str | None]:
        """Return what users said themselves, by node, with the turn, the results or the request that it follows."""
        every = [node for node, (line, *_) in self.lines.items() if _is_request(line.value)]
        return {node: self._nearest(self._known(node), _is_said) for node in every}

    def continued(self) -> set[str]:
        """Return the turns that a summary, or a line whose parent is missing, goes on with or may go on with."""
        out: set[str] = set()
        for node, (line, *_) in self.lines.items():
            parent = at(line.value, "parentUuid")
            if (parent is not None and parent not in self._node) or at(line.value, "subtype") == "compact_boundary":
                turn = self._nearest(self._node.get(str(at(line.value, "logicalParentUuid"))), is_turn)
                out |= {turn} if turn else {other for other, last in self.last.items() if last < self.last[node]}
        return out

    def _nearest(self, node: str | None, wanted: Callable[[Any], bool]) -> str | None:
        """Return the first node from one on backwards whose line is wanted; None where there is none."""
        seen: set[str] = set()
        while node is not None and node not in seen and not wanted(self.lines[node][0].value):
            seen.add(node)
            node = self._known(node)
        return None if node in seen else node

    def _known(self, node: str) -> str | None:
        try:
            return self.before(node)
        except DataError:
            return None


def is_turn(line: Any) -> bool:
    """Return whether a line is a part of what a model wrote."""
    return (at(line, "type") == "assistant" and at(line, "message.model") != "<synthetic>"
            and not at(line, "isApiErrorMessage"))  # fmt: skip


def _is_request(line: Any) -> bool:
    """Return whether a line is what the user of the main conversation said."""
    others = ("isMeta", "isSidechain", "isCompactSummary", "isVisibleInTranscriptOnly")
    return at(line, "type") == "user" and not any(at(line, key) for key in others) and not _results(line)


def _is_said(line: Any) -> bool:
    return is_turn(line) or bool(_results(line)) or _is_request(line)


def _results(line: Any) -> list[Any]:
    return [block for block in _blocks(line) if at(block, "type") == "tool_result"]


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
    turns, asked, continued = list(tree.turns()), tree.requests(), tree.continued()
    if not turns:
        yield Record(str(path), None, "no line of the session is a model's, so there is nothing to learn")
    for turn in turns:
        name = tree.lines[turn][-1].name
        try:
            way = tree.path(turn)
            nodes = [[(line.name, line.value) for line in tree.lines[node]] for node in way]
            yield Record(name, {NAME: nodes, "marks": {**_marks(tree, way, asked), "goes_on": turn in continued}})
        except DataError as error:
            yield Record(name, None, str(error))


def _marks(tree: _Tree, path: Sequence[str], asked: Mapping[str, str | None]) -> dict[str, Any]:
    """Return where the user of a branch went back and left it (None: nowhere), and what followed its last turn.

    Going back is another request, after all of the branch, at the place of one of its own. At the beginning it may as
    well be another conversation, so that it says nothing.
    """
    own = set(path)
    places = {asked[node] for node in path if asked.get(node) is not None}
    later = (node for node, before in asked.items()
             if before in places and node not in own and tree.last[node] > tree.last[path[-1]])  # fmt: skip
    left = next(later, None)
    last = max(number for number, node in enumerate(path) if is_turn(tree.lines[node][0].value))
    followed = set(path[last:])  # the last turn, and its results
    after: list[list[str]] = []
    for node, before in asked.items():
        if before in followed:
            followed.add(node)
            after += [[line.name, "".join(str(at(one, "text") or "") for one in _blocks(line.value))]
                      for line in tree.lines[node]]  # fmt: skip
    return {"left": None if left is None else tree.lines[left][0].name, "after": after}


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
    lines = [one for node in record[NAME] for _, one in node]
    began = next((folder for one in lines if (folder := one.get("cwd"))), None)
    known = fields.read({**last, "session_id": session, "cwd": began})
    said = conversation(messages, fields.ignore, places)
    ended = {block.get("tool_use_id"): _end(block, one)
             for node in record[NAME] for _, one in node for block in _results(one)}  # fmt: skip
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    signs = {**record.get("marks", {}), "ends": [ended.get(call["id"]) for call in calls],
             "part": any(one.get("isSidechain") or one.get("isCompactSummary") for one in lines)}  # fmt: skip
    yield LoggedEpisode(name, said, **known, cut=cut, left=left_out(left), signs=signs)


def _end(result: Mapping[str, Any], line: Any) -> int | str | None:
    """Return the exit status of a command, `coding.REFUSED` of a call that the user did not allow, `coding.FAILED` of
    another error; None: not told.
    """
    told = at(line, "toolUseResult")
    if told == "User rejected tool use":
        return REFUSED if at(line, "toolDenialKind") in (None, "user-rejected") else None
    if result.get("is_error"):
        found = re.match(r"Error: Exit code (\d+)\b", told) if isinstance(told, str) else None
        return int(found.group(1)) if found else FAILED
    ran = isinstance(told, Mapping) and "stdout" in told and not told.get("interrupted")
    return 0 if ran and not at(told, "backgroundTaskId") else None


def _is_read(line: Any) -> bool:
    """Return whether a model reads a line: a summary is shown in the transcript alone, too, but read."""
    shown = at(line, "isVisibleInTranscriptOnly") and not at(line, "isCompactSummary")
    return at(line, "type") == "user" and not shown
