"""A git repository with a bug, and a row of SWE-bench's format for it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

RIGHT = "def double(x):\n    return 2 * x\n"
WRONG = "def double(x):\n    return 3 * x\n"
HIDDEN = """from pkg.core import double


def test_double():
    assert double(2) == 4


def test_zero():
    assert double(0) == 0
"""
OLD = "def test_old():\n    assert True\n"


def _git(folder: Path, *arguments: str) -> str:
    name = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    done = subprocess.run(["git", *name, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def written(folder: Path) -> dict[str, str]:
    """Write a repository with a bug, and a file with its row; return the arguments of `Repo` for it."""
    repository = folder / "someone__pkg"
    (repository / "pkg").mkdir(parents=True)
    files = {"pkg/__init__.py": "", "pkg/core.py": WRONG, "conftest.py": "", "tests/test_old.py": OLD}
    for path, text in files.items():
        (repository / path).parent.mkdir(exist_ok=True)
        (repository / path).write_text(text)
    _git(repository, "init", "-q")
    _git(repository, "add", "-A")
    _git(repository, "commit", "-qm", "one")
    base = _git(repository, "rev-parse", "HEAD")
    (repository / "pkg/core.py").write_text(RIGHT)
    gold = _git(repository, "diff") + "\n"
    _git(repository, "checkout", "-q", ".")
    (repository / "tests/test_new.py").write_text(HIDDEN)
    _git(repository, "add", "-A")
    test_patch = _git(repository, "diff", "--cached") + "\n"
    row = {
        "instance_id": "someone__pkg-1", "repo": "someone/pkg", "base_commit": base, "patch": gold,
        "test_patch": test_patch, "problem_statement": "double(2) is 6.",
        "FAIL_TO_PASS": json.dumps(["tests/test_new.py::test_double"]),
        "PASS_TO_PASS": ["tests/test_new.py::test_zero"],
    }  # fmt: skip
    (folder / "rows.jsonl").write_text(json.dumps(row))
    return {"test_path": str(folder / "rows.jsonl"), "repositories": str(folder)}
