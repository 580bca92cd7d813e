"""What a stopped run has kept, in words: trees, rows, updates, checkpoints."""

from __future__ import annotations

from pathlib import Path


def saved(run_dir: Path) -> str:
    """Return a sentence on what a run directory holds now; it reads names and sizes alone.

    Args:
        run_dir: The run directory.
    """
    parts = []
    trees = sum(1 for _ in (run_dir / "trees").glob("*.json.gz"))
    if trees:
        parts.append(f"{trees:,} finished {'tree' if trees == 1 else 'trees'}")
    checkpoints = [
        int(number)
        for path in (run_dir / "checkpoints").glob("checkpoint-*")
        if (number := path.name.rpartition("-")[2]).isdigit()
    ]
    if checkpoints:
        parts.append(f"the checkpoint of update {max(checkpoints):,}")
    tables = sorted({path.parent.name for path in run_dir.glob("*/*.parquet")})
    if tables:
        parts.append(f"{', '.join(tables)}")
    stages = sum(1 for _ in run_dir.glob("iteration-*/*/summary.json"))
    if stages:
        parts.append(f"{stages} finished {'stage' if stages == 1 else 'stages'}")
    size = sum(path.stat().st_size for path in (run_dir / "events").glob("*.jsonl"))
    if size:
        parts.append(f"the event log of what was under way ({_size(size)})")
    return f"Saved in {run_dir}: {'; '.join(parts) or 'the configuration; nothing was finished'}."


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
