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

from offline_agent.errors import ConfigError, DataError, did_you_mean
from offline_agent.runner.terminal import is_file, say, show

_VIEWS = ("tree", "pair", "trajectory", "search")
_KEYS = (*_VIEWS, "node", "kind", "task", "order", "n", "full")
_KINDS = ("step", "trajectory", "hindsight", "minimal")


def main(arguments: Sequence[str]) -> int:
    """Print a part of a run; returns the exit status."""
    if "--help" in arguments or "-h" in arguments:
        print(__doc__)
        return 0
    try:
        run_dir, keys = _parse(arguments)
        for line in _lines(run_dir, keys):
            show(line)
    except ConfigError as error:
        say(f"inspect: {error}")
        return 2
    except DataError as error:
        say(f"inspect: {error}")
        return 1
    return 0


def _parse(arguments: Sequence[str]) -> tuple[Path, dict[str, str]]:
    named = [argument for argument in arguments if "=" in argument and argument.partition("=")[0] in _KEYS]
    keys = dict(argument.split("=", 1) for argument in named)
    others = [argument for argument in arguments if argument not in named]  # a run directory may be called `tree`
    places = [other.removeprefix("run_dir=") for other in others if "=" not in other.removeprefix("run_dir=")]
    unknown = [other.partition("=")[0] for other in others if "=" in other.removeprefix("run_dir=")]
    faults = [f"{name}: unknown key, allowed: {', '.join(_KEYS)}.{did_you_mean(name, _KEYS)}" for name in unknown]
    if len(places) != 1:
        faults.append(f"name one run directory, got {len(places)}")
    elif not is_file(Path(places[0]) / "manifest.json"):
        faults.append(f"{places[0]}: no run directory: it has no manifest.json")
    if sum(name in keys for name in _VIEWS) > 1:
        faults.append(f"give one of {', '.join(_VIEWS)}, got {', '.join(name for name in _VIEWS if name in keys)}")
    for name in ("node", "pair", "n"):
        if name in keys and not (keys[name].isascii() and keys[name].isdigit()):
            faults.append(f"{name}: got {keys[name]!r}, allowed: a whole number, 0 or more")
    for name, allowed in (("kind", _KINDS), ("order", ("table", "doubtful")), ("full", ("true", "false"))):
        if name in keys and keys[name] not in allowed:
            near = did_you_mean(keys[name], allowed)
            faults.append(f"{name}: got {keys[name]!r}, allowed: {', '.join(allowed)}.{near}")
    if faults:
        raise ConfigError(faults)
    return Path(places[0]), keys


def _lines(run_dir: Path, keys: Mapping[str, str]) -> Iterator[str]:
    from offline_agent.report import inspection

    run = inspection.open_run(run_dir)
    short = inspection.Shortener(keys.get("full") == "true", shutil.get_terminal_size((120, 24)).columns)
    if "tree" in keys:
        node = keys.get("node")
        yield from inspection.tree(run, keys["tree"], None if node is None else int(node), short)
    elif "pair" in keys:
        doubtful = keys.get("order") == "doubtful"
        yield from inspection.pair(run, int(keys["pair"]), keys.get("kind"), keys.get("task"), doubtful, short)
    elif "trajectory" in keys:
        yield from inspection.trajectories(run, keys["trajectory"], short)
    elif "search" in keys:
        yield from inspection.search(run, keys["search"], int(keys.get("n", "20")), short)
    else:
        yield from inspection.overview(run)
    for fault in run.faults:
        say(f"inspect: left out: {fault}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
