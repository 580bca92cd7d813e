"""Small GGUF files with random weights, in the shape that llama.cpp's converter gives Llama models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.helpers import rendering as kit


def llama(path: Path, template: str, width: int = 32, layers: int = 2) -> Path:
    """Write a Llama with a tokenizer whose turns end with <|im_end|>, but whose beginning is <|im_start|>."""
    import gguf

    tokenizer = kit.byte_level(kit.CONTROLS, template)
    words = [word for word, _ in sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])]
    merges = [" ".join(pair) for pair in json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]]
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(layers)
    writer.add_context_length(1024)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(2 * width)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_types([3 if word in kit.CONTROLS else 1 for word in words])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(words.index("<|im_start|>"))
    writer.add_eos_token_id(words.index("<|im_end|>"))
    writer.add_chat_template(template)

    def weights(name: str, *shape: int) -> None:
        writer.add_tensor(name, rng.normal(0, 0.2, shape).astype(np.float32))

    weights("token_embd.weight", len(words), width)
    for number in range(layers):
        block = f"blk.{number}."
        for name, rows, columns in (
            ("attn_q", width, width), ("attn_k", width // 2, width), ("attn_v", width // 2, width),
            ("attn_output", width, width), ("ffn_gate", 2 * width, width), ("ffn_up", 2 * width, width),
            ("ffn_down", width, 2 * width),
        ):  # fmt: skip
            weights(f"{block}{name}.weight", rows, columns)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{block}{name}.weight", np.ones(width, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
