"""Files of an episode in memory: they never change, so that a snapshot is a reference."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from offline_agent.sandbox import Entry, Folder
from offline_agent.sandbox.calls import Entries

HOME = "/agent"
BEGAN = 1_577_836_800 * 10**9  # 2020-01-01, the time of all files that a task begins with
_STEP = 60 * 10**9
_LINKS = 40  # that are followed in one path, as in Linux


@dataclass(frozen=True)
class Workspace:
    """The folders that an agent may write, each with what it holds.

    Attributes:
        folders: Absolute path of a top folder → its entries.
        steps: Commands that were carried out; gives new files their time.
    """

    folders: Mapping[str, Entries]
    steps: int = 0

    @cached_property
    def digest(self) -> str:
        """Hash of paths, kinds, modes and contents; not of times."""
        total = hashlib.sha256()
        for place in sorted(self.folders):
            for name in sorted(self.folders[place]):
                entry = self.folders[place][name]
                data = entry.data if isinstance(entry.data, bytes) else _bytes(entry.data or "")
                total.update(_bytes(f"{place}\0{name}\0{entry.kind}\0{entry.mode}\0{len(data)}\0") + data)
        return total.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Workspace) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def kept(self) -> dict[str, Folder]:
        """Return the folders for a call of the sandbox that returns them."""
        return {place: Folder(entries, kept=True) for place, entries in self.folders.items()}

    def after(self, folders: Mapping[str, Entries], began: int) -> Workspace:
        """Return the workspace after a command.

        Args:
            folders: What the folders hold now.
            began: When the command began, in nanoseconds since 1970. Times from then on become those of a clock that
                goes on a minute with each command, in their order: a listing of the same files is the same text.
        """
        times = sorted({entry.changed for entries in folders.values() for entry in entries.values()
                        if entry.changed >= began})  # fmt: skip
        start = BEGAN + (self.steps + 1) * _STEP
        told = {time: start + place * 1000 for place, time in enumerate(times)}
        made = {
            place: {name: e._replace(changed=told.get(e.changed, e.changed)) for name, e in entries.items()}
            for place, entries in folders.items()
        }
        return Workspace(made, self.steps + 1)

    def with_folder(self, path: str) -> Workspace:
        """Return the workspace with a folder at an absolute path; itself where a file or link is in its way."""
        place, name = split(path)
        entries = self.folders[place]
        above = with_parents({name: Entry("folder", 0o755, BEGAN, None)} if name else {})
        if above.keys() <= entries.keys() or any(entries[one].kind != "folder" for one in above if one in entries):
            return self
        return Workspace({**self.folders, place: {**above, **entries}}, self.steps)

    def resolved(self, path: str) -> tuple[str, str]:
        """Return the top folder of a path and the rest, with its links followed; ("", "") where they lead outside."""
        place, name = split(os.path.normpath(path))
        for _ in range(_LINKS):
            parts = PurePosixPath(name).parts
            entries = self.folders.get(place, {})
            above = ["/".join(parts[: n + 1]) for n in range(len(parts))]
            link = next((one for one in above if one in entries and entries[one].kind == "link"), None)
            if link is None:
                return (place, name) if place in self.folders else ("", "")
            base, rest = PurePosixPath(place, link).parent, name[len(link) :].lstrip("/")
            place, name = split(os.path.normpath(base / str(entries[link].data) / rest))
        return "", ""


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")  # names and targets need not be UTF-8


def split(path: str) -> tuple[str, str]:
    """Return the top folder of an absolute path, and the rest."""
    parts = PurePosixPath(path).parts
    return "/" + "".join(parts[1:2]), "/".join(parts[2:])


def with_parents(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return entries, and the folders above them that are missing."""
    found = dict(entries)
    for name in entries:
        for parent in PurePosixPath(name).parents:
            if str(parent) != "." and str(parent) not in found:
                found[str(parent)] = Entry("folder", 0o755, BEGAN, None)
    return found


def of_disk(path: Path) -> Entry:
    """Return a file, folder or link of this machine as an entry; raises OSError where it cannot be read."""
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return Entry("link", 0o777, BEGAN, os.readlink(path))
    if stat.S_ISDIR(mode):
        return Entry("folder", 0o755, BEGAN, None)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is no file, folder or link", str(path))
    return Entry("file", 0o755 if mode & 0o100 else 0o644, BEGAN, path.read_bytes())


def tree(folder: Path) -> dict[str, Entry]:
    """Return what a folder of this machine holds; no link is followed. Raises OSError where a part cannot be read."""

    def told(error: OSError) -> None:
        raise error

    found: dict[str, Entry] = {}
    for above, folders, files in os.walk(folder, onerror=told):
        for name in [*folders, *files]:
            path = Path(above, name)
            found[path.relative_to(folder).as_posix()] = of_disk(path)
    return found
