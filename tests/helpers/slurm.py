"""A Slurm of two nodes for the tests, an environment that dawdles, and how commands are run and jobs watched."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from offline_agent.envs.shop import Shop
from offline_agent.records import Verdict
from tests.helpers import forked
from tests.helpers.engines import require

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "tests" / "slurm"
HOLD = "HELD_SHOP_FILE"
PATIENCE = 1800.0  # seconds that anything may take on a machine that is busy with other things


class HeldShop(Shop):
    """The shop; from the fifth reward on it waits as long as the file is there that the environment variable names."""

    rewards = 0

    def get_reward(self) -> Verdict:
        HeldShop.rewards += 1
        while HeldShop.rewards > 4 and os.path.exists(os.environ.get(HOLD, "")):
            time.sleep(0.05)
        return super().get_reward()


@contextmanager
def two_nodes() -> Iterator[Path]:
    """Start a Slurm of two nodes on this machine; yields its configuration file. Skips where none can be started."""
    missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if shutil.which(name) is None]
    root = "as root: starting slurmd needs that" if os.geteuid() else ""
    how = " and ".join(filter(None, ["apt-get install slurm-wlm munge" if missing else "", root]))
    require("Slurm", not missing and not root, how)
    # into files: the daemons would keep a pipe open
    started = subprocess.run(
        ["bash", str(SCRIPTS / "start.sh")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert started.returncode == 0, started.stdout
    folder = Path(started.stdout.split()[-1])
    try:
        yield folder / "slurm.conf"
    finally:
        subprocess.run(["bash", str(SCRIPTS / "stop.sh"), str(folder)], check=True)


class Slurm:
    """The cluster, and commands given to it.

    Args:
        conf: Its configuration file.
    """

    def __init__(self, conf: Path) -> None:
        self.env = {
            **os.environ, "SLURM_CONF": str(conf), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "120",
        }  # fmt: skip
        self.env.pop(HOLD, None)

    def run(self, name: str, *arguments: str, **variables: str) -> tuple[int, str, str]:
        """Run a pipeline, whose jobs are forked as itself is; returns status and both outputs."""
        if any(word.startswith("launcher=slurm") for word in arguments) and "PYTHONPATH" not in variables:
            arguments += (f"slurm.python={forked.python()}",)
        command = [sys.executable, "-m", f"offline_agent.pipelines.{name}", *arguments]
        done = forked.run(command, cwd=ROOT, env={**self.env, **variables}, timeout=PATIENCE)
        return done.returncode, done.stdout, done.stderr

    def done(self, name: str, *arguments: str) -> str:
        """Run a pipeline that must succeed; returns what it printed."""
        status, out, err = self.run(name, *arguments)
        assert status == 0, out + err
        return out

    def ask(self, *command: str) -> str:
        """Give one of Slurm's own commands."""
        return subprocess.run(command, env=self.env, capture_output=True, text=True, check=True).stdout

    def jobs(self) -> dict[str, str]:
        """Return the state of every job, by id."""
        lines = self.ask("squeue", "--noheader", "--array", "--states=all", "--format=%i %T").splitlines()
        return dict(line.split() for line in lines)


def until(holds: Callable[[], Any], what: str) -> Any:
    """Wait until something holds, and return it."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := holds():
            return found
        time.sleep(0.1)
    raise AssertionError(f"it did not come to pass: {what}")


def manifest(path: Path) -> dict[str, Any]:
    """Return a run directory's manifest, empty before there is one."""
    try:
        return dict(json.loads((path / "manifest.json").read_bytes()))
    except (OSError, ValueError):
        return {}


def content(run: Path, *folders: str) -> dict[str, bytes]:
    """Return the bytes of every file in folders of a run directory."""
    files = (file for folder in folders for file in (run / folder).rglob("*") if file.is_file())
    return {str(file.relative_to(run)): file.read_bytes() for file in files}
