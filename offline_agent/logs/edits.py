"""Edits of a coding session, made where the program runs: one text, which the sandbox runs by itself.

`PROGRAM FOLDER` carries out the steps of `steps.json` there, and prints how many were, and why the next one was not.
Under the name `apply_patch` it is Codex's program of that name, for the commands that call it.

Definitions: openai/codex, codex-rs/apply-patch/src/parser.rs at 0ffd5a8, lib.rs at 04f399d, seek_sequence.rs at
7116353. The tools of Claude Code are those of its schemas (`old_string` stands once, or `replace_all`).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_FILE = re.compile(r"\*\*\* (?:Add|Delete|Update) File: .")
_SHELL = 'trap "pwd >/sandbox/folder" EXIT; eval "$1"'


def main() -> None:
    """Carry out the steps; or a patch."""
    if os.path.basename(sys.argv[0]) == "apply_patch":
        patch(sys.argv[1] if len(sys.argv) > 1 else sys.stdin.read())
        return
    steps, done, fault = json.loads(Path("steps.json").read_bytes()), 0, None
    os.chdir(sys.argv[1])
    for step in steps:
        try:
            fault = _STEPS[step["do"]](step)
        except (OSError, ValueError, LookupError, TypeError) as error:
            fault = f"{type(error).__name__}: {error}"
        if fault is not None:
            break
        done += 1
    print(json.dumps({"done": done, "fault": fault}))


def _run(step: Mapping[str, Any]) -> str | None:
    """Run a command; return why it did not end as the log says, None where it did."""
    shell = ["bash", "-c", _SHELL, "bash", step["command"]]
    with open("/sandbox/printed", "w+b") as printed:
        done = subprocess.run(shell, cwd=step.get("folder"), stdin=subprocess.DEVNULL, stdout=printed,
                              stderr=subprocess.STDOUT, check=False)  # fmt: skip
        printed.seek(max(0, printed.tell() - 300))
        last = printed.read().decode("utf-8", "replace").strip()
    if step.get("keeps"):
        os.chdir(Path("/sandbox/folder").read_text().rstrip("\n"))
    if (done.returncode == 0) == (step["status"] in (0, None)):
        return None
    told = "no" if step["status"] is None else step["status"]
    return f"{step['command'][:100]!r} ended with status {done.returncode}, the log has {told}: {last}"


def _edit(step: Mapping[str, Any]) -> None:
    """Replace texts in a file; an empty old text begins a new one."""
    text = "" if step["edits"][0]["old_string"] == "" and not Path(step["path"]).exists() else _read(step["path"])
    for one in step["edits"]:
        old, times = one["old_string"], text.count(one["old_string"])
        if old == text == "":
            text = one["new_string"]
        elif not old or times == 0 or (times > 1 and not one.get("replace_all")):
            raise ValueError(f"{step['path']}: the old text stands {times} times: {old[:80]!r}")
        else:
            text = text.replace(old, one["new_string"])
    _write(step["path"], text)


def _cell(step: Mapping[str, Any]) -> None:
    """Replace, insert or delete a cell of a notebook."""
    book, mode, id = json.loads(_read(step["path"])), step.get("edit_mode") or "replace", step.get("cell_id")
    cells = book["cells"]
    place = next((n for n, cell in enumerate(cells) if id in (cell.get("id"), f"cell-{n}")), None)
    made = {"cell_type": step.get("cell_type") or "code", "source": step.get("new_source", "")}
    more: dict[str, Any] = {
        "metadata": {},
        **({"execution_count": None, "outputs": []} if made["cell_type"] == "code" else {}),
    }
    if place is None and (id is not None or mode != "insert"):
        raise ValueError(f"{step['path']}: there is no cell {id!r}")
    if mode == "insert":
        cells.insert(0 if place is None else place + 1, made | more)
    elif mode == "delete":
        del cells[place]
    else:
        cells[place] |= made | more if step.get("cell_type") else {"source": made["source"]}
    _write(step["path"], json.dumps(book, indent=1, ensure_ascii=False))


def patch(text: str) -> None:
    """Apply a patch of Codex's form; raise ValueError where lines are not there."""
    lines = text.strip().split("\n")
    if [lines[0].strip(), lines[-1].strip()] != ["*** Begin Patch", "*** End Patch"]:
        raise ValueError(f"no patch: {text[:80]!r}")
    starts = [n for n, line in enumerate(lines) if _FILE.match(line)]
    for start, end in zip(starts, [*starts[1:], len(lines) - 1], strict=True):
        kind, path = lines[start][4:].split(" File: ", 1)
        body = lines[start + 1 : end]
        if kind == "Delete":
            os.unlink(path)
        elif kind == "Add":
            _write(path, "".join(f"{line[1:]}\n" for line in body))
        else:
            moved = body.pop(0).removeprefix("*** Move to: ") if body[:1] and body[0].startswith("*** Move") else path
            text = _updated(path, _read(path), body)
            if moved != path:
                os.unlink(path)
            _write(moved, text)


def _updated(path: str, text: str, body: Sequence[str]) -> str:
    """Return a text with the chunks of a patch: lines taken and put in, each below a line that the chunk may name."""
    lines, at = text.removesuffix("\n").split("\n") if text else [], 0
    first, *more = re.split(r"^@@ ?(.*)\n", "".join(f"{line}\n" for line in body), flags=re.M)
    for context, chunk in zip(["", *more[::2]], [first, *more[1::2]], strict=True):
        told = [line for line in chunk.split("\n")[:-1] if line != "*** End of File"]
        old, new = ([line[1:] for line in told if line[:1] in ("", " ", sign)] for sign in "-+")
        if context:
            at = _found(path, lines, [context], at) + 1
        place = _found(path, lines, old, at, "*** End of File" in chunk) if old else len(lines)
        lines[place : place + len(old)] = new
        at = place + len(new) if old else at
    return "\n".join(lines) + "\n"


def _found(path: str, lines: Sequence[str], old: Sequence[str], start: int, final: bool = False) -> int:
    """Return where lines stand, from a place on: as they are, without spaces at their ends, on both sides."""
    start = max(start, len(lines) - len(old)) if final else start
    for form in (str, str.rstrip, str.strip):
        for place in range(start, len(lines) - len(old) + 1):
            if [*map(form, lines[place : place + len(old)])] == [*map(form, old)]:
                return place
    raise ValueError(f"{path}: there is nowhere {old[0][:80]!r} as the patch has it")


def _read(path: str) -> str:
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()


def _write(path: str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)


_STEPS = {"run": _run, "edit": _edit, "write": lambda step: _write(step["path"], step["content"]), "cell": _cell,
          "patch": lambda step: patch(step["input"])}  # fmt: skip

if __name__ == "__main__":
    main()
