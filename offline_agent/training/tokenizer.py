"""The default model's tokenizer: words, digits and call scaffolding are one token each, in every context."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from offline_agent.envs.shop import Shop
from offline_agent.envs.shop.catalogue import vocabulary

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = Path(__file__).with_name("default_model.jinja")

SCAFFOLDS = (
    '<tool_call>\n{"name": "',
    '", "arguments": {"',
    '", "arguments": {',
    '"}}\n</tool_call>',
    "}}\n</tool_call>",
    '": "',
    '": ',
    "user\n<tool_response>\n",
    "\n</tool_response>",
    "system\n",
    "user\n",
    "assistant\n",
    ", ",
    ": ",
    " $",
)
"""Longest first. Ordinary tokens, not added ones: what an environment says can never contain a control token."""

SPEECH = (
    "Buy one for at most page seen is error no such option rank results bought go back first product open search over "
    "the visit allowed to nothing Tools what asked fits here"
)

MARKS = (" yes", " no")
"""One token with the blank before it: what is said of a word then stands right behind the word."""


def build_tokenizer() -> Any:
    """Return a transformers tokenizer (byte-level BPE, chat template with generation markers).

    Words do not carry the space before them, so a word is the same token in a title, in JSON quotes and after a space.
    Pieces never cross a word's border, so a text split at a message's or a content's border has the same ids as the
    whole. Any other text is encoded too, in smaller pieces down to bytes.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    pieces = [*map(re.escape, SCAFFOLDS), rf"(?:{'|'.join(MARKS)})\b", "[A-Za-z]+", "[0-9]", r"[\s\S]"]
    tokenizer.pre_tokenizer = cutter(pieces)
    trainer = trainers.BpeTrainer(
        vocab_size=100_000,  # merging stops by itself, when every piece below is one token
        min_frequency=1,
        show_progress=False,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(_lexicon(), trainer)
    return finished(tokenizer, 2048)


def cutter(pieces: Sequence[str]) -> Any:
    """Return what cuts texts into the first of these regular expressions that fits, byte by byte below them."""
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("|".join(pieces)), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def finished(backend: Any, positions: int) -> Any:
    """Return a byte-level back end as a transformers tokenizer with the project's chat template.

    Args:
        backend: Of the tokenizers library; its vocabulary holds `SPECIAL`.
        positions: Longest sequence in tokens.
    """
    from tokenizers import decoders
    from transformers import PreTrainedTokenizerFast

    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=TEMPLATE.read_text(encoding="utf-8"),
        clean_up_tokenization_spaces=False,
        model_max_length=positions,
    )


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
