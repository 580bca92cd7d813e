"""The pages of results: what stands in docs/ is what the notes and the measured figures make."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RETIRED = "siblings|rerank|misranked|observations|recovery"  # benchmarks/notes/arms.md says so


def test_the_pages_are_those_that_the_script_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    script = importlib.import_module("make_results")
    monkeypatch.setattr(script, "DOCS", tmp_path)
    script.main()
    written = {page.relative_to(tmp_path): page.read_text() for page in tmp_path.rglob("*.md")}
    assert Path("results.md") in written
    assert written == {page: (ROOT / "docs" / page).read_text() for page in written}


def test_commands_of_the_notes_have_options_and_arms_that_are_there() -> None:
    """Alone catches an option or an arm that a note tells to give, and that was renamed or taken out."""
    shared = "".join(file.read_text() for file in (ROOT / "benchmarks").glob("_*.py"))
    found = 0
    for note in sorted((ROOT / "benchmarks" / "notes").glob("*.md")):
        for command in re.findall(r"`([^`]*python benchmarks/[^`]*)`", re.sub(r"\s+", " ", note.read_text())):
            script = re.findall(r"benchmarks/(\w+)\.py", command)[0]
            source = (ROOT / "benchmarks" / f"{script}.py").read_text() + shared
            given = [f'"{word}"' for word in re.findall(r" (--[a-z][a-z-]*)", command)]
            given += re.findall(r'"[^"]+"', command) if "--arms" in command else []
            assert [one for one in given if one not in source and not re.search(RETIRED, one)] == [], command
            found += len(given)
    assert found > 50
