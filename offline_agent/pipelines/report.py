"""Report of a run: `python -m offline_agent.pipelines.report run_dir=RUN_DIR [out=FILE]`.

Writes report.html into the run directory: one file with everything in it, for a browser, on a phone too, without a
network and, for its text, without scripts. Every command writes it at its end unless report=false was given; this one
writes it again, also for a run that is under way or was made by an earlier version. docs/report.md explains it.

Exit status: 0 written, 1 the run cannot be read or the disk refused, 2 the request was wrong (nothing was written).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from offline_agent.errors import ConfigError, OfflineAgentError
from offline_agent.runner.terminal import is_file, say, show

if TYPE_CHECKING:
    from offline_agent.config.report import ReportConfig


def main(arguments: Sequence[str]) -> int:
    """Write the page of a run; returns the exit status."""
    from offline_agent.config.documentation import key_table
    from offline_agent.config.keys import keys
    from offline_agent.config.report import ReportConfig
    from offline_agent.report.html.page import write

    if "--help" in arguments or "-h" in arguments:
        show(f"{__doc__}\n{key_table(keys(ReportConfig))}")
        return 0
    try:
        config = _checked(arguments)
        done = write(Path(config.run_dir), None if config.out is None else Path(config.out))
    except ConfigError as error:
        say(f"report: {error}")
        return 2
    except OfflineAgentError as error:
        say(f"report: {error}")
        return 1
    for fault in done.faults:
        say(f"report: left out: {fault}")
    show(f"Written to {done.path}, {done.size / 1e6:.1f} MB")
    for name, (shown, total) in done.shown.items():
        show(f"  {name:13} {shown:,} of {total:,} are shown")
    return 0


def _checked(arguments: Sequence[str]) -> ReportConfig:
    """Return the request; raises ConfigError."""
    from offline_agent.config.loading import load
    from offline_agent.config.report import ReportConfig

    config, faults = load(ReportConfig, overrides=arguments), []
    if not config.run_dir:
        faults.append("run_dir: name the run, run_dir=RUN_DIR")
    elif not is_file(Path(config.run_dir) / "manifest.json"):
        faults.append(f"run_dir: {config.run_dir} is no run directory: it has no manifest.json")
    if config.out is not None and not (Path(config.out).parent.is_dir() and not Path(config.out).is_dir()):
        faults.append(f"out: got {config.out!r}, allowed: a file in a folder that is there, e.g. out=report.html")
    if faults:
        raise ConfigError(faults)
    return config


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
