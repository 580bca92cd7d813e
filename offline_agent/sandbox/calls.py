"""Data of a call: its limits, its folders at places of their own, such as /app, and its outcome."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple

from offline_agent.sandbox import launch
from offline_agent.sandbox.inside.confinement import WORK

_SYSTEM = frozenset(
    ("usr", "lib", "lib32", "lib64", "bin", "sbin", "etc", "proc", "dev", "sys", "old", "", WORK.strip("/"))
)


class Entry(NamedTuple):
    """A file, folder or link.

    Attributes:
        kind: Which of them.
        mode: Mode bits, at most 0o777.
        changed: Time of the last change, in nanoseconds since 1970.
        data: Contents of a file, target of a link, None for a folder.
    """

    kind: Literal["file", "folder", "link"]
    mode: int
    changed: int
    data: bytes | str | None


Entries = Mapping[str, Entry]
"""Relative path → entry; the folders above an entry are entries too."""

Files = Mapping[str, bytes | Entry]
"""Relative path → contents of a file with the mode bits 0600, or a file or link as an entry."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of a call, in memory.

    Attributes:
        entries: What it holds at the start.
        writable: The program owns it; else it can only be read.
        kept: What it holds at the end is returned.
    """

    entries: Entries = field(default_factory=dict)
    writable: bool = True
    kept: bool = False


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


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a call.

    Attributes:
        status: `exited`, or the reason why it was stopped: `signal`, `cpu`, `wall`, `memory`, `output`, or `disk`
            (its kept folders hold more than `disk_mb` together, and none is returned).
        code: Exit status where it exited; the signal's number where a signal ended it; else None.
        stdout, stderr: Text printed, up to the limit.
        folders: Path → what a kept folder held when the command ended.
        left: Processes that it left behind and that did not end in the time to settle.
    """

    status: str
    code: int | None
    stdout: str
    stderr: str
    folders: Mapping[str, Mapping[str, Entry]] = field(default_factory=dict)
    left: int = 0

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with exit status 0."""
        return self.status == "exited" and self.code == 0


def place_fault(path: str, others: Iterable[str] = ()) -> str | None:
    """Return why a call cannot have a folder at a place; None where it can.

    Args:
        path: The absolute path.
        others: Places of the call's other folders.
    """
    parts = PurePosixPath(path).parts
    if not path.startswith("/") or ".." in parts or "\0" in path or str(PurePosixPath(path)) != path:
        return f"got {path!r}, allowed: a plain absolute path"
    top = parts[1] if len(parts) > 1 else ""
    if top in _SYSTEM or (top == "tmp" and path != "/tmp"):
        return f"{path} is of the system, allowed: folders such as /app, /data, /tmp"
    for shown in [*launch.shown(), *others]:
        if shown != path and (shown.startswith(path + "/") or path.startswith(shown + "/")):
            return f"{path} and {shown}, which is there too, cannot be apart"
    return None


def sent(folders: Mapping[str, Folder]) -> dict[str, Any]:
    """Return folders as data for the call; raises ValueError where one cannot be at its place."""
    for path in folders:
        fault = place_fault(path, folders)
        if fault is not None:
            raise ValueError(fault)
        for name in folders[path].entries:
            if not name or str(PurePosixPath(name)) != name or name.startswith("/") or ".." in name.split("/"):
                raise ValueError(f"the path {name!r} leaves the folder {path}")
    return {
        path: {"entries": {name: tuple(entry) for name, entry in folder.entries.items()},
               "writable": folder.writable, "kept": folder.kept}
        for path, folder in folders.items()
    }  # fmt: skip


def returned(reply: Mapping[str, Any], folders: Mapping[str, Folder]) -> dict[str, dict[str, Entry]]:
    """Return the kept folders of a call's reply; contents that are the same are the same objects."""
    found: dict[str, dict[str, Entry]] = {}
    for path, entries in reply.items():
        before, found[path] = folders[path].entries, {}
        for name in sorted(entries):
            kind, mode, changed, data = entries[name]
            if kind == "file":
                data = before[name].data if data is None else base64.b64decode(data)
            found[path][name] = Entry(kind, mode, changed, data)
    return found
