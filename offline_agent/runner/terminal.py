"""Terminal output: lines for the user on stderr, results on stdout."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from offline_agent.outgoing import shown

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment

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


def show(what: Any) -> None:
    """Print a result: text unchanged, other objects with `rich`."""
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: its encoding may lack a character
        if isinstance(what, str):
            print(shown(what), flush=True)
            return
        from rich.console import Console

        width = None if sys.stdout.isatty() else int(os.environ.get("COLUMNS", "120"))
        Console(width=width, highlight=False).print(_Plain(what), crop=False)
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
