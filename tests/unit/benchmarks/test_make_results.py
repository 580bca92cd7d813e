"""The pages of results: what stands in docs/ is what the notes and the measured figures make."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_the_pages_are_those_that_the_script_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    script = importlib.import_module("make_results")
    monkeypatch.setattr(script, "DOCS", tmp_path)
    script.main()
    written = {page.relative_to(tmp_path): page.read_text() for page in tmp_path.rglob("*.md")}
    assert Path("results.md") in written
    assert written == {page: (ROOT / "docs" / page).read_text() for page in written}
