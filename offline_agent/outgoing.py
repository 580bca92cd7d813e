"""Outgoing text: secrets are masked, and characters that a terminal or a page would obey are spelled out.

What is printed passes `shown`; files for readers pass `masked` where `store.files` writes them. Events, trees and
tables are data, which a resume and the token masks compare byte for byte: only error texts in them are masked.
"""

from __future__ import annotations

import html
import json
import os
import re
import threading
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, unquote

SHORTEST, SHORTEST_NUMBER = 6, 8
"""Characters of the shortest secret that is masked in any text; a shorter one is masked as its key's value alone."""

MASK = "***"
_WHOLE_WORD = 12  # a shorter secret is masked where it stands alone, not inside a longer word
_NAME = re.compile(
    r"(^|[\W_])((api|access|private|signing|account|subscription)[\W_]?key|password|passwd|passphrase|passcode|pwd|"
    r"secrets?|credentials?|token|auth|authorization|bearer|cookie|headers)$", re.I,
)  # fmt: skip
_HARMLESS_HEADERS = ("accept", "content-type", "user-agent")
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_FROM_OUTSIDE = re.compile(r"\$\{oc\.env:[^{}]+\}")
_SCHEME = re.compile(r"(?:bearer|basic|digest|token|apikey) +(\S+)", re.I)
_LOGIN = re.compile(r"(?<=://)[^/?#\s'\"<>]*(?=@)")
_QUERY = re.compile(r"(?<=[?&#])((?:amp;)?[\w.-]+)=([^&#;\s'\"<>]+)")
_QUERY_NAMES = ("key", "sig", "signature")
_PUBLIC_VARIABLES = re.compile(r"(HOME|USER|LOGNAME|HOSTNAME|PWD|OLDPWD|TMPDIR|SLURM_\w+|CUDA_\w+|RAY_\w+)$")
_UNUSUAL = re.compile(r"[^\w\x20-\x7e\t\n]")

_known: set[str] = set()
_find: re.Pattern[str] | None = None
_lock = threading.Lock()


def shown(text: str) -> str:
    """Return text for a terminal or a page: without secrets, and with what cannot be seen spelled out."""
    return visible(masked(text))


def visible(text: str) -> str:
    """Return text with all but printable characters, spaces, tabs and line ends spelled out (`\\x1b`, `\\u202e`).

    Otherwise the output of tools and models could move the cursor, reorder the letters around it, or not be encoded.
    """
    return _spelled(text, lambda char: char.encode("unicode_escape").decode())


def quoted(value: Any) -> str:
    """Return a JSON value on one line for a model; its texts cannot end their quotation.

    `<` is escaped, with which a chat template's control tokens begin, and so is what cannot be seen.
    """
    text = _spelled(json.dumps(value, ensure_ascii=False), lambda char: json.dumps(char)[1:-1])
    return text.replace("<", "\\u003c")


def _spelled(text: str, spell: Callable[[str], str]) -> str:
    if text.isprintable():
        return text

    def one(found: re.Match[str]) -> str:
        char = found.group()
        return char if char.isprintable() or unicodedata.category(char) == "Zs" else spell(char)

    return _UNUSUAL.sub(one, text)


def code(text: Any) -> str:
    """Return foreign text as a code span of Markdown, in which neither HTML nor a link is rendered."""
    return f"`{' '.join(shown(str(text)).replace('`', chr(39)).split())}`"


def without_html(text: str) -> str:
    """Return Markdown whose `<` are letters, apart from those in code spans, which are letters already."""
    return re.sub(r"(`[^`\n]*`)|<", lambda found: found[1] or "&lt;", text)


def remember(data: Any, name: str = "", *, secret: bool = False) -> None:
    """Remember the secrets in JSON data: values of keys such as `api_key`, and logins and tokens in URLs.

    Args:
        data: A configuration, environment variables, or one value.
        name: The key of the value, dotted or not.
        secret: Whether it is a secret under any name.
    """
    secret = _is_secret(name, secret)
    if isinstance(data, dict):
        for key, value in data.items():
            remember(value, str(key), secret=secret)
    elif isinstance(data, list | tuple):
        for value in data:
            remember(value, name, secret=secret)
    elif isinstance(data, str):
        if secret and not _FROM_OUTSIDE.fullmatch(data):
            _add(data)
        for login in _LOGIN.findall(data):
            _add(login.partition(":")[2] or (login if len(login) > _WHOLE_WORD else ""))
        for key, value in _QUERY.findall(data):
            if _in_query(key):
                _add(value)
    elif secret and isinstance(data, int) and not isinstance(data, bool):
        _add(str(data))


def remember_variable(name: str, value: str) -> None:
    """Remember what a configuration took from an environment variable, unless it is a path or the variable public."""
    top = "/".join(value.split("/")[:2])
    path = os.path.lexists(value) or (value.startswith("/") and top != "/" and os.path.isdir(top))
    if not path and not _PUBLIC_VARIABLES.match(name):
        remember(value, secret=True)


def remember_environment(variables: Mapping[str, str]) -> None:
    """Remember the values of variables that are named as secrets (no paths), and logins in URLs."""
    for name, value in variables.items():
        if _is_secret(name, False):
            remember_variable(name, value)
        else:
            remember(value)


def forget() -> None:
    """Forget every secret; for tests."""
    global _find
    with _lock:
        _known.clear()
        _find = None


def masked(data: Any, name: str = "", *, numbers: bool = False, secret: bool = False) -> Any:
    """Return JSON data, or a text, with `***` for every secret: remembered, by its key, or in a URL.

    Args:
        data: The data.
        name: Its key, dotted or not.
        numbers: Whether numbers under a secret's key are masked too, as in a configuration.
        secret: Whether it is a secret under any name.
    """
    secret = _is_secret(name, secret)
    if isinstance(data, dict):
        return {
            _masked_text(key) if isinstance(key, str) and "://" in key else key:  # servers are listed by their URL
            masked(value, str(key), numbers=numbers, secret=secret) for key, value in data.items()
        }  # fmt: skip
    if isinstance(data, list | tuple):
        return [masked(value, name, numbers=numbers, secret=secret) for value in data]
    if isinstance(data, str):
        return MASK if data and secret and not _FROM_OUTSIDE.fullmatch(data) else _masked_text(data)
    if isinstance(data, int | float) and not isinstance(data, bool):
        return MASK if secret and numbers or str(data) in _known else data
    return data


def _is_secret(name: str, inside: bool) -> bool:
    if name.lower() in _HARMLESS_HEADERS:
        return False
    return inside or any(_NAME.search(_CAPITAL.sub("_", part)) for part in name.split("."))


def _in_query(name: str) -> bool:
    name = name.removeprefix("amp;").lower()
    return name in _QUERY_NAMES or _is_secret(name, False)


def _masked_text(text: str) -> str:
    if _find is not None:
        text = _find.sub(MASK, text)
    if "://" in text:
        text = _LOGIN.sub(MASK, text)
        text = _QUERY.sub(lambda found: f"{found[1]}={MASK}" if _in_query(found[1]) else found[0], text)
    return text


def _add(value: str) -> None:
    """Remember one secret, also as it stands in URLs, HTML and JSON; a short one stands in too many texts."""
    global _find
    with _lock:
        for text in (value.strip(), *_SCHEME.findall(value), unquote(value)):
            if len(text) >= (SHORTEST_NUMBER if _is_number(text) else SHORTEST):
                _known.update((text, quote(text, safe="", errors="replace"), html.escape(text), json.dumps(text)[1:-1]))
        longest_first = sorted(_known, key=lambda text: (-len(text), text))
        _find = re.compile("|".join(map(_pattern, longest_first))) if longest_first else None


def _pattern(text: str) -> str:
    return re.escape(text) if len(text) >= _WHOLE_WORD else rf"(?<!\w){re.escape(text)}(?!\w)"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
