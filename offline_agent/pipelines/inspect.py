"""A run on the terminal: `python -m offline_agent.pipelines.inspect RUN_DIR [tree=TASK | pair=N | ...]`.

Without a key: what the run is, what it holds, and how to look at it. The output is plain text, for a pipe as well.

  tree=TASK [node=N]    a search tree, a node a line; or one node: conversation, proposals, verdict, pairs
  pair=N                a pair; kind=KIND and task=TASK restrict them, order=doubtful puts the least sure first
  trajectory=TASK       what was done at a task
  search=TEXT [n=20]    where a text occurs in messages and verdicts
  full=true             texts whole instead of a line each

report.html in the run directory shows the same in a browser.

Exit status: 0 shown, 1 a file cannot be read, 2 the request was wrong.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from offline_agent.errors import ConfigError
from offline_agent.runner.arguments import FLAG, TEXT, WHOLE, one_of, read_keys, tool
from offline_agent.runner.terminal import say, show

_VIEWS = ("tree", "pair", "trajectory", "search")
_KEYS = {
    "tree": TEXT, "pair": WHOLE, "trajectory": TEXT, "search": TEXT, "node": WHOLE,
    "kind": one_of("step", "trajectory", "hindsight", "minimal"), "task": TEXT, "order": one_of("table", "doubtful"),
    "n": WHOLE, "full": FLAG,
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Print a part of a run; returns the exit status."""
    return tool("inspect", __doc__ or "", arguments, _show)


def _show(arguments: Sequence[str]) -> None:
    (run_dir,), keys = read_keys(arguments, _KEYS)
    if len(views := [name for name in _VIEWS if name in keys]) > 1:
        raise ConfigError(f"give one of {', '.join(_VIEWS)}, got {', '.join(views)}")
    for line in _lines(run_dir, keys):
        show(line)


def _lines(run_dir: Path, keys: Mapping[str, Any]) -> Iterator[str]:
    from offline_agent.report import inspection

    run = inspection.open_run(run_dir)
    short = inspection.Shortener(keys.get("full") == "true", shutil.get_terminal_size((120, 24)).columns)
    if "tree" in keys:
        yield from inspection.tree(run, keys["tree"], keys.get("node"), short)
    elif "pair" in keys:
        doubtful = keys.get("order") == "doubtful"
        yield from inspection.pair(run, keys["pair"], keys.get("kind"), keys.get("task"), doubtful, short)
    elif "trajectory" in keys:
        yield from inspection.trajectories(run, keys["trajectory"], short)
    elif "search" in keys:
        yield from inspection.search(run, keys["search"], keys.get("n", 20), short)
    else:
        yield from inspection.overview(run)
    for fault in run.faults:
        say(f"inspect: left out: {fault}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
