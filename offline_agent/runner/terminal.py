"""Terminal output: lines for the user on stderr, results on stdout."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain(text: str) -> str:
    """Return text with control characters spelled out (`\\x1b`), except tab and newline.

    Otherwise the output of tools and models could move the cursor, change colours or set the title of the terminal.
    """
    return _CONTROL.sub(lambda found: f"\\x{ord(found.group()):02x}", text)


def is_file(path: Path) -> bool:
    """Return whether a file exists; False for an invalid path (too long, or with a zero byte)."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def say(text: str) -> None:
    """Print a line for the user; a closed terminal is no error."""
    with contextlib.suppress(OSError):
        print(plain(text), file=sys.stderr, flush=True)


def copyable(text: str) -> Any:
    """Return text for `Command.show` whose lines are never wrapped, so that commands and paths can be copied."""
    from rich.text import Text

    return Text(text, no_wrap=True, overflow="ignore")


def show(what: Any) -> None:
    """Print a result: text unchanged, other objects with `rich`."""
    try:
        if isinstance(what, str):
            print(plain(what), flush=True)
            return
        from rich.console import Console

        width = None if sys.stdout.isatty() else int(os.environ.get("COLUMNS", "120"))
        Console(width=width, highlight=False).print(_Plain(what), crop=False)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, e.g. `head`, closed the pipe; the interpreter must not flush to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Plain:
    """A renderable whose texts pass through `plain`."""

    def __init__(self, drawn: Any) -> None:
        self._drawn = drawn

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        from rich.segment import Segment

        for text, style, control in console.render(self._drawn, options):
            yield Segment(text if control else plain(text), style, control)
