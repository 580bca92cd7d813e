"""From a class to a measured gain: the commands of docs/environments.md, their seconds, and what was gained.

Run `python benchmarks/walk.py` (about ten minutes on a core). The commands are read from the page and run as they are,
in a temporary folder that has `examples/` beside it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _common import write_result

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "environments.md"


def commands() -> Iterator[str]:
    """Yield the commands of the page's walk, its variable filled in."""
    blocks: list[str] = re.findall(r"```bash\n# walk\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = blocks
    name, _, value = block.splitlines()[0].removeprefix("export ").partition("=")
    for line in block.splitlines()[1:]:
        yield line.replace(f"${name}", value)


def run(folder: Path) -> Iterator[dict[str, Any]]:
    """Run the commands in a folder; yield a row for each."""
    (folder / "examples").symlink_to(ROOT / "examples")
    binaries = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for line in commands():
        started = time.perf_counter()
        subprocess.run(line, shell=True, check=True, cwd=folder, env={**os.environ, "PATH": binaries})
        yield {"command": _short(line), "seconds": round(time.perf_counter() - started), **_figures(folder, line)}


def _short(line: str) -> str:
    words = line.split()
    return f"{words[2].rpartition('.')[2]} {words[-1]}"


def _figures(folder: Path, line: str) -> dict[str, Any]:
    found = re.search(r"run_dir=(\S+)", line)
    if found is None:
        return {}
    summary = json.loads((folder / found[1] / "summary.json").read_text())
    if "modes" in summary:
        out = {"success": _percent(summary["modes"]["sampled"]["success"])}
        if "comparison" in summary:
            gain = summary["comparison"]["sampled"]["difference"]
            out["gain in points"] = " ".join(f"{100 * gain[part]:+.1f}" for part in ("mean", "low", "high"))
        return out
    if "data" in summary:
        return {"learnt from": summary["data"]["kept"]}
    return {"tool calls": summary["tool_calls"], "tasks solved": f"{summary['success']['best_of_search']:.0%}"}


def _percent(figures: dict[str, float]) -> str:
    return f"{100 * figures['mean']:.1f} % ({100 * figures['low']:.1f} to {100 * figures['high']:.1f})"


def main() -> None:
    """Run and record."""
    with tempfile.TemporaryDirectory() as folder:
        rows = list(run(Path(folder)))
    seconds = sum(row["seconds"] for row in rows)
    facts = {"goal": "at most 900 s", "seconds in all": seconds, "gain in points": "mean, and the 95 % interval"}
    write_result("walk", rows, facts)


if __name__ == "__main__":
    main()
