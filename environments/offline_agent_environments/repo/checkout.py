"""Files of a repository in memory: their snapshot is a shallow copy, since contents never change."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath


@dataclass(frozen=True)
class Checkout:
    """The files of a commit.

    Attributes:
        files: Path → contents.
        modes: Path → mode bits of executable files.
        links: Path → target of symbolic links; they are shown to tests, never followed here.
    """

    files: Mapping[str, bytes]
    modes: Mapping[str, int] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)

    def text(self, path: str) -> str:
        """Return a file's text; raises LookupError where there is none, ValueError where it is no text."""
        if path not in self.files:
            raise LookupError(f"there is no file {path!r}")
        try:
            return self.files[path].decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{path} is no text") from None

    def replaced(self, path: str, text: str) -> Checkout:
        """Return the checkout with another text in a file."""
        return Checkout({**self.files, path: text.encode("utf-8")}, self.modes, self.links)

    @property
    def digest(self) -> str:
        """Hash of paths and contents."""
        total = hashlib.sha256()
        for path in sorted(self.files):
            total.update(path.encode() + b"\0" + hashlib.sha256(self.files[path]).digest())
        return total.hexdigest()


def checked_path(path: str) -> str:
    """Return a relative path in its plain form; raises ValueError where it leaves the repository."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path or parts[0] == ".git":
        raise ValueError(f"path: got {path!r}, allowed: a path inside of the repository, such as src/main.py")
    return str(PurePosixPath(path))


def patch(before: Checkout, after: Checkout) -> str:
    """Return the difference of two checkouts as git writes it; files that are no text are left out."""
    out: list[str] = []
    for path in sorted(before.files.keys() | after.files.keys()):
        old, new = before.files.get(path), after.files.get(path)
        if old == new:
            continue
        try:
            one, other = [(data or b"").decode("utf-8").splitlines(keepends=True) for data in (old, new)]
        except UnicodeDecodeError:
            continue
        out.append(f"diff --git a/{path} b/{path}\n")
        if old is None:
            out.append("new file mode 100644\n")
        names = ("/dev/null" if old is None else f"a/{path}", "/dev/null" if new is None else f"b/{path}")
        for line in difflib.unified_diff(one, other, *names):
            out.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
    return "".join(out)
