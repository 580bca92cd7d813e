"""Parts that all benchmarks use: a table on stdout, the same figures as JSON, and the machine they were measured on."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Return what figures depend on: processor, cores this process may use, Python; load before the start."""
    names = [line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
    }


def run_default(pipeline: str) -> tuple[dict[str, Any], float]:
    """Run a pipeline as a whole command into a temporary directory, with the arguments this script was given.

    Returns:
        Its summary, and its wall-clock seconds. A command that fails ends this script with its status.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", f"offline_agent.pipelines.{pipeline}", *sys.argv[1:], f"run_dir={run_dir}"]
        started = time.perf_counter()
        done = subprocess.run([*command, f"tracking.uri=sqlite:///{folder}/mlflow.db"], check=False)
        wall = time.perf_counter() - started
        if done.returncode:
            sys.exit(done.returncode)
        return json.loads((run_dir / "summary.json").read_text()), wall


def write_result(
    name: str, rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any] | None = None, out: Path | None = None
) -> Path:
    """Print a table and the facts, and write both to `results/<name>.json`.

    Args:
        name: Of the benchmark.
        rows: One per line of the table; columns in the order in which they first come up.
        facts: What the figures rest on and how they compare with the goal; the machine is added.
        out: Another file to write to.
    """
    facts = {**(facts or {}), "machine": machine()}
    columns = list(dict.fromkeys(column for row in rows for column in row))
    cells = [[_text(row.get(column)) for column in columns] for row in rows]
    widths = [max(map(len, (column, *(line[i] for line in cells)))) for i, column in enumerate(columns)]
    print(f"\n{name}")
    for line in (columns, ["-" * width for width in widths], *cells):
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    for key, value in facts.items():
        print(f"{key}: {_text(value)}")
    path = out or RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"benchmark": name, "rows": [dict(row) for row in rows], "facts": facts}
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"written to {path}")
    return path


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
    return str(value)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:  # not Linux
        return []
