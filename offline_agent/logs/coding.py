"""Outcomes of coding sessions, read off the log alone: the tests at the end, what the user undid, and refused.

Each rule speaks of how an episode ended, and has evidence for what it says; where the log does not tell, it says
nothing. No rule reads what somebody says in words: whether the user is content, or the agent claims success.

Definitions: Codex's results have the exit status in their first lines (openai/codex, codex-rs/core/src/tools/mod.rs at
019402a and handlers/unified_exec.rs at bdba785), and a refusal is all of one (`tools/events.rs` at 001f15e);
mini-swe-agent has it in `<returncode>` (SWE-agent/mini-swe-agent, src/minisweagent/config/mini_textbased.yaml at
8a33bfc), OpenHands in its last lines. Claude Code's are marks of the log's lines (`formats.sessions.claude_code`).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from offline_agent.logs import commands
from offline_agent.logs.episode import LoggedEpisode, Rule, at, inner

REFUSED, FAILED = "refused", "failed"  # how a call ended that the user did not allow; that did nothing
CONTRADICT = "rules contradict each other"
Evidence = dict[str, Any]

_SHELLS = re.compile(r"bash|(?:local_|run_)?shell(?:_command)?|exec(?:_command)?|execute_(?:bash|command)|terminal")
_READERS = re.compile(
    r"read|grep|glob|ls|todowrite|todoread|task(?:create|update|get|list|output|_tracker)|bashoutput|websearch|webfetch|"
    r"askuserquestion|exitplanmode|toolsearch|update_plan|view_image|read_file|list_dir|list_directory|grep_files|"
    r"search_file_content|find_file|search_dir|search_file|think|finish|submit"
)
_EDITORS = re.compile("edit|write|replace|patch|create")
_PATHS = ("file_path", "path", "notebook_path", "filename")
_PATCHED = re.compile(r"^\*\*\* (?:Update|Add|Delete) File: (.+)$", re.M)
_SCRIPT = re.compile(r"```(?:bash|sh|mswea_bash_command)\s*\n(.*?)\n```", re.S)
_HEADER = re.compile(r"^(?:Exit code: |Process exited with code )(-?\d+)$", re.M)
_TAG = re.compile(r"\s*(?:<exception>.*?</exception>\s*)?<returncode>(-?\d+)</returncode>", re.S)
_FOOTER = re.compile(r"\[(?:The command completed|Command finished) with exit code (-?\d+)\.?\](?:\n\[[^\n]*\])*\s*$")
_NOT_ALLOWED = ("exec command rejected by user", "patch rejected by user")
_INTERRUPTED = re.compile(r"\[Request interrupted by user\]$|<turn_aborted>\s*The user interrupted ")
_RAN = re.compile(r"<bash-input>(.*?)</bash-input>|<user_shell_command>\s*<command>\s*(.*?)\s*</command>(.*)", re.S)
_FAILED = re.compile(r"<bash-stderr>(?:error|fatal): |^Exit code: [^0]", re.M)


class Call(NamedTuple):
    """A call of a tool: the number of its turn's message, its name, its arguments, its result, and how it ended."""

    message: int
    name: str
    arguments: Mapping[str, Any]
    result: str | None
    end: int | str | None

    @property
    def command(self) -> str | None:
        """The command that it gave to a shell; None where it is another tool."""
        given = self.arguments.get("command", self.arguments.get("cmd"))
        if not _SHELLS.fullmatch(self.name):
            return None
        words = [str(word) for word in given] if isinstance(given, list) else [str(given)]
        inside = len(words) == 1 or (len(words) == 3 and words[1] in ("-c", "-lc"))
        return words[-1] if inside else shlex.join(words)

    @property
    def reads(self) -> bool:
        """Whether it is of a tool that is known to change no file."""
        return bool(_READERS.fullmatch(self.name)) or self.arguments.get("command") == "view"


def ruled(
    episode: LoggedEpisode, rules: Sequence[Rule], replay: Callable[[LoggedEpisode], Evidence] | None = None
) -> tuple[LoggedEpisode, str | None]:
    """Return an episode with the outcome that rules read off its log, and its replay has.

    Args:
        episode: One whose log tells no outcome; of another, the outcome is compared with that of the replay.
        rules: `tests`, `undone`, `refused`.
        replay: Replays it (`repository.Repository`); None = nobody does.

    Returns:
        The episode, its outcome unchanged where nothing tells one, and without one where two contradict each other;
        and the contradiction, or why it was not replayed, in words; None where there is neither.
    """
    found: dict[str, Evidence] = {"log": {"success": episode.success, "outcome": episode.outcome}}
    if episode.score is None:
        found = {rule: told for rule in rules if (told := _RULES[rule](episode)) is not None}
    why, replayed = None, {} if replay is None else replay(episode)
    if replayed.get("success") is not None:
        found["replay"] = replayed
    elif replayed:
        why = f"not replayed: {replayed['reason']}"
    if not found or [*found] == ["log"]:
        return episode, why
    verdicts = {bool(told.pop("success")) for told in found.values()}
    if len(verdicts) != 1:
        why = f"{CONTRADICT}: {json.dumps(found)}, so it has no outcome"
        return replace(episode, score=None, success=None, outcome=None), why
    success, name = verdicts.pop(), f"rule:{'+'.join(one for one in found if one != 'log')}"
    score = float(success) if episode.score is None else episode.score
    return replace(episode, score=score, success=success, outcome=name, evidence=found), why


def calls(episode: LoggedEpisode) -> Iterator[Call]:
    """Yield the calls of an episode in their order; a script in a turn's text is one, where its result follows."""
    ends = iter(episode.signs.get("ends", ()))
    for number, message in enumerate(episode.messages):
        if message["role"] != "assistant":
            continue
        after = episode.messages[number + 1 :]
        called = message.get("tool_calls", ())
        for place, call in enumerate(called):
            function = call["function"]
            answered = place < len(after) and after[place]["role"] == "tool"
            result, end = after[place]["content"] if answered else None, next(ends, None)
            if result is not None and result.strip() in _NOT_ALLOWED:
                end = REFUSED
            name = str(function["name"]).rpartition(".")[2].lower()
            yield Call(number, name, inner(function, "arguments"), result, end)
        scripts = () if called else _SCRIPT.findall(message["content"])
        if len(scripts) == 1 and after and _TAG.match(after[0]["content"]):
            yield Call(number, "bash", {"command": scripts[0]}, after[0]["content"], None)


def ended(call: Call, signs: Mapping[str, Any]) -> tuple[str, int | None]:
    """Return what a command printed, and its exit status; None where the log does not tell it."""
    text = call.result or ""
    if "ends" in signs:
        return text, call.end if isinstance(call.end, int) else None
    if text.startswith('{"output":'):
        try:
            told = json.loads(text)
        except ValueError:
            return text, None
        status = at(told, "metadata.exit_code")
        return str(at(told, "output")), status if type(status) is int else None
    header, _, output = text.partition("\nOutput:\n")
    if output and header.startswith(("Exit code: ", "Chunk ID: ", "Wall time: ")):
        found = _HEADER.search(header)
    else:
        output, found = text, _TAG.match(text) or _FOOTER.search(text[-2000:])
    return output, int(found.group(1)) if found else None


def _tests(episode: LoggedEpisode) -> Evidence | None:
    """Return how the last tests of an episode ended; None where it ran none, or may have changed files after them."""
    told: Evidence | None = None
    if episode.signs.get("goes_on"):
        return None
    for call in calls(episode):
        command = call.command
        if call.end == REFUSED or (command is None and call.reads):
            continue
        known = command is not None and call.result is not None and not call.arguments.get("run_in_background")
        ran = commands.ran_tests(command or "", *ended(call, episode.signs)) if known else None
        if ran is not None and ran.success is not None:
            told = {"success": ran.success, "command": command, "line": ran.line, "message": call.message}
        elif ran is not None or not known or commands.changes(command or ""):
            told = None
    return told


def _undone(episode: LoggedEpisode) -> Evidence | None:
    """Return how its user left what an episode did: went back, interrupted it, or took its files back with git."""
    if (left := episode.signs.get("left")) is not None:
        return {"success": False, "mark": "the user went back to an earlier point", "at": left}
    after = episode.signs.get("after", ())
    for number, (place, text) in enumerate(after):
        if _INTERRUPTED.match(text.strip()):
            return {"success": False, "mark": text.strip()[:200], "at": place}
        ran, later = _RAN.match(text.strip()), [said for _, said in after[number + 1 :]]
        if ran is None or _FAILED.search("\n".join([ran.group(3) or "", *later[:1]])):
            continue
        command = ran.group(1) or ran.group(2) or ""
        restored = any("stash pop" in said or "stash apply" in said for said in later)
        if not restored and _takes_back(command, list(_edited(episode))):
            return {"success": False, "mark": "the user took edited files back", "command": command, "at": place}
    return None


def _edited(episode: LoggedEpisode) -> Iterator[str]:
    """Yield the files that an episode edited with tools for it."""
    for call in calls(episode):
        if call.end != REFUSED and not call.reads:
            edits = _EDITORS.search(call.name)
            yield from (path for key in _PATHS if edits and isinstance(path := call.arguments.get(key), str))
            yield from _PATCHED.findall("\n".join(map(str, call.arguments.values())))


def _takes_back(command: str, edited: Sequence[str]) -> bool:
    """Return whether a command of git brings edited files back to what they were."""
    for part in commands.parts(command) or ():
        verb, *rest = (*part.words[1:], "", "")
        paths = [word.removeprefix("./").rstrip("/") or "." for word in rest if word and not word.startswith("-")]
        named = any(path == "." or f"/{path}/" in f"/{file}/" for path in paths for file in edited)
        whole = {"reset": "--hard" in rest, "stash": paths in ([], ["push"]), "checkout": named,
                 "restore": named and ("--staged" not in rest or "--worktree" in rest)}  # fmt: skip
        if edited and part.words[0] == "git" and whole.get(str(verb)):
            return True
    return False


def _refused(episode: LoggedEpisode) -> Evidence | None:
    """Return the call of an episode's last turn that its user did not allow; None where there is none."""
    last = max(number for number, message in enumerate(episode.messages) if message["role"] == "assistant")
    for call in calls(episode):
        if call.message == last and call.end == REFUSED:
            return {"success": False, "mark": (call.result or "")[:200], "call": call.name, "message": last}
    return None


_RULES = {"tests": _tests, "undone": _undone, "refused": _refused}
