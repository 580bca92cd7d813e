"""Locks of run directories: one process writes at a time, and a killed one leaves no lock behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from pathlib import Path

from offline_agent import crash_notes
from offline_agent.errors import ConfigError
from offline_agent.store.files import disk_errors
from offline_agent.store.manifest import MANIFEST

LOCK = ".lock"
_DYING_SECONDS = 2.0


def acquire(path: Path) -> int:
    """Lock a run directory, which is made where it is missing; return the descriptor of its lock.

    Raises:
        ConfigError: Another process works in it, or it cannot be written to.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise ConfigError(f"run_dir: cannot write to {path}: {error.strerror}. Name another.") from error
    try:
        _lock(lock)
        if os.fstat(lock).st_nlink == 0:  # between open and flock its holder removed the file (see `release`)
            raise BlockingIOError("the lock is gone")
    except OSError as error:
        holder = os.pread(lock, 200, 0).decode("utf-8", "replace").strip() or "another process"
        os.close(lock)
        raise ConfigError(
            f"run_dir: {path} is in use by {holder}. Wait for it, stop it, or name another run_dir; "
            "nothing was written."
        ) from error
    with disk_errors(path / LOCK, "locking the run"):
        os.ftruncate(lock, 0)
        command = os.getpid() if crash_notes.notes is None else crash_notes.notes.command
        os.pwrite(lock, f"process {command} on {socket.gethostname()}".encode(), 0)
    return lock


def _lock(lock: int) -> None:
    """Take the lock; wait a little for a holder that was killed, until the kernel has removed its working process.

    Raises:
        BlockingIOError: Another run has it.
    """
    until = time.monotonic() + _DYING_SECONDS
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # The child that works for a killed command dies with it, but not at the same instant.
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def release(path: Path, lock: int, fresh: bool) -> None:
    """Give a lock back where no run was begun; a `fresh` directory is removed."""
    if fresh:  # leave no empty directory where no run was started
        with contextlib.suppress(OSError):
            if not (path / MANIFEST).exists():
                (path / LOCK).unlink()
                path.rmdir()
    os.close(lock)
