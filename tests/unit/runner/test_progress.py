from __future__ import annotations

import io
import itertools
import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from offline_agent import crash_notes
from offline_agent.envs.base import EnvSpec
from offline_agent.records import Task
from offline_agent.runner import terminal as _progress
from offline_agent.runner.terminal import Progress
from offline_agent.search.restore import Restorer
from offline_agent.training.settings import DpoSettings
from tests.helpers.training import dpo_trainer, pairs, step


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of a progress line, to be set."""
    clock = [0.0]
    monkeypatch.setattr(_progress, "monotonic", lambda: clock[0])
    return clock


def test_elsewhere_than_on_a_terminal_there_is_a_line_now_and_then(
    now: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress("build_prefs")
    progress.start(24, "searching")
    for done in range(25):
        now[0] = 5.0 * done
        progress.update(done, tool_calls=done * 10)
    progress.say("that is all")
    progress.close()
    out, err = capsys.readouterr()
    assert out == "" and err.splitlines() == [
        "searching: 6 of 24 after 30 s, about 90 s left  tool calls 60",
        "searching: 12 of 24 after 60 s, about 60 s left  tool calls 120",
        "searching: 18 of 24 after 90 s, about 30 s left  tool calls 180",
        "searching: 24 of 24 after 120 s  tool calls 240",
        "that is all",
    ]


def test_the_time_left_is_judged_by_this_session_and_the_share_that_is_known_best(
    now: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress("build_prefs")
    progress.start(100, "searching")
    progress.update(40)  # of an earlier session
    now[0] = 60.0
    progress.update(50)
    now[0] = 120.0
    progress.update(50, share=0.5001, critic=None)
    progress.start(10, "mining")
    now[0] = 600.0
    progress.update(0)
    now[0] = 4200.0
    progress.update(1)
    assert capsys.readouterr().err.splitlines() == [
        "searching: 50 of 100 after 60 s, about 5 min left  ",
        "searching: 50 of 100 after 120 s, about 10 min left  ",
        "mining: 0 of 10 after 600 s  ",
        "mining: 1 of 10 after 4200 s, about 9.0 h left  ",
    ]


def test_no_time_left_is_told_before_a_finished_unit_or_a_tenth(
    now: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress("build_prefs")
    for total, steps in ((20, ((0, 0.05), (0, 0.1))), (30, ((0, 0.05), (1, 0.06)))):
        progress.start(total, "searching")
        progress.update(0, share=0.0)
        for done, share in steps:
            now[0] += 30.0
            progress.update(done, share=share)
    told = [("left" in line) for line in capsys.readouterr().err.splitlines()]
    assert told == [False, True, False, True]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_there_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = _Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(_progress, "_BAR_SECONDS", -1.0)
    progress = Progress("build_prefs")
    progress.start(4, "searching")
    progress.update(2, pairs=7)
    progress.start(3, "mining")
    progress.update(1, pairs="7 [/INST]")
    progress.say("a [word] for the user")
    progress.close()
    progress.close()
    for text in ("searching", "mining", "1/3", "pairs 7 [/INST]", "a [word] for the user"):
        assert text in screen.getvalue()


class _Slow:
    """An environment whose reset lasts until it is told that it is waited for."""

    said = threading.Event()

    def reset(self, n: int) -> str:
        """Begin."""
        assert self.said.wait(60)
        return "begun"


def _slow_reset(tmp_path: Path, said: threading.Event) -> None:
    _Slow.said = said
    Restorer(EnvSpec(_Slow), Task("task 3", "train", {"n": 3})).open()


def _slow_update(tmp_path: Path, said: threading.Event) -> None:
    trainer = dpo_trainer(tmp_path, pairs(6), DpoSettings(), tokens=64)
    score, calls = trainer.score, itertools.count()

    def slow(*given: Any, **more: Any) -> Any:
        assert next(calls) != 1 or said.wait(60)  # in the second pack
        return score(*given, **more)

    trainer.score = slow
    step(trainer)


@pytest.mark.parametrize(
    ("work", "told"),
    [
        (_slow_reset, r"build_prefs: \d+ s  under way: reset of _Slow, task task 3 \(\d+ s\)"),
        (_slow_update, r"build_prefs: \d+ s  under way: update 1: [1-9]\d* of \d+ tokens \(\d+ s\)"),
    ],
)
def test_what_is_waited_for_is_said_though_nothing_is_finished(
    work: Any, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, lines = threading.Event(), []

    def hear(text: str) -> None:
        if re.fullmatch(told, text):
            lines.append(text)
            said.set()

    monkeypatch.setattr(_progress, "say", hear)
    for name, seconds in (("_LOOK_SECONDS", 0.001), ("_LINE_SECONDS", 0.0), ("_LATE", 0.0)):
        monkeypatch.setattr(_progress, name, seconds)
    monkeypatch.setattr(crash_notes, "notes", crash_notes.Notes())
    with Progress("build_prefs"):
        work(tmp_path, said)
    assert lines and crash_notes.notes is not None and not crash_notes.notes.waiting()
