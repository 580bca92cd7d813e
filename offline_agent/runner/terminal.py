"""Terminal output: lines and progress on stderr, results on stdout.

Progress is a bar on a terminal, otherwise a line every 30 s, also where nothing is finished.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TextIO, cast

from offline_agent import crash_notes
from offline_agent.outgoing import shown

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment

_BAR_SECONDS, _LINE_SECONDS = 0.1, 30.0
_LOOK_SECONDS = 1.0  # between two looks whether the state must be shown again
_LATE = 2.0  # seconds from which what is waited for is told
_EARLY = 0.1  # share of a part from which the time left is told though no unit is finished yet


def is_file(path: Path) -> bool:
    """Return whether a file exists; False for an invalid path (too long, or with a zero byte)."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def say(text: str) -> None:
    """Print a line for the user; a closed terminal is no error."""
    try:
        print(shown(text), file=sys.stderr, flush=True)
    except OSError:  # the line is still in the buffer; without this, the flush at exit fails and the status is 120
        _discard(sys.stderr)


class Lasting:
    """A text stream that discards what is written once its terminal is closed; for `rich`, which would raise."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text; returns the number of characters, also of those discarded."""
        try:
            return self._stream.write(text)
        except OSError:
            _discard(self._stream)
            return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        try:
            self._stream.flush()
        except OSError:
            _discard(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def copyable(text: str) -> Any:
    """Return text for `Command.show` whose lines are never wrapped, so that commands and paths can be copied."""
    from rich.text import Text

    return Text(text, no_wrap=True, overflow="ignore")


def console(**options: Any) -> Console:
    """Return a console of `rich` that draws texts as they are: a log's `[/INST]` or `:smile:` is no markup."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, **options)


def show(what: Any) -> None:
    """Print a result: text unchanged, other objects with `rich`."""
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: its encoding may lack a character
        if isinstance(what, str):
            print(shown(what), flush=True)
            return
        width = None if sys.stdout.isatty() else int(os.environ.get("COLUMNS", "120"))
        console(width=width).print(_Plain(what), crop=False)
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO):  # the reader, e.g. `head`, closed the pipe; a closed terminal
            raise
        _discard(sys.stdout)


def _discard(stream: TextIO) -> None:
    """Send what a stream still holds, and all that follows, to the null device."""
    with contextlib.suppress(OSError):  # a stream that a test replaced has no file descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


class _Plain:
    """A renderable whose texts pass through `shown`."""

    def __init__(self, drawn: Any) -> None:
        self._drawn = drawn

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        from rich.segment import Segment

        for text, style, control in console.render(self._drawn, options):
            yield Segment(text if control else shown(text), style, control)


class Progress:
    """Progress of a command. Thread-safe; an update too soon after the last one is not drawn.

    After `begin`, or inside a `with` block, the last state is shown again where no update comes, with what is waited
    for (`crash_notes`).

    Args:
        name: Name of the present part of the work.
        total: Number of units; None = not known.
    """

    def __init__(self, name: str, total: int | None = None) -> None:
        self.name = name
        self.total = total
        self.done = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._bar: Any = None
        self._task: Any = None
        self._share = 0.0
        self._figures: dict[str, object] = {}
        self._begun = monotonic()
        self._drawn = self._begun
        self._part: tuple[float, float, int] | None = None  # first update of the part: time, finished share, units
        self._terminal = sys.stderr.isatty()

    def begin(self) -> Progress:
        """Show the state from now on without updates too, until `close`; return itself."""
        threading.Thread(target=self._repeat, daemon=True).start()
        return self

    def __enter__(self) -> Progress:
        return self.begin()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _repeat(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            with self._lock:
                if not self._ended.is_set():
                    self._show(monotonic())

    def start(self, total: int | None, name: str | None = None) -> None:
        """Begin a part of the work with `total` units."""
        with self._lock:
            self.total, self.done, self._part = total, 0, None
            self._share, self._figures = 0.0, {}
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
        with self._lock:
            if self._part is None:
                self._part = now, share, done  # what an earlier session did says nothing of this one's speed
            self.done, self._share, self._figures = done, share, figures
            self._show(now)

    def _show(self, now: float) -> None:
        """Draw the state if it is time to; the caller holds the lock."""
        if now - self._drawn < (_BAR_SECONDS if self._terminal else _LINE_SECONDS):
            return
        self._drawn = now
        known = {name: value for name, value in self._figures.items() if value is not None}
        words = "  ".join([*(f"{name.replace('_', ' ')} {value}" for name, value in known.items()), *_waits()])
        left = self._left(now, self._share)
        if self._terminal:
            self._draw(f"{words}{left.replace(', ', '  ', 1)}")
        else:
            of = f" of {self.total}" if self.total is not None else ""
            done = f" {self.done}{of} after" if of or self.done else ""
            say(f"{self.name}:{done} {now - self._begun:.0f} s{left}  {words}")

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
                self._drawn = monotonic()

    def close(self) -> None:
        """Remove the bar and show nothing more; may be called twice."""
        self._ended.set()
        with self._lock:
            if self._bar is not None:
                self._bar.stop()
                self._bar = None

    def _draw(self, words: str) -> None:
        if self._bar is None:
            from rich import progress

            text = partial(progress.TextColumn, markup=False)  # it does not ask the console
            self._bar = progress.Progress(
                text("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn(),
                progress.TimeElapsedColumn(), text("{task.fields[words]}"),
                console=console(file=cast(TextIO, Lasting(sys.stderr))), transient=True,
            )  # fmt: skip
            self._task = self._bar.add_task(self.name, total=self.total, words=words)
            self._bar.start()
        self._bar.update(self._task, completed=self.done, words=words)


def _waits() -> list[str]:
    """Return the call that is waited for longest, its seconds, and how many others there are."""
    calls = [] if crash_notes.notes is None else crash_notes.notes.waiting()
    late = [(text, seconds) for text, seconds in calls if seconds >= _LATE]
    more = f" and {len(late) - 1} more" if len(late) > 1 else ""
    return [f"under way: {late[0][0]} ({late[0][1]:.0f} s){more}"] if late else []
