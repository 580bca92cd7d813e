"""Printing to a terminal: foreign text cannot steer it, and no line holds a secret."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from rich.table import Table

from offline_agent.pipelines import build_prefs, inspect, status
from offline_agent.pipelines.entry import main
from offline_agent.runner import terminal as _terminal
from offline_agent.runner.arguments import resume_line
from offline_agent.runner.terminal import Progress

HOSTILE = "red \x1b[31m, half \ud800, turned \u202e, title \x1b]0;owned\x07, back \x08\x08, C1 \x9b2J, home \r"


def steers(text: str) -> bool:
    """Return whether text holds anything but printable characters, tabs and newlines."""
    return any(not letter.isprintable() and letter not in "\n\t" for letter in text)


def test_foreign_text_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("fault")
    table.add_row(HOSTILE)
    for draw in (lambda: _terminal.say(HOSTILE), lambda: _terminal.show(HOSTILE), lambda: _terminal.show(table),
                 lambda: _terminal.show(_terminal.copyable(HOSTILE)), lambda: Progress("x").say(HOSTILE)):  # fmt: skip
        draw()
        printed = "".join(capsys.readouterr())
        assert "red" in printed and not steers(printed)


def test_text_with_marks_of_rich_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("fault", title="[INST]")
    table.add_row("[/INST] log.ignore=[my_notes] :smile:")
    _terminal.show(table)
    printed = capsys.readouterr().out
    assert "[INST]" in printed and "[/INST] log.ignore=[my_notes] :smile:" in printed


def test_states_of_runs_are_shown_without_their_escapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "manifest.json").write_text('{"command": "build_prefs", "status": "failed", "error": "\\u001b[2J"}')
    assert status.main([f"run_dir={tmp_path}"]) == 0
    printed = "".join(capsys.readouterr())
    assert "ended with" in printed and not steers(printed)


def test_the_command_to_go_on_with_shows_no_secret() -> None:
    arguments = ["policy=server", "policy.api_key=sk-1", "policy.url=http://me:pw@host/v1", "--plan"]
    line = resume_line("evaluate", arguments, "r")
    assert "sk-1" not in line and "pw" not in line
    assert "policy.api_key" in line and "policy.url" in line and "run_dir=r" in line and "again" in line
    assert resume_line("evaluate", ["seed=1", "run_dir=old"], "r") == (
        "python -m offline_agent.pipelines.evaluate seed=1 run_dir=r"
    )


@pytest.mark.parametrize("path", ["x" * 300, "/".join(["y" * 200] * 25)])
@pytest.mark.parametrize("command", [partial(main, build_prefs.COMMAND), status.main, inspect.main])
def test_a_path_that_no_system_takes_is_told_without_a_traceback(
    command: Callable[[list[str]], int], path: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert command([path if command is inspect.main else f"run_dir={path}"]) in (1, 2)
    told = capsys.readouterr().err
    assert "Traceback" not in told and told.strip() and not list(tmp_path.iterdir())
