"""The walk of docs/environments.md, from a class to a measured gain, runs as it is written; here with fewer tasks."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

from tests.helpers import forked

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
SMALLER = (
    (r"tasks\.n=200 tasks\.offset=200", "tasks.n=4 tasks.offset=30"), (r"tasks\.n=200", "tasks.n=12"),
    (r"tasks\.n=130", "tasks.n=4"), (r"optimizer\.epochs=8", "optimizer.epochs=4"),
    (r"simulations=16", "simulations=4"),
    (r"run_dir=", "tracking.uri=null run_dir="),
)  # fmt: skip


def test_from_a_class_to_a_measured_gain(tmp_path: Path) -> None:
    blocks: list[str] = re.findall(r"```bash\n(# walk\n.*?)```", PAGE, re.DOTALL)
    (script,) = blocks
    for pattern, fewer in SMALLER:
        assert re.search(pattern, script), f"the walk has no {pattern} any more"
        script = re.sub(pattern, fewer, script)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": forked.path()}
    done = subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "runs" / "random" / "summary.json").read_text())
    assert found["filtered"] > 0, "a random search solved no map"
    tested = json.loads((tmp_path / "runs" / "second-tested" / "summary.json").read_text())
    assert tested["comparison"]["sampled"]["tasks"] == 4
    # what a trainer printed last is the evaluation of its model in the environment that its rows are from
    assert "evaluate env=examples/frozen_lake.py:FrozenLake policy.model=runs/second/model" in done.stdout
