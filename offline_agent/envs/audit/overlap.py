"""Overlap of splits: first observations that are almost the same in two of them.

Similarity is the Jaccard index of word trigrams (Broder 1997), without those that more than half of all texts have: a
template that every task shares says nothing. Pairs are found with prefix filtering (Bayardo et al. 2007), so that not
every pair is compared.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

Shingles = frozenset[tuple[str, ...]]


class Near(NamedTuple):
    """Two tasks of different splits that begin almost alike.

    Attributes:
        one, other: `split/task_id` of each.
        similarity: Jaccard index in [0, 1]; 1 = the same words.
    """

    one: str
    other: str
    similarity: float


def near_pairs(texts: Mapping[str, Mapping[str, str]], least: float) -> Iterator[Near]:
    """Yield the pairs of tasks of two splits whose texts are at least so similar.

    Args:
        texts: First observations by split and task id.
        least: Least Jaccard index, in (0, 1].
    """
    every = {f"{split}/{name}": _words(text) for split, some in texts.items() for name, text in some.items()}
    raw = {name: _shingles(words) for name, words in every.items()}
    count = Counter(shingle for shingles in raw.values() for shingle in shingles)
    common = {shingle for shingle, number in count.items() if number > len(raw) / 2 and len(raw) > 4}
    # A text that is all template is compared whole; else two equal prompts of one wording would be lost.
    sets = {name: (shingles - common) or shingles for name, shingles in raw.items()}
    index: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, shingles in sets.items():
        split = name.partition("/")[0]
        ordered = sorted(shingles, key=lambda shingle: (count[shingle], shingle))
        prefix = ordered[: len(ordered) - math.ceil(least * len(ordered)) + 1]
        rivals = {other for shingle in prefix for other in index[shingle] if other.partition("/")[0] != split}
        for other in sorted(rivals):
            similarity = _jaccard(shingles, sets[other])
            if similarity >= least:
                yield Near(other, name, similarity)
        for shingle in prefix:
            index[shingle].append(name)


def _words(text: str) -> Sequence[str]:
    return re.findall(r"\w+", text.casefold())


def _shingles(words: Sequence[str], size: int = 3) -> Shingles:
    if len(words) < size:
        return frozenset([tuple(words)])
    return frozenset(tuple(words[at : at + size]) for at in range(len(words) - size + 1))


def _jaccard(one: Shingles, other: Shingles) -> float:
    return len(one & other) / len(one | other)
