"""New models with random weights, and tokenizers learnt from the texts that they are trained on."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from offline_agent import pictures
from offline_agent.errors import ConfigError
from offline_agent.training.settings import ScratchSection

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = Path(__file__).with_name("default_model.jinja")

PLACEHOLDER = "<image>"
"""The token that stands for a patch of a picture."""

SCAFFOLDS = (
    '<tool_call>\n{"name": "',
    '", "arguments": {"',
    '", "arguments": {',
    '"}}\n</tool_call>',
    "}}\n</tool_call>",
    '": "',
    '", "',
    '": ',
    "user\n<tool_response>\n",
    "\n</tool_response>",
    "system\n",
    "user\n",
    "assistant\n",
)
"""Text that the template writes around contents, longest first; one ordinary token each."""

WHOLE = 0.6
"""Share of the vocabulary, after bytes and scaffolds, for whole words; the rest is for pieces of words."""

LEAST_ACTION = 64
"""Least tokens that an action of a new model may have."""


def new_model(texts: Iterable[str], shape: ScratchSection, *, seed: int = 0, dtype: str = "float32") -> tuple[Any, Any]:
    """Return an untrained model of Llama's shape with tied embeddings, and its tokenizer with a chat template.

    Args:
        texts: Texts that the tokenizer is learnt from.
        shape: The keys.
        seed: Seed of the weights.
        dtype: Number format of the weights.

    Raises:
        ConfigError: There is no text.
    """
    import torch

    tokenizer = learn_tokenizer(texts, shape.vocabulary, shape.max_positions)
    model = untrained(tokenizer, shape, seed)
    return model.to(getattr(torch, dtype)).to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer


def allow_actions(model: Any, masks: Iterable[Sequence[int]]) -> None:
    """Set the `max_new_tokens` of a model's generation configuration: twice its longest training action, at least 64.

    Args:
        model: The model, changed in place.
        masks: The action masks of its training rows, int [n] each: 1 on the tokens of the policy.
    """
    longest = max((sum(1 for _ in run) for mask in masks for bit, run in groupby(mask) if bit), default=0)
    model.generation_config.max_new_tokens = max(LEAST_ACTION, 2 * longest)


def untrained(tokenizer: Any, shape: ScratchSection, seed: int) -> Any:
    """Return a model of Llama's shape with tied embeddings, initialised to learn copying early; float32, CPU.

    Weights are drawn with the deviation 1/√hidden_size: the usual 0.02 suits wide models; a narrow model with it keeps
    uniform attention for a long time. Half of the key heads start as copies of their query heads, so that equal tokens
    attend to each other from the start (W_Q W_Kᵀ near a multiple of the identity; Trockman and Kolter, arXiv
    2305.09828).

    Args:
        tokenizer: A tokenizer; its size, control tokens included, is the vocabulary.
        shape: The keys; the inner width is three times the outer.
        seed: Seed of the weights.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden_size,
        intermediate_size=3 * shape.hidden_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        max_position_embeddings=shape.max_positions,
        initializer_range=shape.hidden_size**-0.5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).float()
    size, group = shape.hidden_size // shape.heads, shape.heads // shape.key_value_heads
    with torch.no_grad():
        for layer in model.model.layers:
            query, key = layer.self_attn.q_proj.weight, layer.self_attn.k_proj.weight
            for head in range((shape.key_value_heads + 1) // 2):
                first = head * group * size  # several query heads share a key head: copy the first of them
                key[head * size : (head + 1) * size] = query[first : first + size]
    return model


def with_tower(model: Any, tokenizer: Any, shape: ScratchSection, seed: int) -> tuple[Any, Any]:
    """Return a model of LLaVA's shape around a text model, with a vision tower of two layers, and its processor.

    Args:
        model: A model of Llama's shape with tied embeddings, which gets one id more.
        tokenizer: Its tokenizer; it gets the placeholder of pictures.
        shape: The keys.
        seed: Seed of the tower's weights.
    """
    import torch
    from transformers import CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor
    from transformers.models.clip import CLIPImageProcessorPil

    size = {"height": shape.pictures, "width": shape.pictures}
    images = CLIPImageProcessorPil(
        size=size, crop_size=size, do_center_crop=False, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    tokenizer.add_special_tokens({"additional_special_tokens": [PLACEHOLDER]})
    processor = LlavaProcessor(
        images, tokenizer, patch_size=shape.patch_size, vision_feature_select_strategy="default",
        image_token=PLACEHOLDER, num_additional_image_tokens=1, chat_template=tokenizer.chat_template,
    )  # fmt: skip
    tower = CLIPVisionConfig(
        hidden_size=shape.hidden_size, intermediate_size=3 * shape.hidden_size, num_hidden_layers=2,
        num_attention_heads=shape.heads, image_size=shape.pictures, patch_size=shape.patch_size,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        config = LlavaConfig(
            vision_config=tower, text_config=model.config, image_token_index=processor.image_token_id,
            vision_feature_layer=-1, tie_word_embeddings=True,
        )  # fmt: skip
        whole = LlavaForConditionalGeneration(config).to(model.device, model.dtype)
    whole.model.language_model.load_state_dict(model.model.state_dict())
    whole.tie_weights()
    whole.generation_config = model.generation_config
    return whole, processor


def learn_tokenizer(texts: Iterable[str], vocabulary: int, max_positions: int = 2048) -> Any:
    """Return a transformers tokenizer of at most `vocabulary` tokens.

    A word is one token together with the blank before it, so a command of three words is the same three tokens in any
    place. The most frequent words are whole tokens; other words are split into byte-pair pieces, any other text into
    bytes.

    Args:
        texts: Texts to learn from.
        vocabulary: Most tokens.
        max_positions: Longest sequence, in tokens; stored with the tokenizer.

    Raises:
        ConfigError: There is no text.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    texts = ["".join(pictures.split(text)[::2]) for text in texts]  # no word is learnt from the marks of pictures
    cut = byte_level_splitter([*map(re.escape, SCAFFOLDS), " ?[A-Za-z]+", r" ?[^\sA-Za-z0-9]", r"[\s\S]"])
    counts = Counter(piece for text in texts for piece, _ in cut.pre_tokenize_str(text) if len(piece) > 1)
    if not counts:
        raise ConfigError("scratch: there is no text to learn a tokenizer from")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fixed = [piece for text in SCAFFOLDS for piece, _ in cut.pre_tokenize_str(text)]
    start = list(dict.fromkeys([*SPECIAL, *alphabet, *fixed]))
    room = vocabulary - len(start)
    # Equally frequent words are sorted by name: the order of the texts must not matter.
    words = [word for word, _ in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])) if word not in fixed]
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = cut
    trainer = trainers.BpeTrainer(
        vocab_size=2 * vocabulary, min_frequency=2, show_progress=False, initial_alphabet=alphabet
    )
    learner.train_from_iterator(texts, trainer)
    vocab = {token: number for number, token in enumerate([*start, *words[: int(WHOLE * room)]])}
    merges: list[tuple[str, str]] = []
    for left, right in json.loads(learner.to_str())["model"]["merges"]:
        if len(vocab) >= vocabulary:
            break
        merges.append((left, right))
        vocab.setdefault(left + right, len(vocab))
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    backend.pre_tokenizer = cut
    backend.add_special_tokens(list(SPECIAL))
    return transformers_tokenizer(backend, max_positions)


def byte_level_splitter(pieces: Sequence[str]) -> Any:
    """Return a pre-tokenizer that splits texts by the first regular expression that matches, then into bytes."""
    from tokenizers import Regex, pre_tokenizers

    split = pre_tokenizers.Split(Regex("|".join(pieces)), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def transformers_tokenizer(backend: Any, positions: int) -> Any:
    """Return a byte-level back end as a transformers tokenizer with the project's chat template.

    Args:
        backend: A `tokenizers.Tokenizer` whose vocabulary holds `SPECIAL`.
        positions: Longest sequence, in tokens.
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
