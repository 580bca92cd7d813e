"""Tiny random models of several families, forests of sequences, and the plain passes they are held against."""

from __future__ import annotations

import random
from typing import Any

import torch

from offline_agent.training.prefix_sharing.trie import Pack, Sequence

VOCABULARY = 97
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 1024,
    "initializer_range": 0.2, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
COMMON = ("vocab_size", "initializer_range", "pad_token_id", "bos_token_id", "eos_token_id")
MIXED = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},
    "gemma3_text": {**MIXED, "query_pre_attn_scalar": 24},
    "gemma2": {**MIXED, "query_pre_attn_scalar": 24},
    "mistral": {"sliding_window": 8},
    "qwen2": {"num_key_value_heads": 4, "attention_dropout": 0.0},
    "cohere": {"logit_scale": 0.25},
    "granite": {"logits_scaling": 4.0, "attention_multiplier": 0.3},
    "phi3": {"sliding_window": 8, "original_max_position_embeddings": 1024},
    "gpt2": {},
    "bloom": {},
    "mamba": {},
}
OLD: dict[str, dict[str, Any]] = {  # have names of their own for everything
    "gpt2": {"n_embd": 48, "n_head": 4, "n_layer": 2, "n_positions": 512, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
             "attn_pdrop": 0.0},
    "bloom": {"hidden_size": 48, "n_head": 4, "n_layer": 2},
    "mamba": {"hidden_size": 48, "num_hidden_layers": 2, "state_size": 8},
}  # fmt: skip


def model(family: str, **changes: Any) -> Any:
    """Return a random model in float32, its dropout off."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    shape = {**{name: SHAPE[name] for name in COMMON}, **OLD[family]} if family in OLD else SHAPE
    config = AutoConfig.for_model(family, **{**shape, **FAMILIES[family], **changes})
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def tree(seed: int = 0, depth: int = 3, children: int = 3, longest: int = 12) -> list[Sequence]:
    """Return the root-to-leaf paths of a random tree; what is scored alternates with what is not."""
    rng = random.Random(seed)

    def grow(ids: tuple[int, ...], scored: tuple[int, ...], left: int) -> list[Sequence]:
        found = []
        for child in range(rng.randint(1, children)):
            n = rng.randint(2, longest)
            more = (child, *[rng.randrange(VOCABULARY) for _ in range(n - 1)])
            mine = (int(bool(ids)), *[rng.randrange(2) for _ in range(n - 1)])
            if left == 1:
                found.append(Sequence(ids + more, scored + mine))
            else:
                found.extend(grow(ids + more, scored + mine, left - 1))
        return found

    return grow((), (), depth)


def apart(model: Any, sequences: list[Sequence]) -> list[torch.Tensor]:
    """Return each sequence's scored log-probabilities by a plain pass of its own."""
    found = []
    for sequence in sequences:
        ids = torch.tensor(sequence.ids)
        logps = torch.log_softmax(model(input_ids=ids[None], use_cache=False).logits[0, :-1].float(), -1)
        picked = logps.gather(-1, ids[1:, None])[:, 0]
        found.append(picked[torch.tensor(sequence.scored[1:], dtype=torch.bool)])
    return found


def together(logps: torch.Tensor, pack: Pack) -> list[torch.Tensor]:
    """Return each sequence's scored log-probabilities of a pack's."""
    return [logps[row] for row in pack.rows]


def loss(parts: list[torch.Tensor]) -> torch.Tensor:
    """Return a number that no two tokens enter alike."""
    total = torch.zeros(())
    for index, part in enumerate(parts):
        total = total + (part * torch.linspace(0.5, 1.5, len(part))).sum() * (-1) ** index / (1 + index)
    return total


def gradients(model: Any) -> dict[str, torch.Tensor]:
    """Return and forget the gradients."""
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def close(found: dict[str, torch.Tensor], known: dict[str, torch.Tensor], relative: float = 1e-4) -> None:
    """Hold gradients against each other, relative to the largest of their tensor."""
    assert found.keys() == known.keys() and known
    biggest = max(float(grad.abs().max()) for grad in known.values())
    for name, grad in known.items():
        scale = max(float(grad.abs().max()), 1e-2 * biggest)  # some are zero but for rounding, e.g. over equal tokens
        assert float((found[name] - grad).abs().max()) <= relative * scale, name
