"""Replay of earlier iterations' preference pairs: first in, first out, large gaps of their kind first.

Values are passed on as they were written, certificates and reference log-probabilities included; the latter belong to
the model of their iteration, and the trainer computes them anew where the certificate's hash is not its model's. Column
names are the program's own (`_store.columns`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offline_agent.store.columns import known
from offline_agent.store.provenance import hash_json
from offline_agent.store.tables import read_table
from offline_agent.training.settings import ReplaySection

Row = Mapping[str, Any]

SMALLEST_GAP = 0.01
"""The part of its kind's mean gap that a smaller gap counts as, so that a pair without a gap is replayed too."""


@dataclass(frozen=True, slots=True)
class ReplayedPairs:
    """Pairs that are used again.

    Attributes:
        rows: Preference rows, oldest first, by the program's own names.
        kept: Number of earlier pairs they were drawn from.
        superseded: Number of earlier pairs left out because a newer one says the same or the contrary.
    """

    rows: list[dict[str, Any]]
    kept: int
    superseded: int


def replay(
    earlier: Sequence[Path],
    new: Iterable[Row],
    *,
    kinds: Sequence[str],
    keys: ReplaySection,
    seed: int,
) -> ReplayedPairs:
    """Draw earlier pairs to be trained on beside new ones.

    The newest `pairs` are kept. Of these at most `share` for each new pair are drawn without replacement, each time
    with a probability proportional to (gap / mean gap of its kind) ** priority (Efraimidis and Spirakis 2006: the
    largest log(u) / weight). The gap of a step pair is between two estimates, that of the other kinds between two
    ends; so gaps are compared within a kind alone, and kinds come in the proportion in which they were kept.

    Args:
        earlier: Preference tables (parquet files), oldest first.
        new: The rows they are replayed beside. An earlier pair with the same prompt and sides, in either order, is
            left out: newer evidence on the same question counts.
        kinds: The kinds of pairs that are trained on; others, earlier or new, are not looked at.
        keys: Numbers of pairs, and the exponent of the gap q_chosen - q_rejected, by its kind's mean.
        seed: The same seed and tables give the same draw.

    Raises:
        DataError: A table is missing, torn, or of another schema version.
    """
    seen: set[Hashable] = set()
    count = 0
    for row in new:
        if row["kind"] not in kinds:
            continue
        seen.update(_keys(known(row)))
        count += 1
    kept: list[dict[str, Any]] = []  # newest first
    superseded = 0
    for file in reversed(earlier):
        if len(kept) >= keys.pairs:
            break
        for row in reversed([known(row) for row in read_table(file)]):
            if len(kept) >= keys.pairs:
                break
            if row["kind"] not in kinds:
                continue
            said = _keys(row)
            if seen.intersection(said):
                superseded += 1
                continue
            seen.update(said)
            kept.append(row)
    kept.reverse()
    drawn = _draw(kept, min(len(kept), int(keys.share * count)), keys.priority, seed)
    return ReplayedPairs(drawn, len(kept), superseded)


def gap(row: Row) -> float:
    """Return a pair's difference of values, in [0, 1]."""
    return max(0.0, float(row["q_chosen"]) - float(row["q_rejected"]))


def _draw(rows: list[dict[str, Any]], size: int, priority: float, seed: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    gaps: dict[str, list[float]] = {}
    for row in rows:
        gaps.setdefault(row["kind"], []).append(gap(row))
    usual = {kind: sum(each) / len(each) or 1.0 for kind, each in gaps.items()}
    shares = [max(gap(row) / usual[row["kind"]], SMALLEST_GAP) for row in rows]
    keys = [math.log(1.0 - chance.random()) / share**priority for share in shares]
    best = sorted(range(len(rows)), key=lambda index: (-keys[index], index))[:size]
    return [rows[index] for index in sorted(best)]


def _keys(row: Row) -> tuple[Hashable, Hashable]:
    """Return the key of the pair, and the key of the pair with its sides exchanged."""
    names = ("prompt", "chosen", "rejected")
    if row.get("prompt_ids") is not None:
        prompt, *sides = (hash_json(list(row[f"{name}_ids"])) for name in names)
    else:
        prompt, *sides = (hash_json(row[name]) for name in names)
    return (prompt, *sides), (prompt, *reversed(sides))
