"""Tokenizer of the default model: words, digits and the text around calls are one token each, in every context."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from offline_agent.envs.shop import Shop
from offline_agent.envs.shop.catalogue import vocabulary
from offline_agent.training.scratch import SCAFFOLDS as CALL_SCAFFOLDS
from offline_agent.training.scratch import SPECIAL, byte_level_splitter, transformers_tokenizer

SCAFFOLDS = (*(text for text in CALL_SCAFFOLDS if text != '", "'), ", ", ": ", " $")
"""Text around contents, longest first. Ordinary tokens, so no content can become a control token."""

SPEECH = (
    "Buy one for at most page seen is error no such option rank results bought go back first product open search over "
    "the visit allowed to nothing Tools what asked fits here"
)

MARKS = (" yes", " no")
"""One token each, with the blank before it: the mark of a word then directly follows the word."""


def build_tokenizer() -> Any:
    """Return a transformers tokenizer (byte-level BPE, chat template with generation markers).

    Words do not carry the space before them, so a word is the same token in a title, in JSON quotes and after a space.
    Pieces never cross the border of a word, so a text split at the border of a message or content has the same ids as
    the whole. Any other text is encoded in smaller pieces, down to bytes.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    pieces = [*map(re.escape, SCAFFOLDS), rf"(?:{'|'.join(MARKS)})\b", "[A-Za-z]+", "[0-9]", r"[\s\S]"]
    tokenizer.pre_tokenizer = byte_level_splitter(pieces)
    trainer = trainers.BpeTrainer(
        vocab_size=100_000,  # merging ends by itself, when every piece of the lexicon is one token
        min_frequency=1,
        show_progress=False,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(_lexicon(), trainer)
    return transformers_tokenizer(tokenizer, 2048)


def _lexicon() -> Iterator[str]:
    yield from SCAFFOLDS
    yield from vocabulary()
    yield from SPEECH.split()
    yield from MARKS
    for name, function in inspect.getmembers(Shop, inspect.isfunction):
        if not name.startswith("_"):
            yield name
            yield from (parameter for parameter in inspect.signature(function).parameters if parameter != "self")
    yield from ("name", "arguments", "assistant", "user", "system")
