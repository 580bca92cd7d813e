"""Writes a run's episodes as logs: `acted.jsonl` with their calls, `seen.jsonl` with their observations alone.

Run `python benchmarks/_write_observations.py RUN FOLDER`. Words beside calls are left out of both, so that the two tell
of the same turns; the rows of `export format=inverse` are in FOLDER/inverse.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from offline_agent.pipelines import export


def episodes(run: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield for each branch its record with calls, and its record without."""
    for row in pq.read_table(run / "trajectories").to_pylist():
        messages = [json.loads(one) if isinstance(one, str) else one for one in row["messages"]]
        for message in messages:
            if message.get("tool_calls"):
                message["content"] = ""
        facts = {"tools": json.loads(row["tools"]), "task_id": row["task_id"], "success": int(bool(row["success"]))}
        start = next(place for place, message in enumerate(messages) if message["role"] == "assistant")
        seen = [message["content"] for message in messages[start:] if message["role"] == "tool"]
        yield {"messages": messages, **facts}, {"messages": messages[:start], "observations": seen, **facts}


if __name__ == "__main__":
    run, folder = map(Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    both = list(episodes(run))
    for name, records in zip(("acted", "seen"), zip(*both, strict=True), strict=True):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if export.main([f"run_dir={run}", "format=inverse", f"out={folder / 'inverse'}"]):
        raise SystemExit("the export failed")
    (folder / "manifest.json").write_text('{"status": "done"}')
