"""The default of `iterate` as a whole command: wall time against its 5 minutes, and what it gains on held-out tasks.

Run `python benchmarks/loop_demo.py`. It runs `python -m offline_agent.pipelines.iterate` into a temporary directory:
one iteration over 100 tasks, judged on 50 validation tasks; one seed, so a first look (see arms.py).
"""

from __future__ import annotations

from typing import Any

from _common import run_default, write_result


def main() -> None:
    """Run and record."""
    summary, wall = run_default("iterate")
    first = summary["iterations"][0]
    rows = [{"model": "at the start", "held-out success": _percent(summary["start"])}]
    for name, candidate in first["candidates"].items():
        gate = "promoted" if name == first["promoted"] else "passed" if candidate["passed"] else "refused"
        rows.append({"model": f"after {name}", "held-out success": _percent(candidate["success"]), "gate": gate})
    write_result(
        "loop_demo",
        rows,
        {
            "goal": "at most 5 minutes on 2 cores",
            "wall seconds": round(wall, 1),
            "pairs": first["pairs_total"],
            "verified successes": first["filtered"],
            "seconds of the stages": first["seconds"],
        },
    )


def _percent(success: dict[str, Any]) -> str:
    return f"{success['mean']:.1%} ({success['low']:.1%} to {success['high']:.1%})"


if __name__ == "__main__":
    main()
