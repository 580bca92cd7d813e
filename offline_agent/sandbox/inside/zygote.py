"""The warm process: it has imported what programs use, and forks for each call."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
from typing import Any

from offline_agent.sandbox.inside import kernel
from offline_agent.sandbox.inside.call import Call
from offline_agent.sandbox.inside.confinement import WORK

_WARM = (
    "bisect", "calendar", "collections", "collections.abc", "contextlib", "copy", "dataclasses", "datetime", "decimal",
    "enum", "fractions", "functools", "heapq", "io", "itertools", "json", "math", "operator", "random", "re",
    "statistics", "string", "textwrap", "time", "traceback", "typing",
)  # fmt: skip


def main(facts: dict[str, Any]) -> None:
    """Serve calls.

    Args:
        facts: `channel` (a descriptor from which each call's own socket is received; -1 = this process is one call, on
            standard input and output), `isolated`, `user` and, for namespaces made here, `root` (see `_enter`).
    """
    if facts["channel"] < 0:
        os.umask(0o077)
        Call((0, _keep_output()), facts).serve()
        return
    if facts.get("root"):
        os.umask(0o022)
        _enter(facts["root"])
    os.umask(0o077)
    for name in _WARM:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=facts["channel"])
    control.send(b"ready")
    kernel.adopt_orphans()
    number = 0
    while True:
        data, fds, _, _ = socket.recv_fds(control, 16, 1)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if data != b"call":
            break
        number += 1
        child = os.fork()
        if child == 0:
            try:
                control.close()
                _begin(fds[0], {**facts, "user": facts["user"] and facts["user"] + number % 1024})
            finally:
                os._exit(0)
        for fd in fds:
            os.close(fd)
        os.waitpid(child, 0)
    while data:  # the last call was begun: another process takes the next ones
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _begin(fd: int, facts: dict[str, Any]) -> None:
    """Go into namespaces of a call's own, and serve it there; this process ends at once."""
    if facts["isolated"]:
        kernel.unshare(kernel.NEWPID | kernel.NEWNS)
    if os.fork() == 0:
        try:
            kernel.hide()
            Call((fd, fd), facts).serve()
        finally:
            os._exit(0)


def _keep_output() -> int:
    """Return a copy of standard output, which is for replies alone; what is printed goes nowhere."""
    kept = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    return kept


def _enter(root: dict[str, Any]) -> None:
    """Enter namespaces and a file system of its own, as bubblewrap does; the caller's children are inside.

    Args:
        root: `user` (the caller's number where a user namespace is needed; -1 = root),
            `group`, `binds` (host folders and files to show, read-only, each with its path inside), `links` (path →
            target).
    """
    flags = kernel.NEWNS | kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS | kernel.NEWPID
    if root["user"] >= 0:
        kernel.unshare(kernel.NEWUSER | flags)
        for name, text in (
            ("setgroups", "deny"), ("uid_map", f"0 {root['user']} 1"), ("gid_map", f"0 {root['group']} 1"),
        ):  # fmt: skip
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    else:
        kernel.unshare(flags)
    kernel.mount(None, "/", None, kernel.REC | kernel.PRIVATE)
    child = os.fork()  # the first process of the new process namespace
    if child:
        os.close(0)
        os.waitpid(child, 0)
        os._exit(0)
    folder = "/sys"  # which every system has, and nothing that is shown lies in
    kernel.mount("tmpfs", folder, "tmpfs", kernel.NOSUID | kernel.NODEV, "size=1m,mode=0755")
    for path, place in root["binds"]:
        _bind(path, folder + place, kernel.RDONLY)
    for path, target in root["links"].items():
        os.symlink(target, folder + path)
    for path in ("/proc", "/dev", "/dev/shm", WORK, "/tmp", "/old"):
        os.makedirs(folder + path, mode=0o755, exist_ok=True)
    for name in ("null", "zero", "full", "random", "urandom"):
        _bind(f"/dev/{name}", f"{folder}/dev/{name}", 0)
    kernel.mount("proc", folder + "/proc", "proc", kernel.NOSUID | kernel.NODEV | kernel.NOEXEC)
    kernel.pivot_root(folder, folder + "/old")
    os.chdir("/")
    kernel.detach("/old")
    os.rmdir("/old")
    kernel.mount(None, "/", None, kernel.REMOUNT | kernel.BIND | kernel.RDONLY | kernel.NOSUID | kernel.NODEV)


def _bind(source: str, target: str, flags: int) -> None:
    if os.path.isdir(source):
        os.makedirs(target, mode=0o755, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        with open(target, "w"):
            pass
    kernel.mount(source, target, None, kernel.BIND | kernel.REC)
    if flags:
        # a mount that the user's namespace inherited keeps its other restrictions
        kept = os.statvfs(target).f_flag & (kernel.NOSUID | kernel.NODEV | kernel.NOEXEC)
        kernel.mount(None, target, None, kernel.REMOUNT | kernel.BIND | flags | kept)
