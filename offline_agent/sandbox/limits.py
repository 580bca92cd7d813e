"""Limits of what runs in a sandbox, and the outcome of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offline_agent.sandbox.folders import Entry


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one call; all processes that it starts end with it.

    Attributes:
        cpu_seconds: CPU time of each process, or of each in one request to a session.
        wall_seconds: Time of the call, or of one request to a session.
        memory_mb: Address space of each process; memory of all of them with files in memory, pipes, sockets; in MiB.
        processes: Processes and threads at once.
        files: Open files of each process.
        output_kb: Text printed by the call, or by one request to a session, in KiB; one that prints more is stopped.
        disk_mb: Size of the working folder, of /tmp and of /dev/shm each, in MiB.
    """

    cpu_seconds: int = 10
    wall_seconds: float = 15.0
    memory_mb: int = 512
    processes: int = 32
    files: int = 128
    output_kb: int = 256
    disk_mb: int = 64

    def asdict(self) -> dict[str, Any]:
        """Return the limits as JSON data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a call.

    Attributes:
        status: `exited`, or the reason why it was stopped: `signal`, `cpu`, `wall`, `memory`, `output`, or `disk`
            (its kept folders hold more than `disk_mb` together, and none is returned).
        code: Exit status where it exited; the signal's number where a signal ended it; else None.
        stdout, stderr: Text printed, up to the limit.
        files: The files asked for that are regular files of the working folder.
        folders: Path → what a kept folder held when the command ended.
        left: Processes that it left behind and that did not end in the time to settle.
    """

    status: str
    code: int | None
    stdout: str
    stderr: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    folders: Mapping[str, Mapping[str, Entry]] = field(default_factory=dict)
    left: int = 0

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with exit status 0."""
        return self.status == "exited" and self.code == 0
