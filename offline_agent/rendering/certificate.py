"""Certificates: hashes and spans that let a loader check the masks and other columns of a row again.

A certificate holds the hash of each id sequence and the spans of its masks, the value or the hash of every other
column, and a digest of the whole. It detects accidental changes and careless edits; it is not a signature.
docs/masks.md lists its fields.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from offline_agent.errors import DataError
from offline_agent.rendering.values import canonical, floats_hash, ids_hash, text_hash
from offline_agent.rendering.vision import PATCH
from offline_agent.store.columns import LOGPS, SEQUENCES

SCHEMA = 2
ANEW = 3  # the schema of rows whose ids are several sequences, which earlier versions would take for one

_UNCOVERED = {*SEQUENCES, "certificate"}  # ids and masks are covered by the entry of their sequence


def mask_of(spans: Sequence[Sequence[int]], length: int) -> list[int]:
    """Return int [length]: 1 inside the half-open spans, 0 elsewhere."""
    mask = [0] * length
    for start, end in spans:
        mask[start:end] = [1] * (end - start)
    return mask


def side(
    ids: Sequence[int], spans: Sequence[tuple[int, int]], texts: Sequence[str], starts: Sequence[int] = ()
) -> dict[str, Any]:
    """Return the certificate's entry for the ids of one side, of which every span decodes to its text.

    Args:
        ids: int [n].
        spans: One half-open [start, end) per action, ascending, end-of-turn token included where sampled.
        texts: The actions' recorded texts, one per span.
        starts: Where a sequence begins anew among the ids: each has a prompt of its own.
    """
    return {
        **({"starts": list(starts)} if starts else {}),
        "length": len(ids),
        "spans": [list(span) for span in spans],
        "trainable": sum(end - start for start, end in spans),
        "texts": [text_hash(text) for text in texts],
        "ids": ids_hash(ids),
        "round_trip": True,
    }


def seal(text: str | None, row: Mapping[str, Any]) -> str:
    """Return a certificate that covers every column of a row.

    Args:
        text: The certificate of its token columns; None where it has none.
        row: Its columns, by known names (`store.columns`).
    """
    data = {"schema": SCHEMA} if text is None else json.loads(text)
    # the sequences have entries of their own, with lengths, spans and texts
    data["columns"] = {name: _fact(name, value) for name, value in row.items() if name not in _UNCOVERED}
    data["digest"] = _digest(data)
    return json.dumps(data, sort_keys=True)


def parse(text: object) -> dict[str, Any]:
    """Return a certificate's content.

    Raises:
        DataError: It is missing, broken, changed, or of another schema.
    """
    try:
        data = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise DataError("it has no readable certificate")
    if data.get("schema") not in (SCHEMA, ANEW):
        raise DataError(f"its certificate has schema {data.get('schema')!r}; this version reads {SCHEMA} and {ANEW}")
    # one that is being written has no digest yet
    sealed = "columns" in data or "digest" in data
    if sealed and data.get("digest") != _digest(data):
        raise DataError("its certificate was changed after it was written (its digest is of another content)")
    return data


def of_tokens(data: Mapping[str, Any]) -> bool:
    """Return whether a certificate belongs to a row with token columns."""
    return "sequence" in data or "prompt" in data


def read(text: object, template_hash: str, tokenizer_hash: str) -> dict[str, Any]:
    """Return the content of a certificate of token columns.

    Raises:
        DataError: As `parse`; or it belongs to another tokenizer or template.
    """
    data = parse(text)
    for name, want in (("template_hash", template_hash), ("tokenizer_hash", tokenizer_hash)):
        if data.get(name) != want:
            raise DataError(
                f"its {name} is {str(data.get(name))[:16]}, this tokenizer's is {want[:16]}: the ids were made with "
                "another tokenizer or chat template; load that one"
            )
    # only rows that passed get a certificate: one that says otherwise was edited
    if data.get("round_trip") is not True:
        raise DataError("its certificate says that the round trip failed")
    return data


def check_columns(data: Mapping[str, Any], row: Mapping[str, Any], whole: bool) -> None:
    """Compare the columns of a row with its certificate.

    Args:
        data: The certificate's content.
        row: The columns, by known names.
        whole: Whether every certified column must be present, as in the tables of a run.

    Raises:
        DataError: A column differs or is missing; the message names it, with both values where they are numbers.
    """
    certified = data.get("columns", {})
    for name, want in certified.items():
        if name not in row:
            if whole:
                raise DataError(f"it lacks {name}, which its certificate covers")
            continue
        got = _fact(name, row[name])
        if type(got) is not type(want) or got != want:  # types too: True equals 1, and 1 equals 1.0
            told = ", which is not what was certified"
            if not isinstance(got, str) and not isinstance(want, str):
                told = f" is {got!r}, certified was {want!r}"
            raise DataError(f"its {name}{told}")


def _digest(data: Mapping[str, Any]) -> str:
    # of the content as it is parsed: another order of keys or other blanks are no change
    rest = {name: value for name, value in data.items() if name != "digest"}
    return hashlib.blake2b(json.dumps(rest, sort_keys=True).encode(), digest_size=16).hexdigest()


def _fact(name: str, value: Any) -> Any:
    """Return the certificate's entry for a value: the value itself for numbers, booleans and None, else a hash."""
    if name in LOGPS and value is not None:  # hashed as float32, the precision in which tables keep them
        return floats_hash(value)
    value = canonical(value)
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return text_hash(json.dumps(value, sort_keys=True))


def check_side(
    name: str,
    entry: Any,
    ids: Any,
    mask: Any,
    logps: Any,
    vocab_size: int,
    decode: Callable[[Sequence[int]], str],
    pictured: bool = False,
) -> list[list[int]]:
    """Check one id sequence against its entry in the certificate.

    Args:
        name: Name of the sequence, for messages.
        entry: The certificate's entry.
        ids: int [n].
        mask: int [n], 0 or 1; None where the sequence has no mask (a prompt).
        logps: float [n] or None.
        vocab_size: Every id but those of pictures' patches must be below it.
        decode: Maps the ids of a span to the action's text, without the end-of-turn token.
        pictured: Whether there may be patches of pictures among the ids.

    Returns:
        The ids of each span.

    Raises:
        DataError: The first difference found.
    """
    if not isinstance(entry, dict):
        raise DataError(f"its certificate has no entry for {name}")
    ids = _ints(f"{name} ids", ids)
    if len(ids) != entry.get("length") or ids_hash(ids) != entry.get("ids"):
        raise DataError(f"its {name} ids ({len(ids)}) are not those that were certified ({entry.get('length')})")
    words = [token for token in ids if token < PATCH] if pictured else ids
    if words and not 0 <= min(words) <= max(words) < vocab_size:
        raise DataError(f"its {name} ids leave the vocabulary [0, {vocab_size})")
    spans: Any = entry.get("spans")
    texts: Any = entry.get("texts")
    if not _ordered(spans, len(ids)) or not isinstance(texts, list) or len(texts) != len(spans):
        raise DataError(f"its {name} spans are not ascending, disjoint ranges of the {len(ids)} ids, one per action")
    if not starts_fit(entry.get("starts", []), mask_of(spans, len(ids))):
        raise DataError(f"its {name} has sequences that begin anew at {entry['starts']}, where none can begin")
    if mask is not None:
        mask = _ints(f"{name} mask", mask)
        # the spans are the truth: a mask that was edited with its count is found by them
        if mask != mask_of(spans, len(ids)):
            raise DataError(f"its {name} mask ({sum(mask)} of {len(mask)} set) does not match its spans")
        if sum(mask) != entry.get("trainable"):
            raise DataError(f"its {name} mask sets {sum(mask)} tokens, the certificate {entry.get('trainable')}")
    if logps is not None and not hasattr(logps, "__len__"):
        raise DataError(f"its {name} log-probs are {type(logps).__name__}, not a list")
    if logps is not None and len(logps) != len(ids):
        raise DataError(f"its {name} log-probs ({len(logps)}) do not match its ids ({len(ids)})")
    pieces = [ids[start:end] for start, end in spans]
    if len(words) < len(ids) and any(token >= PATCH for piece in pieces for token in piece):
        raise DataError(f"its {name} mask counts a patch of a picture, which no policy samples")
    for index, (piece, want) in enumerate(zip(pieces, texts, strict=True)):
        # ids that were swapped for others of the same length are found by the text
        if text_hash(decode(piece)) != want:
            raise DataError(f"its {name} span {index} {spans[index]} decodes to another text than the recorded action")
    return pieces


def starts_fit(starts: Any, mask: Sequence[int]) -> bool:
    """Return whether sequences can begin anew at `starts`: ascending, none of them inside or right before a turn.

    Args:
        starts: int [k], places among the ids.
        mask: int [n], 1 = sampled.
    """
    before = 0
    for start in starts if isinstance(starts, list | tuple) else [None]:
        if type(start) is not int or not before < start < len(mask) or mask[start]:
            return False
        before = start
    return True


def _ints(name: str, values: Any) -> list[int]:
    # tables give lists of int, which need no copy; other lists are of numpy or JSON
    if type(values) is list and set(map(type, values)) <= {int}:
        return values
    try:
        return [int(value) for value in values]
    except (TypeError, ValueError):
        raise DataError(f"its {name} is not a list of integers") from None


def _ordered(spans: Any, length: int) -> bool:
    at = 0
    if not isinstance(spans, list):
        return False
    for span in spans:
        if not (isinstance(span, list) and len(span) == 2 and all(isinstance(edge, int) for edge in span)):
            return False
        if not at <= span[0] <= span[1] <= length:
            return False
        at = span[1]
    return True
