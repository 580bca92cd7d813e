"""Diagnosis of this machine: `python -m offline_agent.pipelines.doctor [url=URL ...] [run_dir=FOLDER]`.

Shows versions, devices, Java, bubblewrap, Chromium, Slurm, servers and disk, and what each lack costs. It changes
nothing. url= asks an OpenAI-compatible server for its models; it may be given several times.

Exit status: 0 commands can run (some may be out of reach), 1 something they need is broken, 2 the request was wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from offline_agent.errors import ConfigError, did_you_mean
from offline_agent.outgoing import masked
from offline_agent.runner.arguments import tool
from offline_agent.runner.pipeline import DONE, FAILED
from offline_agent.runner.terminal import show

_MARKS = {"ok": "ok   ", "lack": "lack ", "fault": "FAULT"}


def main(arguments: Sequence[str]) -> int:
    """Print the diagnosis; returns the exit status."""
    return tool("doctor", __doc__ or "", arguments, _diagnose)


def _diagnose(arguments: Sequence[str]) -> int:
    from offline_agent.runner.diagnosis import diagnose

    given = [argument.partition("=") for argument in arguments]
    unknown = [name for name, equals, value in given if name not in ("url", "run_dir") or not equals or not value]
    if unknown:
        near = did_you_mean(unknown[0], ("url", "run_dir"))
        raise ConfigError(f"{', '.join(unknown)}: unknown, allowed: url=URL, run_dir=FOLDER.{near}")
    urls = [value for name, _, value in given if name == "url"]
    folders = [Path(value) for name, _, value in given if name == "run_dir"]
    faults = lacks = 0
    for finding in diagnose(urls, folders[-1] if folders else None):
        faults += finding.state == "fault"
        lacks += finding.state == "lack"
        show(f"{_MARKS[finding.state]} {masked(finding.part):18} {finding.found}")
        if finding.cost:
            show(f"{'':24} costs: {finding.cost}")
    show(f"{faults} faults, {lacks} lacks" if faults or lacks else "everything is there")
    return FAILED if faults else DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
