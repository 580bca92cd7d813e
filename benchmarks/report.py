"""The page of a run, report.html: seconds, bytes and memory beside the run it is of.

Run `python benchmarks/report.py` (about two minutes with two processors, mostly the search of 1,000 tasks), or with
`--run RUN_DIR ...` for runs that are there. Each page is written three times, in a process of its own; the seconds are
processor seconds of the fastest, which other programs on the machine change little, with its wall-clock seconds beside.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _common import write_result

SEARCH = ("policy=noisy", "search.simulations=8", "report=false", "tracking.uri=null")
_PROGRAM = """
import json, resource, sys, time
from pathlib import Path
from offline_agent.report.html.page import write
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
wall, cpu = time.perf_counter(), time.process_time()
done = write(Path(sys.argv[1]), Path(sys.argv[2]))
print(json.dumps({"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "bytes": done.size,
                  "shown": done.shown, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
"""


def measured(run_dir: Path, repeats: int) -> dict[str, Any]:
    """Return a row: the run, and the fastest of several pages of it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _PROGRAM, str(run_dir), f"{folder}/page.html"]
        made = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(repeats)]
    best = min(made, key=lambda one: float(one["cpu"]))
    manifest, summary = (json.loads((run_dir / name).read_text()) for name in ("manifest.json", "summary.json"))
    run = sum(summary["seconds"].get(name, 0.0) for name in ("search", "judging")) if "seconds" in summary else None
    return {
        "run": f"{manifest['command']}, {summary.get('tasks', '–')} tasks",
        "seconds (cpu)": round(best["cpu"], 2),
        "seconds (wall)": round(best["wall"], 2),
        "of the run": None if not run else round(best["wall"] / run, 4),
        "MB": round(best["bytes"] / 1e6, 2),
        "memory, MB": round(best["memory"] / 1e6),
        **{name: f"{shown} of {total}" for name, (shown, total) in best["shown"].items()},
    }


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", nargs="*", type=Path, default=[], help="runs that are there; none = search anew")
    parser.add_argument("--tasks", nargs="*", type=int, default=[10, 100, 1000], help="tasks of the searches")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = list(asked.run)
        for tasks in [] if runs else asked.tasks:
            runs.append(Path(folder) / f"search-{tasks}")
            command = [sys.executable, "-m", "offline_agent.pipelines.build_prefs", f"tasks.n={tasks}", *SEARCH]
            subprocess.run([*command, f"run_dir={runs[-1]}"], check=True, stdout=subprocess.DEVNULL)
        rows = [measured(run, asked.repeats) for run in runs]
    largest = max(row["MB"] for row in rows)
    facts = {"search": " ".join(SEARCH), "largest page, MB": largest, "goal, MB": 10, "goal met": largest < 10}
    write_result("report", rows, facts, asked.out)


if __name__ == "__main__":
    main()
