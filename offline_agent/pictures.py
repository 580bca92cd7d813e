"""Pictures in messages: a mark in a text names a picture by its hash, and the picture's bytes are kept once.

A content stays one text, and a picture stands in it as U+FFFC (Unicode's place for an object) and `[picture:HASH]`,
HASH being the SHA-256 of its bytes. So whatever compares, hashes or stores texts covers the pictures in them, and says
where among the words each of them stands. docs/pictures.md has the rules.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from offline_agent.errors import DataError

OBJECT = "\ufffc["
"""The beginning of a mark."""
FOLDER = "images"
"""The folder of a run directory that has the bytes, `images/HASH.png`."""
MOST_BYTES = 1 << 24
_MARK = re.compile("\ufffc\\[picture:([0-9a-f]{64})\\]")
_WRITTEN = re.compile(rb"\[picture:([0-9a-f]{64})\]")  # in JSON, which may spell U+FFFC out
_URL = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,([A-Za-z0-9+/=\s]*)\Z", re.ASCII)
_BEGINNINGS = {"png": b"\x89PNG\r\n\x1a\n", "jpeg": b"\xff\xd8\xff", "gif": b"GIF8", "webp": b"RIFF"}

_kept: dict[str, bytes] = {}  # not in a folder yet
_folders: dict[Path, set[str]] = {}  # and which pictures each was seen to have


def mark(picture: Any) -> str:
    """Keep a picture, and return the mark that stands for it in a text.

    Args:
        picture: The bytes of a PNG, JPEG, GIF or WebP file, a data URL of one, or a PIL image.

    Raises:
        DataError: It is none of these, or larger than 16 MiB.
    """
    data = _bytes(picture)
    hash = hashlib.sha256(data).hexdigest()
    if not known(hash):
        _kept[hash] = data
    return mark_of(hash)


def mark_of(hash: str) -> str:
    """Return the mark of a picture."""
    return f"{OBJECT}picture:{hash}]"


def _bytes(picture: Any) -> bytes:
    if hasattr(picture, "save"):
        file = io.BytesIO()
        picture.save(file, "PNG")
        picture = file.getvalue()
    if isinstance(picture, str) and (found := _URL.match(picture)):
        try:
            picture = base64.b64decode(found[1], validate=False)
        except binascii.Error as error:
            raise DataError(f"a picture's data URL is no base64 ({error})") from error
    if not isinstance(picture, bytes) or not kind(picture):
        told = repr(picture[:12] if isinstance(picture, bytes) else picture)[:60]
        raise DataError(
            f"a picture: got {type(picture).__name__} {told}, allowed: bytes of PNG, JPEG, GIF or WebP, a data URL of "
            "them (data:image/png;base64,…; nothing is fetched), or a PIL image"
        )
    if len(picture) > MOST_BYTES:
        raise DataError(f"a picture: got {len(picture)} bytes, allowed: {MOST_BYTES}; make it smaller")
    return picture


def kind(data: bytes) -> str:
    """Return `png`, `jpeg`, `gif` or `webp` by a file's first bytes; "" for anything else."""
    return next((name for name, start in _BEGINNINGS.items() if data.startswith(start)), "")


def url(hash: str) -> str:
    """Return a picture as a data URL. Raises as `data`."""
    found = data(hash)
    return f"data:image/{kind(found)};base64,{base64.b64encode(found).decode()}"


def split(text: str) -> list[str]:
    """Return a text cut at its marks: every second part is the hash of a picture."""
    return _MARK.split(text) if OBJECT in text else [text]


def named(text: str) -> list[str]:
    """Return the hashes of the pictures in a text, in order."""
    return split(text)[1::2]


def in_messages(messages: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the hashes of the pictures in messages, in order; an assistant's texts have none."""
    contents = (one.get("content") for one in messages if one.get("role") != "assistant")
    return [hash for text in contents if isinstance(text, str) for hash in named(text)]


def written(row: Mapping[str, Any]) -> bool:
    """Return whether there are marks in a row, whose messages may be JSON texts."""
    return _WRITTEN.search(str(row).encode("utf-8", "replace")) is not None


def disarmed(text: str) -> str:
    """Return a text in which marks of pictures that nobody kept are plain text: a page cannot make one up."""
    if OBJECT not in text:
        return text
    return _MARK.sub(lambda found: found[0] if known(found[1]) else found[0][1:], text)


def of_parts(value: Any) -> str | None:
    """Return the text of a list of content parts with pictures, as TRL's tools return them; None for other values.

    A part is {"type": "text", "text": …} or {"type": "image", "image": …} (TRL 1.16, `GRPOTrainer`'s tools).
    """
    if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
        return None
    kinds = [part.get("type") for part in value]
    if "image" not in kinds or not {"image", "text"}.issuperset(kinds):
        return None
    return "".join(disarmed(str(part["text"])) if "text" in part else mark(part.get("image")) for part in value)


def of_source(given: Any) -> str:
    """Return the mark of the picture in OpenAI's or Anthropic's part; raises DataError where it has no bytes."""
    if isinstance(given, Mapping) and given.get("type") == "base64":
        given = f"data:{given.get('media_type')};base64,{given.get('data')}"
    return mark(given.get("url") if isinstance(given, Mapping) else given)


def as_parts(content: str) -> Any:
    """Return a content as OpenAI's API takes it: a text, or parts where it has pictures, which are data URLs.

    Raises:
        DataError: A picture is not at hand.
    """
    parts = split(content)
    if len(parts) == 1:
        return content
    return [
        {"type": "image_url", "image_url": {"url": url(part)}} if at % 2 else {"type": "text", "text": part}
        for at, part in enumerate(parts)
        if part
    ]


def look_in(folder: Path) -> None:
    """Look for pictures in a folder, too."""
    _folders.setdefault(Path(folder), set())


def known(hash: str) -> bool:
    """Return whether a picture's bytes are at hand."""
    return hash in _kept or _file(hash) is not None


def data(hash: str) -> bytes:
    """Return the bytes of a picture.

    Raises:
        DataError: They are nowhere, or were changed.
    """
    found = _kept.get(hash)
    return _read(hash) if found is None else found


@lru_cache(256)
def _read(hash: str) -> bytes:
    file = _file(hash)
    if file is None:
        told = ", ".join(map(str, _folders)) or "no folder"
        raise DataError(f"the picture {hash[:16]} is not in {told}; put {FOLDER}/ of the run that made it back")
    found = file.read_bytes()
    if hashlib.sha256(found).hexdigest() != hash:
        raise DataError(f"{file}: it was changed; its name is the hash of what it had")
    return found


def _file(hash: str) -> Path | None:
    for folder, there in _folders.items():
        for name in _BEGINNINGS:
            if (file := folder / f"{hash}.{name}").exists():
                there.add(hash)
                return file
    return None


def missing(record: bytes, folder: Path) -> dict[str, bytes]:
    """Return the pictures that a record names and a folder lacks, by the names of their files there.

    Those that are at hand nowhere are left out: a policy's text may look like a mark.

    Args:
        record: The record as JSON.
        folder: A folder that is looked in from now on.
    """
    if b"[picture:" not in record:
        return {}
    look_in(folder)
    hashes = dict.fromkeys(found.decode() for found in _WRITTEN.findall(record))
    lacking = [hash for hash in hashes if hash not in _folders[folder] and known(hash)]
    found = {f"{hash}.{kind(data(hash))}": data(hash) for hash in lacking if hash not in _folders[folder]}
    return {name: bytes_ for name, bytes_ in found.items() if not (folder / name).exists()}


def forget(hash: str) -> None:
    """Forget a picture that no folder has."""
    _kept.pop(hash, None)


def waiting() -> bool:
    """Return whether there are pictures that no folder has yet."""
    return bool(_kept)


def saved(folder: Path, names: Iterable[str]) -> None:
    """Forget the bytes of pictures that a folder has now."""
    for hash in (name.partition(".")[0] for name in names):
        _folders[folder].add(hash)
        _kept.pop(hash, None)
