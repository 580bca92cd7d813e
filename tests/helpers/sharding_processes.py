"""Several processes of a test on a CPU: data parallel, or sharded as `accelerate launch --use_fsdp` does it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SHARDED = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
}


def shard_on_a_cpu() -> None:
    """Let accelerate's FSDP plugin work over gloo: by itself it only looks for one where there are accelerators."""
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    made = PartialState.__init__

    def make(self: Any, *args: Any, **named: Any) -> None:
        made(self, *args, **named)
        if PartialState._shared_state.get("distributed_type") == DistributedType.MULTI_CPU:
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU

    PartialState.__init__ = make  # type: ignore[method-assign]


def launch(
    script: str, folder: Path, *arguments: str, sharded: bool = False, processes: int = 2, joined: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a script in several processes, to the end.

    Args:
        script: Its text.
        folder: For the file of it.
        arguments: Of the script.
        sharded: With FSDP2.
        processes: How many.
        joined: Tell accelerate beforehand to join processes without an accelerator.
    """
    file = folder / "script.py"
    begin = "from tests.helpers.sharding_processes import shard_on_a_cpu\nshard_on_a_cpu()\n" if sharded else ""
    file.write_text(begin + script)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    env |= {"ACCELERATE_USE_CPU": "true"} if joined else {}
    command = [
        sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--standalone", str(file),
        *arguments,
    ]  # fmt: skip
    more = SHARDED if sharded else {}
    return subprocess.run(command, env=env | more, capture_output=True, text=True, check=False)


def torchrun(script: str, folder: Path, *arguments: str, sharded: bool = False) -> Any:
    """Run a script in two processes; return what the first printed after `FOUND `, as JSON; see `launch`."""
    done = launch(script, folder, *arguments, sharded=sharded)
    assert done.returncode == 0, done.stderr[-6000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    return json.loads(line.removeprefix("FOUND "))
