"""Progress on stderr: a bar on a terminal, otherwise a line every 30 s."""

from __future__ import annotations

import sys
import threading
from time import monotonic
from typing import Any, TextIO, cast

from offline_agent.outgoing import shown
from offline_agent.runner.terminal import Lasting, say

_BAR_SECONDS, _LINE_SECONDS = 0.1, 30.0
_EARLY = 0.1  # share of a part from which the time left is told though no unit is finished yet


class Progress:
    """Progress of a command. Thread-safe; an update too soon after the last one is not drawn.

    Args:
        name: Name of the present part of the work.
        total: Number of units; None = not known.
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
        self._part: tuple[float, float, int] | None = None  # first update of the part: time, finished share, units
        self._terminal = sys.stderr.isatty()

    def start(self, total: int | None, name: str | None = None) -> None:
        """Begin a part of the work with `total` units."""
        with self._lock:
            self.total, self.done, self._part = total, 0, None
            self.name = name or self.name
            if self._bar is not None:
                self._bar.update(self._task, description=self.name, completed=0, total=total)

    def update(self, done: int, share: float | None = None, **figures: object) -> None:
        """Set the number of finished units.

        Args:
            done: Finished units, of `total`.
            share: Finished share of the part in [0, 1], for the time that is left, where it is better known than by
                the units; None = done / total.
            figures: Named figures to show; those that are None are left out.
        """
        now = monotonic()
        if share is None:
            share = done / self.total if self.total else 0.0
        if self._part is None:
            self._part = now, share, done  # what an earlier session did says nothing of this one's speed
        wait = _BAR_SECONDS if self._terminal else _LINE_SECONDS
        self.done = done
        if now - self._drawn < wait:
            return
        with self._lock:
            self._drawn = now
            known = {name: value for name, value in figures.items() if value is not None}
            words = "  ".join(f"{name.replace('_', ' ')} {value}" for name, value in known.items())
            left = self._left(now, share)
            if self._terminal:
                self._draw(f"{words}{left.replace(', ', '  ', 1)}")
            else:
                of = f" of {self.total}" if self.total is not None else ""
                say(f"{self.name}: {done}{of} after {now - self._begun:.0f} s{left}  {words}")

    def _left(self, now: float, share: float) -> str:
        """Return how long the part will take from now on, judged by this session alone; "" where it is not known."""
        begun, at_first, first = self._part or (now, share, self.done)
        gained = min(1.0, share) - at_first
        if gained <= 0 or now <= begun or share >= 1:
            return ""
        if self.done <= first and gained < _EARLY:  # what has begun says little of the speed before a unit is finished
            return ""
        seconds = (now - begun) * (1 - share) / gained
        if seconds < 100:
            return f", about {seconds:.0f} s left"
        return f", about {seconds / 60:.0f} min left" if seconds < 6000 else f", about {seconds / 3600:.1f} h left"

    def say(self, text: str) -> None:
        """Print a line on stderr, above the bar if there is one."""
        with self._lock:
            if self._bar is not None:
                self._bar.console.print(shown(text), markup=False, highlight=False, soft_wrap=True)
            else:
                say(text)

    def close(self) -> None:
        """Remove the bar; may be called twice."""
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
                console=Console(file=cast(TextIO, Lasting(sys.stderr))), transient=True,
            )  # fmt: skip
            self._task = self._bar.add_task(self.name, total=self.total, words=words)
            self._bar.start()
        self._bar.update(self._task, completed=self.done, words=words)
