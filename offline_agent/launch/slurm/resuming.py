"""The command that resumes a run of `launcher=slurm`."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

FOLDER = "slurm"
"""Folder in the run directory: scripts, configurations, logs and the record of submissions."""

_SECRET = re.compile(r"\$\{oc\.env:(\w+)\}")


def resume_command(run_dir: Path, command: str) -> str:
    """Return a command that resumes a run: it submits what is neither done nor under way.

    Args:
        run_dir: The run directory.
        command: The command of the run.
    """
    names = {"merge.yaml": [], "job.yaml": ["launcher=slurm"]}
    for name, more in names.items():
        file = run_dir / FOLDER / name
        if file.is_file():
            needed = sorted(set(_SECRET.findall(file.read_text(encoding="utf-8"))))
            set_before = "".join(f"{variable}=... " for variable in needed)
            plain = ["python", "-m", f"offline_agent.pipelines.{command}", "--config", str(file), *more]
            return set_before + shlex.join(plain)
    return f"python -m offline_agent.pipelines.{command} {shlex.quote(f'run_dir={run_dir}')}"
