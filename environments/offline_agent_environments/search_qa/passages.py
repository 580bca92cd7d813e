"""Collections of passages: a BM25 index in process, or a retriever behind a URL."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

MOST_WORDS = 64
"""Words of a query that are looked for."""

_TIMEOUT = 30.0  # seconds for the retriever's answer


class Passage(NamedTuple):
    """A passage; titles are unique in a collection."""

    title: str
    text: str


class Collection:
    """Passages and their BM25 index.

    Args:
        passages: The passages.
    """

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.passages = tuple(passages)
        self.by_title = {passage.title.casefold(): passage for passage in self.passages}
        self._index, self._vocabulary = _build([[*_words(p.title), *_words(p.text)] for p in self.passages])
        self._rank = lru_cache(maxsize=16_384)(self._ranked)

    def search(self, query: str, k: int) -> list[Passage]:
        """Return the `k` best passages, best first; equal ones in the collection's order. Unknown words are ignored."""
        words = tuple(sorted({word for word in _words(query)[:MOST_WORDS] if word in self._vocabulary}))
        return [self.passages[number] for number in self._rank(words, k)] if words else []

    def _ranked(self, words: tuple[str, ...], k: int) -> tuple[int, ...]:
        import numpy as np

        # Rounding keeps a last bit of float noise from ordering equal scores.
        scores = np.round(np.asarray(self._index.get_scores(list(words)), dtype=np.float64), 3)
        order = np.argsort(-scores, kind="stable")[:k]
        return tuple(int(number) for number in order if scores[number] > 0)


class Retriever:
    """A retriever behind a URL.

    It is asked with `POST {"query": TEXT, "k": NUMBER}` and answers `{"passages": [{"title": TEXT, "text": TEXT}, …]}`,
    best first.

    Args:
        url: Its address.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def search(self, query: str, k: int) -> list[Passage]:
        """Return the retriever's passages.

        Raises:
            RuntimeError: It does not answer, or not in this form: a fault of the environment, not of the query.
        """
        body = json.dumps({"query": query, "k": k}).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as reply:
                data = json.loads(reply.read())
        except (OSError, ValueError) as error:
            raise RuntimeError(f"the retriever {self._url} failed: {type(error).__name__}: {error}") from error
        listed = data.get("passages") if isinstance(data, Mapping) else None
        if not isinstance(listed, list) or not all(_is_passage(one) for one in listed):
            raise RuntimeError(
                f"the retriever {self._url} answered {str(data)[:200]}; wanted: "
                '{"passages": [{"title": ..., "text": ...}]}'
            )
        return [Passage(one["title"], one["text"]) for one in listed[:k]]


def _is_passage(one: Any) -> bool:
    return isinstance(one, Mapping) and isinstance(one.get("title"), str) and isinstance(one.get("text"), str)


def _build(documents: list[list[str]]) -> tuple[Any, frozenset[str]]:
    import bm25s

    index = bm25s.BM25()
    index.index(documents, show_progress=False)
    return index, frozenset(word for words in documents for word in words)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())
