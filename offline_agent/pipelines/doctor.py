"""Diagnosis of this machine: `python -m offline_agent.pipelines.doctor [url=URL ...] [run_dir=FOLDER]`.

Shows versions, devices, Java, bubblewrap, Chromium, Slurm, servers and disk, and what each lack costs. It changes
nothing. url= asks an OpenAI-compatible server for its models; it may be given several times.

Exit status: 0 commands can run (some may be out of reach), 1 something they need is broken, 2 the request was wrong.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from offline_agent import catalog
from offline_agent.errors import ConfigError, did_you_mean
from offline_agent.memory import free_memory
from offline_agent.outgoing import masked
from offline_agent.runner.arguments import tool
from offline_agent.runner.pipeline import DONE, FAILED
from offline_agent.runner.terminal import show

OLDEST = (3, 11)
_SECONDS = 20.0
_DISK = 5e9  # bytes: a run of 1,000 tasks with a small model has about 1 GB
_MEMORY = 4e9
_FILES = 1024
_LIBRARIES = (
    "torch", "transformers", "peft", "accelerate", "mlflow-skinny", "numpy", "pyarrow", "pydantic",
)  # fmt: skip
_OPTIONAL = (
    ("trl", "our roll-outs under TRL's own GRPOTrainer, and examples/trl_*.py"),
    ("datasets", "load_dataset of a run's tables"),
    ("vllm", "a sampler in the trainer's process (refine_grpo), and servers of models of one's own"),
    ("ray", "launcher=ray: only one machine, or Slurm"),
    ("textworld-express", "env=textworld"),
    ("minigrid", "env=babyai"),
    ("bfcl-eval", "env=bfcl"),
    ("playwright", "the tests of report.html in a browser; the report itself does not need it"),
)
_BROWSER = next(filter(shutil.which, ("chromium", "chromium-browser", "google-chrome")), "chromium")
_PROGRAMS: tuple[tuple[str, Sequence[str], str], ...] = (
    ("java", ("java", "-version"), "env=textworld and env.name=textworld's games need it (17 or newer)"),
    ("bubblewrap", ("bwrap", "--ro-bind", "/", "/", "--unshare-all", "true"),
     "what a policy writes and a tool executes cannot be confined by bubblewrap; are user namespaces off?"),
    ("chromium", (_BROWSER, "--version"), "the tests of report.html in a browser; any browser shows the report itself"),
    ("git", ("git", "--version"), "manifests do not name the commit of the code"),
)  # fmt: skip
_TORCH = """
import torch
of = torch.cuda.get_device_properties
n = torch.cuda.device_count() if torch.cuda.is_available() else 0
print(", ".join(f"{of(i).name} {of(i).total_memory / 2**30:.0f} GiB" for i in range(n)) or "no CUDA device")
"""
_MARKS = {"ok": "ok   ", "lack": "lack ", "fault": "FAULT"}


class Finding(NamedTuple):
    """One line of the diagnosis.

    Attributes:
        part: The subject.
        state: `ok`; `lack` = something optional is not there; `fault` = commands cannot run as they are.
        found: What was found.
        cost: What cannot be done, or is slower, because of it; "" where nothing.
    """

    part: str
    state: Literal["ok", "lack", "fault"]
    found: str
    cost: str = ""


def main(arguments: Sequence[str]) -> int:
    """Print the diagnosis; returns the exit status."""
    return tool("doctor", __doc__ or "", arguments, _diagnose)


def _diagnose(arguments: Sequence[str]) -> int:
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


def diagnose(urls: Iterable[str] = (), folder: Path | None = None) -> Iterator[Finding]:
    """Yield the findings, one at a time as they are made.

    Args:
        urls: Addresses of OpenAI-compatible servers to ask for their models.
        folder: Where runs are to be written; None = the current folder.
    """
    yield _python()
    yield from _libraries()
    yield _device()
    for part, command, cost in _PROGRAMS:
        yield tried(part, command, cost)
    yield _slurm()
    for url in urls:
        yield endpoint(url)
    yield disk(folder or Path.cwd())
    yield from _limits()


def _python() -> Finding:
    version = platform.python_version()
    if sys.version_info < OLDEST:
        return Finding("Python", "fault", version, f"needs {'.'.join(map(str, OLDEST))} or newer")
    return Finding("Python", "ok", f"{version}, {sys.executable}")


def _libraries() -> Iterator[Finding]:
    there = {name: _version(name) for name in _LIBRARIES}
    missing = [name for name, version in there.items() if version is None]
    shown = ", ".join(f"{name} {version}" for name, version in there.items() if version is not None)
    if missing:
        cost = f"{', '.join(missing)} missing: install the package again (pip install -c constraints.txt offline-agent)"
        yield Finding("libraries", "fault", shown, cost)
    else:
        yield Finding("libraries", "ok", shown)
    others = {package: names for package, names in catalog.listing("env").items() if package != "offline-agent"}
    for package, names in others.items():
        yield Finding(package.partition(" ")[0], "ok", f"{package.partition(' ')[2]}: env={', '.join(names)}")
    if not others:
        cost = f"env={', '.join(catalog.ELSEWHERE['env'])}: pip install {catalog.SHIPPED}"
        yield Finding(catalog.SHIPPED, "lack", "not installed", cost)
    for name, cost in _OPTIONAL:
        version = _version(name)
        yield Finding(name, "lack", "not installed", cost) if version is None else Finding(name, "ok", version)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _device() -> Finding:
    """Ask torch in a process of its own: it takes seconds to import, and a broken driver may end the process."""
    cost = "models run on the processor: fine for the embedded one (1 M weights), slow from about 0.1 B on"
    found = tried("devices", (sys.executable, "-c", _TORCH), "", 120.0)
    if found.state == "lack":
        return found._replace(state="fault", cost=f"{os.cpu_count()} cores, but torch does not start")
    lacks = "no CUDA" in found.found
    return Finding("devices", "lack", f"{os.cpu_count()} cores, {found.found}", cost) if lacks else found


def _slurm() -> Finding:
    missing = [name for name in ("sbatch", "squeue", "scontrol") if shutil.which(name) is None]
    if missing:
        return Finding("Slurm", "lack", f"{', '.join(missing)} not found", "launcher=slurm")
    return tried("Slurm", ("scontrol", "ping"), "launcher=slurm", sound="UP")


def tried(
    part: str, command: Sequence[str], cost: str, seconds: float = _SECONDS, sound: str = ""
) -> Finding:
    """Return what a program printed first, or what is lacking.

    Args:
        part, cost: As of `Finding`.
        command: Its command line.
        seconds: It may take.
        sound: What it must print.
    """
    if shutil.which(command[0]) is None:
        return Finding(part, "lack", f"{command[0]} not found", cost)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False, stdin=subprocess.DEVNULL,
            errors="replace",
        )  # fmt: skip
    except (subprocess.TimeoutExpired, OSError) as error:
        return Finding(part, "lack", f"does not start: {error}", cost)
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    if done.returncode or sound not in done.stdout:
        return Finding(part, "lack", f"does not start: {lines[-1] if lines else 'no message'}", cost)
    return Finding(part, "ok", lines[0] if lines else "starts")


def endpoint(url: str) -> Finding:
    """Return whether a server of OpenAI's API answers, with the models that it names."""
    cost = "policy=server cannot use it"
    if not url.startswith(("http://", "https://")):
        return Finding(url, "fault", "no address", f"{cost}; write http://HOST:PORT/v1")
    request = urllib.request.Request(f"{url.rstrip('/')}/models")
    if key := os.environ.get("OPENAI_API_KEY"):
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310 - the scheme is checked above
            models = [str(one.get("id")) for one in json.load(answer)["data"]]
    except urllib.error.HTTPError as error:
        return Finding(url, "fault", f"answers with status {error.code}", f"{cost}; is the path right, and the key?")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Finding(url, "fault", f"does not answer as a server of OpenAI's API: {error}", cost)
    return Finding(url, "ok", f"models: {', '.join(models) or 'none'}")


def disk(folder: Path) -> Finding:
    """Return the free space where runs are written, and whether one can write there."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free
    found = f"{free / 1e9:.1f} GB free in {place}"
    if not os.access(place, os.W_OK):
        return Finding("disk", "fault", found, "it cannot be written to: name another run_dir")
    if free < _DISK:
        return Finding("disk", "lack", found, "a run of thousands of tasks, or large checkpoints, may not fit")
    return Finding("disk", "ok", found)


def _limits() -> Iterator[Finding]:
    import resource

    free, (soft, _) = free_memory(), resource.getrlimit(resource.RLIMIT_NOFILE)
    few = "fewer environments are open at once, and only small models fit"
    lack = free < _MEMORY
    yield Finding("memory", "lack" if lack else "ok", f"{free / 2**30:.1f} GiB available", few if lack else "")
    lack, cost = soft != resource.RLIM_INFINITY and soft < _FILES, "fewer environments in processes; ulimit -n 65536"
    yield Finding("open files", "lack" if lack else "ok", f"at most {soft:,}", cost if lack else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
