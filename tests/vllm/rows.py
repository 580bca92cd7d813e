"""The rows of a run against their certificates: `python -m tests.vllm.rows RUN_DIR TOKENIZER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from offline_agent.rendering.columns import check_row, check_tokens
from offline_agent.rendering.renderer import Renderer
from offline_agent.store.columns import PAIR_TABLES, known
from offline_agent.store.tables import read_table


def main(run_dir: str, tokenizer: str) -> int:
    """Check every row of every table; return 1 where the search made nothing."""
    renderer = Renderer.load(tokenizer)
    counts: dict[str, int] = {}
    for table in ("trajectories", "filtered", *PAIR_TABLES):
        rows = [row for path in sorted(Path(run_dir, table).glob("*.parquet")) for row in map(known, read_table(path))]
        for row in rows:
            check_row(renderer, row)
            assert check_tokens(renderer, row), f"a row of {table} has no token columns"
            if table == "trajectories" and row["origin"] in ("search", "rollout"):
                assert row["logps"] is not None and json.loads(row["certificate"])["sampled"] is True
        counts[table] = len(rows)
    trees = len(list(Path(run_dir, "trees").glob("*")))
    print(f"{trees} trees; rows checked against their certificates: {counts}")
    return int(not trees or not counts["trajectories"])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
