"""Progress on stderr: a bar on a terminal, a line every 30 s elsewhere."""

from __future__ import annotations

import sys
import threading
from time import monotonic
from typing import Any

from offline_agent.runner.terminal import plain, say

_BAR_SECONDS, _LINE_SECONDS = 0.1, 30.0


class Progress:
    """Thread-safe and cheap: what comes too soon after the last update is not drawn.

    Args:
        name: What is going on.
        total: How much there is to do; None where nobody knows.
    """

    def __init__(self, name: str, total: int | None = None) -> None:
        self.name = name
        self.total = total
        self.done = 0
        self._lock = threading.Lock()
        self._bar: Any = None
        self._task: Any = None
        self._begun = monotonic()
        self._drawn = self._begun
        self._terminal = sys.stderr.isatty()

    def start(self, total: int | None, name: str | None = None) -> None:
        """Begin a part of the work: how much there is, and what it is called."""
        with self._lock:
            self.total, self.done = total, 0
            self.name = name or self.name
            if self._bar is not None:
                self._bar.update(self._task, description=self.name, completed=0, total=total)

    def update(self, done: int, **figures: object) -> None:
        """Say how much is done.

        Args:
            done: Of `total`.
            figures: Named figures to show beside it.
        """
        now = monotonic()
        wait = _BAR_SECONDS if self._terminal else _LINE_SECONDS
        self.done = done
        if now - self._drawn < wait:
            return
        with self._lock:
            self._drawn = now
            words = "  ".join(f"{name.replace('_', ' ')} {value}" for name, value in figures.items())
            if self._terminal:
                self._draw(words)
            else:
                share = f" of {self.total}" if self.total is not None else ""
                say(f"{self.name}: {done}{share} after {now - self._begun:.0f} s  {words}")

    def say(self, text: str) -> None:
        """Print a line on stderr, above the bar where there is one."""
        with self._lock:
            if self._bar is not None:
                self._bar.console.print(plain(text), markup=False, highlight=False, soft_wrap=True)
            else:
                say(text)

    def close(self) -> None:
        """Take the bar away; may be called twice."""
        with self._lock:
            if self._bar is not None:
                self._bar.stop()
                self._bar = None

    def _draw(self, words: str) -> None:
        if self._bar is None:
            from rich import progress
            from rich.console import Console

            self._bar = progress.Progress(
                progress.TextColumn("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn(),
                progress.TimeElapsedColumn(), progress.TextColumn("{task.fields[words]}"),
                console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self._task = self._bar.add_task(self.name, total=self.total, words=words)
            self._bar.start()
        self._bar.update(self._task, completed=self.done, words=words)
