"""`audit` as a user runs it: the table, the JSON, the exit status; and the cheap checks before `build_prefs`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from offline_agent.envs.checks.registry import RULES
from offline_agent.pipelines import audit, build_prefs
from offline_agent.pipelines.entry import main
from offline_agent.pipelines.stages import search
from tests.helpers.report import page_of

ROOT = Path(__file__).parents[2]
QUIZ = "env=tests.helpers.audited_environments:"
FEW = ["checks=[semantic]", "tasks=4", "tracking.uri=null"]


def result(run_dir: Path) -> dict[str, Any]:
    return dict(json.loads((run_dir / "audit.json").read_text()))


def test_a_sound_environment_passes_and_a_leak_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(audit.COMMAND, [f"{QUIZ}Quiz", *FEW, f"run_dir={tmp_path / 'good'}"]) == 0
    assert "audit of Quiz: pass" in capsys.readouterr().out and result(tmp_path / "good")["verdict"] == "pass"
    assert main(audit.COMMAND, [f"{QUIZ}GoldInPrompt", *FEW, f"run_dir={tmp_path / 'bad'}"]) == 1
    shown = capsys.readouterr().out
    assert "audit of GoldInPrompt: fail" in shown and "semantic.no_solution_leakage/prompt" in shown
    manifest = json.loads((tmp_path / "bad" / "manifest.json").read_text())
    assert manifest["status"] == "done" and manifest["env"]["name"] == "GoldInPrompt"
    failed = [one for one in result(tmp_path / "bad")["results"] if one["status"] == "fail"]
    assert failed and all(one["evidence"] and one["rfc_008"] for one in failed)
    page = page_of(tmp_path / "bad")
    assert "audit of GoldInPrompt: fail" in page and "semantic.no_solution_leakage/prompt" in page


def test_leak_checks_without_a_gold_answer_are_told_last_and_answers_names_its_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Alone catches a passing audit of an environment whose leaks were never looked for."""
    few = [f"{QUIZ}UnnamedGold", "checks=[semantic.no_solution_leakage]", "tracking.uri=null"]
    assert main(audit.COMMAND, [*few, f"run_dir={tmp_path / 'blind'}"]) == 0
    last, page = capsys.readouterr().out.rstrip().splitlines()[-2:]
    assert page.startswith("report: ")
    assert last.startswith("3 leak checks were NOT made") and "(there are: country, city)" in last
    assert last.endswith("answers=[COLUMN]")
    assert main(audit.COMMAND, [*few, "answers=[city]", f"run_dir={tmp_path / 'told'}"]) == 1
    assert "NOT made" not in capsys.readouterr().out


def test_the_page_lists_every_check() -> None:
    page = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([a-z_]+\.[a-z_/]+)`", page, re.M)) == set(RULES)


@pytest.mark.parametrize(("off", "cls"), [(False, "GoldInPrompt"), (False, "Quiz"), (True, "GoldInPrompt")])
def test_build_prefs_audits_first_and_its_manifest_keeps_it(
    off: bool, cls: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_AUDIT_SECONDS", 60.0)  # a busy machine leaves checks out
    keys = [f"{QUIZ}{cls}", "policy=noisy", "tasks.n=2", "search.simulations=4", "tracking.uri=null"]
    assert main(build_prefs.COMMAND, [*keys, *["audit=off"] * off, f"run_dir={tmp_path / 'run'}"]) == 0
    said = capsys.readouterr().err
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    if off:
        assert "audit" not in manifest and "audit:" not in said
        return
    leaks = cls == "GoldInPrompt"
    assert ("semantic.no_solution_leakage/prompt fails: the gold answer is shown in 2 of 2" in said) == leaks
    assert ("pipelines.audit" in said) == leaks and manifest["audit"]["verdict"] == ("fail" if leaks else "pass")
