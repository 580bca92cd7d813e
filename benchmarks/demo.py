"""The embedded default as a whole command: wall time against its 90 s, and what it leaves.

Run `python benchmarks/demo.py`. It runs `python -m offline_agent.pipelines.build_prefs` into a temporary directory.
"""

from __future__ import annotations

from _common import run_default, write_result


def main() -> None:
    """Run and record."""
    summary, wall = run_default("build_prefs")
    success, pairs = summary["success"], summary["pairs"]
    write_result(
        "demo",
        [
            {
                "wall s": round(wall, 1),
                "tasks": summary["tasks"],
                "simulations": summary["simulations"],
                "tokens sampled": summary["generated"],
                "plain, sampled": f"{success['plain_sampled']:.0%}",
                "plain, greedy": f"{success['plain_greedy']:.0%}",
                "best of search": f"{success['best_of_search']:.0%}",
                "pairs": summary["pairs_total"],
                **{f"of them {kind}": n for kind, n in pairs.items()},
            }
        ],
        {"goal": "at most 90 s on 2 cores, at least 50 pairs of at least three kinds", "seconds": summary["seconds"]},
    )


if __name__ == "__main__":
    main()
