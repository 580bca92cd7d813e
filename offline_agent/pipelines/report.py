"""Report of a run: `python -m offline_agent.pipelines.report run_dir=RUN_DIR`.

Writes report.html into the run directory: one file with everything in it, for a browser, on a phone too, without a
network and, for its text, without scripts. Every command writes it at its end unless report=false was given; this one
writes it again, also for a run that is under way or was made by an earlier version. docs/report.md explains it.

Exit status: 0 written, 1 the run cannot be read or the disk refused, 2 the request was wrong (nothing was written).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from offline_agent.runner.arguments import read_keys, tool
from offline_agent.runner.terminal import say, show


def main(arguments: Sequence[str]) -> int:
    """Write the page of a run; returns the exit status."""
    return tool("report", __doc__ or "", arguments, _write)


def _write(arguments: Sequence[str]) -> None:
    from offline_agent.report.html.page import write

    (run_dir,), _ = read_keys(arguments, {})
    done = write(run_dir)
    for fault in done.faults:
        say(f"report: left out: {fault}")
    show(f"Written to {done.path}, {done.size / 1e6:.1f} MB")
    for name, (shown, total) in done.shown.items():
        show(f"  {name:13} {shown:,} of {total:,} are shown")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
