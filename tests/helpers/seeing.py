"""A tiny model that sees pictures, with random weights, made here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offline_agent.rendering.renderer import Renderer
from offline_agent.training.models import save_plain
from offline_agent.training.scratch import new_model, with_tower
from offline_agent.training.settings import ScratchSection

SHAPE = ScratchSection(layers=2, hidden_size=32, heads=2, key_value_heads=2, vocabulary=320, pictures=16, patch_size=8)
TEXTS = ["Name colours. Which colour? And now? Done. say colour red green blue grey", '{"colour": "red"}'] * 3


def made(seed: int = 0, template: str | None = None) -> tuple[Any, Any, Renderer]:
    """Return model, processor and renderer."""
    model, tokenizer = new_model(TEXTS, SHAPE, seed=seed)
    model, processor = with_tower(model, tokenizer, SHAPE, seed)
    if template is not None:
        tokenizer.chat_template = processor.chat_template = template
    return model, processor, Renderer(tokenizer, processor)


def split_up() -> tuple[Any, Any, Renderer]:
    """Return a model of Idefics3's kind, which cuts a picture into tiles with tokens of their own between them."""
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration, Idefics3Processor
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    text, tokenizer = new_model(TEXTS, SHAPE)
    tiles = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
    named = ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *tiles]
    tokenizer.add_special_tokens({"additional_special_tokens": named})
    images = Idefics3ImageProcessorPil(size={"longest_edge": 32}, max_image_size={"longest_edge": 16})
    processor = Idefics3Processor(images, tokenizer, image_seq_len=4, chat_template=tokenizer.chat_template)
    text.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    tower = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Idefics3Config(
        text_config=text.config.to_dict(), vision_config={**tower, "image_size": 16, "patch_size": 4}, scale_factor=2,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"), pad_token_id=0,
    )  # fmt: skip
    return Idefics3ForConditionalGeneration(config), processor, Renderer(tokenizer, processor)


def saved(folder: Path) -> Path:
    """Return the folder of such a model."""
    from offline_agent.policies.hf.embedding import read_pictures

    model, _, renderer = made()
    read_pictures(model, renderer.vision, "model")
    save_plain(model, renderer.tokenizer, folder)
    return folder


IN_PLACE = "{% for p in parts %}{{ '<image>' if p.type == 'image' else p.text }}{% endfor %}"
FIRST = """{% for p in parts if p.type == 'image' %}{{ '<image>\\n' }}{% endfor %}
{%- for p in parts if p.type == 'text' %}{{ p.text }}{% endfor %}"""


def of_parts(words: str) -> str:
    """Return the project's template for contents that are lists of parts, as those of most models with pictures are."""
    from offline_agent.training.scratch import TEMPLATE

    text = TEMPLATE.read_text(encoding="utf-8").replace("message.content or ''", "message.content")
    text = text.replace("messages[0].content", "words(messages[0].content)")
    text = text.replace("'\\n' if message.content or not", "'\\n' if words(message.content) or not")
    for old in ("{{- message.content }}", "' + message.content + '"):
        text = text.replace(old, old.replace("message.content", "words(message.content)"))
    return "{%- macro words(parts) %}" + words + "{% endmacro %}" + text
