"""The embedded model on the shop's validation split: sampled, greedy, within k samples, and with search.

Run `python benchmarks/default_model.py` (`--tasks`, `--search-tasks`). The validation split is never trained on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from _common import write_result

import offline_agent

sys.path.insert(0, str(Path(__file__).parents[1]))  # for tools, here and in the scripts that import this one
from tools.default_model.measure import measure  # noqa: E402

MODEL = Path(offline_agent.__file__).parent / "assets" / "default_model"


def with_search(tasks: int, simulations: int) -> dict[str, float]:
    """Return the success figures of a search over validation tasks."""
    with tempfile.TemporaryDirectory() as folder:
        keys = ["tasks.split=validation", f"tasks.n={tasks}", f"search.simulations={simulations}", "tracking.uri=null"]
        command = [sys.executable, "-m", "offline_agent.pipelines.build_prefs", *keys, f"run_dir={folder}/run"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        success: dict[str, float] = json.loads(Path(folder, "run", "summary.json").read_text())["success"]
        return success


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--search-tasks", type=int, default=100)
    parser.add_argument("--simulations", type=int, default=32)
    arguments = parser.parse_args()
    figures = measure(MODEL, "validation", arguments.tasks, arguments.samples)
    search = with_search(arguments.search_tasks, arguments.simulations)
    rows = [{"policy": mode, **values} for mode, values in figures.items() if isinstance(values, dict)]
    name = f"best of a search, {arguments.simulations} simulations, {arguments.search_tasks} tasks"
    rows.append({"policy": name, "success": search["best_of_search"]})
    facts = {name: value for name, value in figures.items() if not isinstance(value, dict)}
    write_result("default_model", rows, {**facts, "plain sampled on the search's tasks": search["plain_sampled"]})


if __name__ == "__main__":
    main()
