"""Several processes of a test on a CPU: data parallel, or sharded as `accelerate launch --use_fsdp` does it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.helpers import forked

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
    script: str, folder: Path, *arguments: str, sharded: bool = False, joined: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a script in two processes as torchrun starts them, to the end; where one fails, the other is killed.

    Args:
        script: Its text.
        folder: For the file of it.
        arguments: Of the script.
        sharded: With FSDP2.
        joined: Tell accelerate beforehand to join processes without an accelerator.
    """
    file = folder / "script.py"
    begin = "from tests.helpers.sharding_processes import shard_on_a_cpu\nshard_on_a_cpu()\n" if sharded else ""
    file.write_text(begin + script)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    env |= {"ACCELERATE_USE_CPU": "true"} if joined else {}
    env |= SHARDED if sharded else {}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    env |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, str(file), *arguments]
    processes = [forked.Process(command, env={**env, "RANK": rank, "LOCAL_RANK": rank}) for rank in "01"]
    while None in (states := [process.poll() for process in processes]) and not any(states):
        time.sleep(0.05)
    failed = next((number for number, state in enumerate(states) if state), 0)
    if states[failed]:
        processes[1 - failed].kill()
    for process in processes:
        process.wait()
    return subprocess.CompletedProcess(command, processes[failed].wait(), *processes[failed].communicate())


def torchrun(script: str, folder: Path, *arguments: str, sharded: bool = False) -> Any:
    """Run a script in two processes; return what the first printed after `FOUND `, as JSON; see `launch`."""
    done = launch(script, folder, *arguments, sharded=sharded)
    assert done.returncode == 0, done.stderr[-6000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    return json.loads(line.removeprefix("FOUND "))
