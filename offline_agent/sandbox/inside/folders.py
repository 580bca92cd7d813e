"""Folders of a call at places of their own, in memory: filled before the program starts, read after it ended."""

from __future__ import annotations

import base64
import errno
import os
import shutil
import stat
from typing import Any

from offline_agent.sandbox.inside import kernel

_BEGAN = 1_577_836_800 * 10**9  # 2020-01-01: so that a listing says the same each time
_PAGE = 4096


class Overfull(Exception):
    """The folders hold more than may be returned."""


def new_root(binds: list[str], links: dict[str, str], made: list[str], user: int) -> None:
    """Enter a root folder with more folders in it; the one before is shared by all calls and cannot be written.

    Args:
        binds: Folders and files of the present root that are in the new one too.
        links: Path → target of its links.
        made: Folders to make.
        user: The number that the program will have: its name is `agent`.
    """
    kernel.mount("tmpfs", "/tmp", "tmpfs", kernel.NOSUID | kernel.NODEV, "size=64m,mode=0755")
    for path in [*binds, "/dev", "/proc"]:
        target = f"/tmp{path}"
        if os.path.isdir(path):
            _make(target)
            kernel.mount(path, target, None, kernel.BIND | kernel.REC)
        else:  # a copy: a file that the host has replaced since, as installations do, can be read but not mounted again
            _make(os.path.dirname(target))
            shutil.copyfile(path, target)
            os.chmod(target, 0o644)
    for path, target in links.items():
        os.symlink(target, f"/tmp{path}")
    for path in [*made, "/old", "/tmp"]:
        _make(f"/tmp{path}")
    _make("/tmp/etc")
    for name, end in (("passwd", ":agent:/:/bin/bash"), ("group", ":")):
        with open(f"/tmp/etc/{name}", "w") as file:
            file.write(f"agent:x:{user}{f':{user}' if name == 'passwd' else ''}{end}\n")
            file.write("" if user == 0 else f"root:x:0{':0:root:/:/bin/sh' if name == 'passwd' else ':'}\n")
        os.chmod(f"/tmp/etc/{name}", 0o644)
    kernel.pivot_root("/tmp", "/tmp/old")
    os.chdir("/")
    kernel.detach("/old")
    os.rmdir("/old")
    os.utime("/", ns=(_BEGAN, _BEGAN))
    kernel.mount(None, "/", None, kernel.REMOUNT | kernel.BIND | kernel.RDONLY | kernel.NOSUID | kernel.NODEV)


def _make(path: str) -> None:
    """Make a folder and those above it, for everybody to enter."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for one in reversed(missing):
        os.mkdir(one)
        os.chmod(one, 0o755)


def fill(root: str, entries: dict[str, Any], user: int) -> None:
    """Write entries below an empty folder.

    Args:
        root: The folder.
        entries: Relative path → (`file` | `folder` | `link`, mode bits, nanoseconds of its last change, contents or
            target); the folders above an entry are entries too.
        user: The number that owns them; 0 = this process's own.
    """
    for name in sorted(entries):
        kind, _, _, data = entries[name]
        path = os.path.join(root, name)
        if kind == "folder":
            os.mkdir(path)
        elif kind == "link":
            os.symlink(data, path)
        else:
            with open(path, "xb") as file:
                file.write(data)
    for name in sorted(entries, reverse=True):  # a folder after what is in it
        kind, mode, changed, _ = entries[name]
        path = os.path.join(root, name)
        if kind != "link":
            os.chmod(path, mode)
        os.utime(path, ns=(changed, changed), follow_symlinks=False)
        if user:
            os.lchown(path, user, user)
    os.chmod(root, 0o755)
    os.utime(root, ns=(_BEGAN, _BEGAN))
    if user:
        os.chown(root, user, user)


def read(root: str, sent: dict[str, Any], most: int) -> tuple[dict[str, Any], int]:
    """Return what a folder holds, as JSON data, and its size in bytes; no link is followed.

    Args:
        root: The folder; nobody writes there any more.
        sent: The entries that it was filled with. The contents of a file that are still the same are None.
        most: Bytes that its files may have together.

    Raises:
        Overfull: They have more, in whole pages as memory holds them, or lie deeper than a path is long.
        OSError: One cannot be read.
    """
    try:
        return _read(root, sent, most)
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ENOSPC):
            raise Overfull(str(error)) from error
        raise


def _read(root: str, sent: dict[str, Any], most: int) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    size, waiting = 0, [""]
    while waiting:
        above = waiting.pop()
        for item in os.scandir(os.path.join(root, above)):
            name = f"{above}/{item.name}" if above else item.name
            info = item.stat(follow_symlinks=False)
            facts = [stat.S_IMODE(info.st_mode) & 0o777, info.st_mtime_ns]
            if stat.S_ISDIR(info.st_mode):
                found[name] = ["folder", *facts, None]
                waiting.append(name)
            elif stat.S_ISLNK(info.st_mode):
                found[name] = ["link", *facts, os.readlink(item.path)]
            elif stat.S_ISREG(info.st_mode):
                size += -(-info.st_size // _PAGE) * _PAGE  # so that it can be written again into as much memory
                if size > most:
                    raise Overfull
                with open(item.path, "rb") as file:
                    data = file.read()
                before = sent.get(name)
                same = before is not None and before[0] == "file" and before[3] == data
                found[name] = ["file", *facts, None if same else base64.b64encode(data).decode()]
    return found, size
