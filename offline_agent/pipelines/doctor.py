"""Diagnosis of this machine: `python -m offline_agent.pipelines.doctor`.

Shows versions, devices, bubblewrap, Java, Slurm and disk, and what each lack costs. It changes nothing.

Exit status: 0 commands can run (some may be out of reach), 1 something they need is broken, 2 the request was wrong.
"""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from offline_agent import catalog
from offline_agent.errors import ConfigError
from offline_agent.outgoing import masked
from offline_agent.runner.arguments import tool
from offline_agent.runner.pipeline import DONE, FAILED
from offline_agent.runner.terminal import show

_LIBRARIES = (
    "torch", "transformers", "peft", "accelerate", "mlflow-skinny", "numpy", "pyarrow", "pydantic", "networkx",
)  # fmt: skip
_OPTIONAL = {
    "trl": "examples/trl_*.py: our environments and data under TRL's own trainers",
    "vllm": "a sampler in the trainer's process (refine_grpo), and servers of models of one's own",
    "ray": "launcher=ray: only one machine, or Slurm",
    catalog.SHIPPED: f"env={', '.join(catalog.ELSEWHERE['env'])}",
}
_TORCH = """
import torch
of = torch.cuda.get_device_properties
n = torch.cuda.device_count() if torch.cuda.is_available() else 0
print(", ".join(f"{of(i).name} {of(i).total_memory / 2**30:.0f} GiB" for i in range(n)) or "no CUDA device")
"""
_PROGRAMS: tuple[tuple[str, Sequence[str], str], ...] = (
    ("devices", (sys.executable, "-c", _TORCH), "nothing is trained here, and no model plays: torch does not start"),
    ("bubblewrap", ("bwrap", "--ro-bind", "/", "/", "--unshare-all", "true"),
     "what a policy writes and a tool executes cannot be confined by bubblewrap; are user namespaces off?"),
    ("java", ("java", "-version"), "env=textworld and env.name=textworld's games need it (17 or newer)"),
    ("Slurm", ("scontrol", "ping"), "launcher=slurm"),
)  # fmt: skip


class Finding(NamedTuple):
    """One line of the diagnosis.

    Attributes:
        part: The subject.
        found: What was found.
        cost: What cannot be done because of a lack; "" where nothing is lacking.
        fault: Whether commands cannot run as they are.
    """

    part: str
    found: str
    cost: str = ""
    fault: bool = False


def main(arguments: Sequence[str]) -> int:
    """Print the diagnosis; returns the exit status."""
    return tool("doctor", __doc__ or "", arguments, _diagnose)


def _diagnose(arguments: Sequence[str]) -> int:
    if arguments:
        raise ConfigError(f"got {masked(' '.join(arguments))}, allowed: no argument; leave it out")
    faults = 0
    for finding in diagnose():
        faults += finding.fault
        word = "FAULT" if finding.fault else "lack " if finding.cost else "ok   "
        show(f"{word} {finding.part:18} {finding.found}")
        if finding.cost:
            show(f"{'':24} costs: {finding.cost}")
    return FAILED if faults else DONE


def diagnose() -> Iterator[Finding]:
    """Yield the findings, one at a time as they are made."""
    yield Finding("Python", f"{platform.python_version()}, {sys.executable}")
    there = {name: _version(name) for name in _LIBRARIES}
    missing = ", ".join(name for name, version in there.items() if version is None)
    again = f"{missing} missing: install the package again (pip install -c constraints.txt offline-agent)"
    yield Finding("libraries", ", ".join(f"{k} {v}" for k, v in there.items()), again if missing else "", bool(missing))
    for name, cost in _OPTIONAL.items():
        version = _version(name)
        yield Finding(name, version or "not installed", "" if version else cost)
    for part, command, cost in _PROGRAMS:
        yield tried(part, command, cost)
    yield Finding("disk", f"{shutil.disk_usage('.').free / 1e9:.1f} GB free here")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def tried(part: str, command: Sequence[str], cost: str) -> Finding:
    """Return what a program printed first, or what is lacking without it."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL,
            errors="replace",
        )  # fmt: skip
    except (subprocess.TimeoutExpired, OSError) as error:
        return Finding(part, f"does not start: {error}", cost)
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    if done.returncode:
        return Finding(part, f"does not start: {lines[-1] if lines else 'no message'}", cost, part == "devices")
    return Finding(part, lines[0] if lines else "starts")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
