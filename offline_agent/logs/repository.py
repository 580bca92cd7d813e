"""Replays of coding sessions in their repository: do the tests pass after what the agent did?

The files of a commit are copied into the sandbox, what a session changed is done there again in its order (`edits`),
and a command of the user tests the outcome, in a call of its own that nothing of the session survives. What cannot be
done again gives no verdict and says why; it is never a failure.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from offline_agent.errors import ConfigError
from offline_agent.logs import coding, commands, edits
from offline_agent.logs.coding import FAILED, REFUSED, Evidence
from offline_agent.logs.episode import LoggedEpisode
from offline_agent.sandbox import Entry, Folder, Limits, Result, SandboxError, check_trust, shared
from offline_agent.sandbox.calls import Entries, Files
from offline_agent.sandbox.launch import python_environment
from offline_agent.sections import Section, key

_AT = "/repository"
_FIRST = ("command -v git >/dev/null || exit 0; git config --global user.name a; git config --global user.email a@b; "
          "git init -q && git add -Af && git commit -qm checkout --allow-empty")  # fmt: skip
_EDITS = {"edit": "edit", "multiedit": "edit", "write": "write", "notebookedit": "cell"}
_SECONDS = re.compile(r"\b\d+(?:\.\d+)? ?(?:ms|s|seconds)\b")  # differ each time, and say nothing
_RAN = re.compile(r"\d (?:passed|failed)|fail(?:ed|ures)\b|FAIL$")  # a summary of more than errors
_NONE: tuple[Any, ...] = (None, 0, 0, None)
_SHOWN = 20


class RepositorySection(Section):
    """Replays of coding sessions in their repository."""

    repository: str | None = key(
        None, "a git repository: what a session changed is done again in a copy of a commit, in the sandbox, and "
        "replay.test gives the verdict; null = no such replays",
    )  # fmt: skip
    commit: str | None = key(None, "the commit that sessions began with; null = the one that their log has (Codex)")
    test: str | None = key(None, "the command that tests the outcome, such as 'python3 -m pytest -q'")
    kept: tuple[str, ...] = key(
        (), "files and folders that are those of the commit when the tests run, such as [tests]", strict=False
    )
    root: str | None = key(None, "the repository's folder in the sessions; null = the one in which each began")
    seconds: float = key(300.0, "what the commands of a session may take together, and the tests", gt=0)


class Unplayable(Exception):
    """A session that cannot be replayed; the text says why."""


class Repository:
    """Replays sessions in a repository.

    Args:
        section: With `repository`.

    Raises:
        ConfigError: A key is missing, there is no such repository or commit, or no sandbox that is strong enough.
    """

    def __init__(self, section: RepositorySection) -> None:
        self._section = section
        if not section.test:
            raise ConfigError("replay.test: it is missing; name the command that tests the outcome")
        try:
            head = self._git("rev-parse", "--verify", "--end-of-options", f"{section.commit or 'HEAD'}^{{commit}}")
        except Unplayable as error:
            raise ConfigError(f"replay.repository: {error}") from error
        self._commit = head.decode().split()[-1] if section.commit else None
        check_trust(False)
        self._clean = lru_cache(maxsize=8)(self._checkout)

    def __call__(self, episode: LoggedEpisode) -> Evidence:
        """Return the verdict (`success`) on what a session did, with evidence; where it is None a `reason`."""
        try:
            return self._verdict(episode)
        except (Unplayable, SandboxError, LookupError, ValueError) as error:
            return {"success": None, "reason": str(error)}

    def _verdict(self, episode: LoggedEpisode) -> Evidence:
        commit = self._commit or str(episode.begun.get("commit"))
        if episode.signs.get("part") or episode.signs.get("goes_on"):
            raise Unplayable("it is a part of a session, and the rest changed files, too")
        if not re.fullmatch("[0-9a-f]{7,64}", commit):
            raise Unplayable(f"commit: its log has {commit!r:.60}; name one with replay.commit")
        clean, before = self._clean(commit)
        files = self._played(clean, list(_steps(episode)), str(episode.begun.get("folder") or ""))
        changed = sorted(path for path in {*clean, *files} if path.partition("/")[0] != ".git"
                         and clean.get(path, _NONE)[::3] != files.get(path, _NONE)[::3])  # fmt: skip
        back = [path for path in changed if any(f"{path}/".startswith(f"{one}/") for one in self._section.kept)]
        files = {path: one for path, one in files.items() if path not in back}
        success, told = self._tested({**files, **{path: clean[path] for path in back if path in clean}})
        told |= {"commit": commit, "changed": changed[:_SHOWN], "taken_back": back[:_SHOWN], "passed_before": before}
        if success is None and before is not None and told["status"] is not None:
            success = False  # they ran before the session, and no more after it
        if success is None or (success and not changed):
            raise Unplayable(f"no test ran, or nothing changed: {told}")
        return {"success": success, **told}

    def _checkout(self, commit: str) -> tuple[dict[str, Entry], bool | None]:
        """Return the files of a commit with the folders above them, and whether its tests pass."""
        form = "%(objectmode) %(objecttype) %(objectname) %(path)"
        listed = self._git("ls-tree", "-rz", f"--format={form}", "--end-of-options", commit).split(b"\0")[:-1]
        blobs = [one for one in (line.split(b" ", 3) for line in listed) if one[1] == b"blob"]  # no submodules
        data, at, out = self._git("cat-file", "--batch", given=b"\n".join(name for _, _, name, _ in blobs)), 0, {}
        for mode, _, _, path in blobs:
            start = data.index(b"\n", at) + 1
            at = start + int(data[at:start].split()[2]) + 1
            content, link = data[start : at - 1], mode == b"120000"
            file = Entry("file", 0o755 if mode == b"100755" else 0o644, 0, content)
            out[os.fsdecode(path)] = Entry("link", 0o777, 0, os.fsdecode(content)) if link else file
        above = {str(parent) for path in out for parent in Path(path).parents} - {"."}
        files = {**{path: Entry("folder", 0o755, 0, None) for path in sorted(above)}, **out}
        return files, self._tested(files)[0]

    def _git(self, *arguments: str, given: bytes = b"") -> bytes:
        command = ["git", "-C", str(self._section.repository), *arguments]
        try:
            return subprocess.run(command, input=given, capture_output=True, check=True, timeout=300).stdout
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", None) or b""
            raise Unplayable(f"{' '.join(command)}: {said.decode('utf-8', 'replace').strip() or error}") from error

    def _played(self, files: Entries, steps: list[dict[str, Any]], began: str) -> Entries:
        """Return the files after the steps of a session that began in a folder."""
        root, first = (self._section.root or began).rstrip("/"), {"do": "run", "command": _FIRST, "status": 0}
        text = json.dumps([first, *steps], ensure_ascii=False)
        text = re.sub(rf"(?<![\w./-]){re.escape(root)}(?![\w.-])", _AT, text) if root else text
        source = Path(edits.__file__).read_bytes()
        given: Files = {"bin/apply_patch": Entry("file", 0o755, 0, b"#!/usr/bin/env python3\n" + source),
                        "steps.json": text.encode("utf-8", "surrogatepass")}  # fmt: skip
        folder = f"{_AT}{began.removeprefix(root)}" if root and f"{began}/".startswith(f"{root}/") else _AT
        done = self._run(["python3", "-P", "-s", "-c", source.decode(), folder], files, None, given)
        if not done.ok:
            raise Unplayable(f"its commands were stopped ({done.status} {done.code}): {_end(done)}")
        told = json.loads(done.stdout)  # the commands cannot write there
        if told["fault"] is not None:
            raise Unplayable(f"step {told['done']} of {len(steps)}: {told['fault']}")
        return done.folders[_AT]

    def _tested(self, files: Entries) -> tuple[bool | None, Evidence]:
        """Return whether the tests pass, None where none ran; and what tells it."""
        command = str(self._section.test)
        done = self._run(["bash", "-c", command], files, _AT)
        status = done.code if done.status == "exited" and done.code not in (126, 127) else None
        told = {"command": command, "status": status, "line": _end(done)}
        ran = commands.ran_tests(command, f"{done.stdout}\n{done.stderr}", status)
        if status is None or ran is None:
            return (None if status is None else status == 0), told
        return (None if ran.success is False and not _RAN.search(ran.line) else ran.success), told

    def _run(self, argv: list[str], files: Entries, cwd: str | None, given: Files | None = None) -> Result:
        seconds, env = self._section.seconds, python_environment()
        env["PATH"] = f"/sandbox/bin:{env['PATH']}"
        limits = Limits(int(seconds) + 1, seconds, 4096, 256, 1024, 4096, 1024)
        folder = Folder(files, kept=given is not None)
        return shared().run(argv, files=given, env=env, folders={_AT: folder}, cwd=cwd, limits=limits)


def _steps(episode: LoggedEpisode) -> Iterator[dict[str, Any]]:
    """Yield what a session did that may have changed files, in its order. Raises Unplayable."""
    stays = "ends" in episode.signs  # Claude Code's commands begin in the folder where the last one ended
    for call in coding.calls(episode):
        given, command = call.arguments, call.command
        waits = call.name == "write_stdin" and not given.get("chars")
        reads = call.reads if command is None else not (commands.changes(command) or (stays and "cd " in command))
        if call.end == REFUSED or waits or reads or (command is None and call.end == FAILED):
            continue
        said, status = coding.ended(call, episode.signs)
        if call.result is None or given.get("run_in_background") or call.end == FAILED:
            raise Unplayable(f"{command or call.name:.100}: the log does not tell how it ended")
        if command is not None:
            yield {"do": "run", "command": command, "folder": given.get("workdir"), "status": status, "keeps": stays}
        elif call.name in _EDITS:
            path = given.get("file_path") or given.get("notebook_path")
            yield {**given, "do": _EDITS[call.name], "path": path, "edits": given.get("edits") or [given]}
        elif call.name != "apply_patch":
            raise Unplayable(f"{call.name}: nobody knows which files it changed")
        elif status == 0 or "Success. Updated" in said:
            yield {"do": "patch", "input": given.get("input")}


def _end(done: Result) -> str:
    """Return the last lines that a command printed, without times."""
    return _SECONDS.sub("…", f"{done.stdout}\n{done.stderr}".strip()[-300:])
