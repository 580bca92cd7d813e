"""The embedded packages: their files, and the bugs that mutation put into them.

A package is one text: `==== PATH` begins a file. Files below `hidden/` are its hidden tests. `bugs.jsonl` lists single
lines that mutation changed (`mutation`), each with the hidden tests that fail by it. After a change to a
package: `python -m offline_agent_environments.repo.bundles` writes the list anew.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from offline_agent.judges.code import TestRun
from offline_agent_environments.mutation import mutant, mutants

PACKAGES = ("gridpath", "ledger", "schedule", "textkit")
_FOLDER = resources.files("offline_agent_environments.repo") / "packages"
_SEED = 5


@cache
def package(name: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the files of a package and its hidden test files: path → text."""
    text = (_FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    files: dict[str, str] = {}
    for part in text.split("==== ")[1:]:
        path, _, content = part.partition("\n")
        files[path] = content
    hidden = {path: content for path, content in files.items() if path.startswith("hidden/")}
    return {path: content for path, content in files.items() if path not in hidden}, hidden


@cache
def bugs() -> tuple[dict[str, Any], ...]:
    """Return the bugs: `package`, `path`, `line` (from 1), `right`, `wrong`, `must_pass`; their order is random."""
    return tuple(json.loads(line) for line in (_FOLDER / "bugs.jsonl").read_text(encoding="utf-8").splitlines())


def broken(bug: dict[str, Any]) -> dict[str, str]:
    """Return the files of a package with a bug in it."""
    files = dict(package(bug["package"])[0])
    lines = files[bug["path"]].splitlines(keepends=True)
    lines[bug["line"] - 1] = bug["wrong"] + "\n"
    files[bug["path"]] = "".join(lines)
    return files


def hidden_results(name: str, files: dict[str, str]) -> dict[str, bool]:
    """Return which hidden tests of a package pass on the given files, by `module::function`.

    Raises:
        SandboxError: The sandbox does not work.
    """
    hidden = package(name)[1]
    modules = {Path(path).stem: text for path, text in hidden.items()}
    kept = {path: text.encode() for path, text in files.items() if not path.startswith("tests/")}
    with TestRun(None, kept) as run:
        return {outcome.test: outcome.passed for outcome in run.grade_files(modules, [name])}


def _found(name: str) -> Iterator[dict[str, Any]]:
    """Yield the mutants of a package that change one line and fail some hidden test, but not all."""
    files = package(name)[0]
    right = hidden_results(name, files)
    assert all(right.values()), right
    for path, text in sorted(files.items()):
        if not path.startswith(f"{name}/"):
            continue
        before = text.splitlines()
        for number in range(mutants(text)):
            after = mutant(text, number).splitlines()
            changed = [n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b]
            if len(before) != len(after) or len(changed) != 1:
                continue
            line = changed[0]
            bug = {"package": name, "path": path, "line": line + 1, "right": before[line], "wrong": after[line]}
            results = hidden_results(name, broken(bug))
            failing = sorted(test for test in right if not results.get(test))
            if 0 < len(failing) <= 4:
                yield {**bug, "must_pass": failing}


def _write() -> None:
    found = {json.dumps(bug): None for name in PACKAGES for bug in _found(name)}
    lines = list(found)
    random.Random(_SEED).shuffle(lines)
    path = Path(str(_FOLDER / "bugs.jsonl"))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} bugs in {path}")


if __name__ == "__main__":
    _write()
