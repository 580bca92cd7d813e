"""Success of the embedded model on the shop with compacted histories and with sub-agents, that it never learnt.

Run `python benchmarks/parts.py`: `evaluate` of 60 validation tasks, four sampled attempts each, for `env=shop` and for
`env=parts:shop`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from _common import write_result

SETTINGS = {
    "one history": ["env=shop"],
    "a limit that is never reached": ["env=parts:shop", "env.turns=30"],
    "a summary after 8 turns": ["env=parts:shop", "env.turns=8"],
    "a summary after 4 turns": ["env=parts:shop", "env.turns=4"],
    "sub-agents": ["env=parts:shop", "env.delegate=true"],
}


def before_compaction(run: Path) -> Iterator[dict[str, Any]]:
    """Yield the turns that were taken for summaries, as messages."""
    for row in pq.read_table(run / "trajectories").to_pylist():
        for turn, answer in pairwise(map(json.loads, row["messages"])):
            if answer.get("anew") == "compact":
                yield turn


def main() -> None:
    """Evaluate, print and write."""
    rows = []
    for name, keys in SETTINGS.items():
        with tempfile.TemporaryDirectory() as folder:
            how = ["tasks.split=validation", "tasks.n=60", "attempts=4", "greedy=false", "tracking.uri=null"]
            command = [sys.executable, "-m", "offline_agent.pipelines.evaluate", *keys, *how, f"run_dir={folder}/run"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            found = json.loads(Path(folder, "run", "summary.json").read_text())["modes"]["sampled"]
            summaries = [bool(turn.get("tool_calls")) for turn in before_compaction(Path(folder, "run"))]
        success = found["success"]
        interval = f"{success['low']:.1%} to {success['high']:.1%}"
        rows.append({"histories": name, "success": f"{success['mean']:.1%}", "95 %": interval,
                     "summaries": len(summaries), "of these calls": sum(summaries)})  # fmt: skip
        print(rows[-1], file=sys.stderr, flush=True)
    write_result("parts", rows)


if __name__ == "__main__":
    main()
