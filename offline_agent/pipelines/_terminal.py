"""What a command prints: lines for the user on stderr, results on stdout."""

from __future__ import annotations

import os
import sys
from typing import Any


def say(text: str) -> None:
    """Print a line for the user."""
    print(text, file=sys.stderr, flush=True)


def copyable(text: str) -> Any:
    """Return text for `Command.show` whose lines are never wrapped, so that commands and paths can be copied."""
    from rich.text import Text

    return Text(text, no_wrap=True, overflow="ignore")


def show(what: Any) -> None:
    """Print a result: text as it is, anything else as `rich` draws it."""
    try:
        if isinstance(what, str):
            print(what, flush=True)
            return
        from rich.console import Console

        width = None if sys.stdout.isatty() else int(os.environ.get("COLUMNS", "120"))
        Console(width=width, highlight=False).print(what, crop=False)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, e.g. `head`, has enough; keep the interpreter from trying again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
