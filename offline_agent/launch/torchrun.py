"""Training in several processes (`torchrun`): the first process writes the run, the others follow.

A follower does the same work as the first process, on the same rows in the same order. It writes to a temporary folder
of its own; only the checkpoints are shared, and the first process writes them. It reads the event logs of the run and
appends nothing.
"""

from __future__ import annotations

import os
import shlex
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from offline_agent.config.build_prefs import RunConfig
from offline_agent.config.training import TrainableConfig, TrainSftConfig
from offline_agent.errors import ConfigError, DataError, OfflineAgentError
from offline_agent.runner import signals, terminal
from offline_agent.runner.pipeline import DONE, FAILED, Command, Facts, Session
from offline_agent.runner.terminal import Progress

_PATIENCE = 600.0  # seconds that a follower waits for the manifest


def rank() -> int:
    """Return the rank of this process; 0 if it is alone."""
    return int(os.environ.get("RANK", "0")) if count() > 1 else 0


def count() -> int:
    """Return the number of processes that train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def check(name: str, config: RunConfig, processes: int) -> None:
    """Raise ConfigError if several processes cannot run the command.

    Args:
        name: Name of the command.
        config: Its configuration.
        processes: Number of processes.
    """
    faults = []
    if not isinstance(config, TrainableConfig):
        faults.append(f"{name} runs in one process, but WORLD_SIZE={processes}; start it without torchrun")
    if config.run_dir is None:
        faults.append(f"run_dir: name it; {processes} processes must meet there")
    if isinstance(config, TrainSftConfig) and config.scratch.reading:
        faults.append("scratch.reading: a new model reads in one process; train it so, and go on from its model")
    if faults:
        raise ConfigError(faults)


def command_line(
    module: str, arguments: Sequence[str], python: str, nodes: int, processes: int, gpus: int, sharded: bool = False
) -> str:
    """Return the shell line of a training command: `torchrun` on every node, with the rendezvous on the first.

    Args:
        module: Module of the command.
        arguments: Its arguments.
        python: The interpreter.
        nodes: Number of nodes.
        processes: Processes on each node.
        gpus: GPUs on each node; without GPUs the processes communicate with gloo.
        sharded: Shard the weights over all processes.
    """
    plain = shlex.join(["-m", module, *arguments])
    if nodes * processes == 1:
        return f"{shlex.quote(python)} {plain}"
    if nodes == 1:
        where = "--standalone"
    else:
        first = '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"'
        port = "$((20000 + SLURM_JOB_ID % 20000))"
        where = f"--rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID --rdzv-endpoint={first}:{port}"
    # torchrun forwards these signals, and waits 30 s for its processes
    told = "TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2"
    if not gpus:
        told += " ACCELERATE_USE_CPU=true"  # otherwise accelerate starts each process on its own
    if sharded:  # what `accelerate launch --use_fsdp --fsdp_version 2` sets
        told += " ACCELERATE_USE_FSDP=true FSDP_VERSION=2 FSDP_AUTO_WRAP_POLICY=TRANSFORMER_BASED_WRAP"
        told += " FSDP_RESHARD_AFTER_FORWARD=true"
    return (
        f"env {told} {shlex.quote(python)} -m torch.distributed.run --nnodes={nodes} "
        f"--nproc-per-node={processes} {where} {plain}"
    )


class Follower:
    """The run directory of a following process, with the methods of `RunDirectory`: reads the run, writes elsewhere.

    Args:
        run: The run directory.
        path: The temporary folder of this process.
        manifest: Manifest of the run.
    """

    def __init__(self, run: Path, path: Path, manifest: dict[str, Any]) -> None:
        self.path, self.manifest, self.resumed = path, manifest, "resumed" in manifest
        self.warnings: tuple[str, ...] = ()
        self._run = run
        (run / "checkpoints").mkdir(exist_ok=True)
        (path / "checkpoints").symlink_to(run / "checkpoints", target_is_directory=True)

    def events(self, shard: str = "0000") -> Any:
        """Return the log of the shard, to which only the first process appends."""
        from offline_agent.store.events import EventLog
        from offline_agent.store.files import safe_name

        log = EventLog(self._run / "events" / f"{safe_name(shard)}.jsonl")
        log.append = lambda record: None  # type: ignore[method-assign]
        return log

    def quarantine(self, kind: str, name: str, reason: str, **facts: Any) -> bool:
        """Do nothing: the first process writes it."""
        return False

    def write_rows(self, *given: Any) -> Path:
        """Write a table to the temporary folder; see `RunDirectory.write_rows`."""
        from offline_agent.store.run_directory import RunDirectory

        return RunDirectory.write_rows(self, *given)  # type: ignore[arg-type]  # it has a path, and needs no more


class _Silent(Progress):
    def update(self, done: int, share: float | None = None, **figures: object) -> None:
        """Draw nothing: the first process draws."""


def follow(command: Command[Any, Any], config: Any, prepared: Any, facts: Facts) -> int:
    """Run the command as a follower; return the exit status."""
    from offline_agent.store.tracking import Tracker

    run = Path(config.run_dir).resolve()
    try:
        with signals.signals(), tempfile.TemporaryDirectory(prefix=f"{command.name}-rank-{rank()}-") as beside:
            follower: Any = Follower(run, Path(beside), _opened(run, command.name))
            command.run(prepared, Session(config, follower, Tracker(), _Silent(command.name), _quiet))
    except OfflineAgentError as error:
        terminal.say(f"{command.name}, process {rank()}: {error}")
        return FAILED
    except signals.Stopped as stop:
        terminal.say(f"{command.name}, process {rank()}: stopped by {stop}")
        return FAILED
    except Exception:
        terminal.say(traceback.format_exc())
        return FAILED
    return DONE


def _opened(run: Path, command: str) -> dict[str, Any]:
    """Return the manifest of the run when the first process has written it."""
    from offline_agent.launch.shards import manifest_of

    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        manifest = manifest_of(run)
        if manifest is not None and manifest.get("command") == command:
            return manifest
        time.sleep(0.1)
    raise DataError(f"{run}: the first of {count()} processes did not begin it within {_PATIENCE:.0f} s")


def _quiet(text: str) -> None:
    """Print nothing: the first process prints."""
