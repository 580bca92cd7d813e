"""Two sets of weights of one model, log-probs, and how far two lists of them are apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offline_agent.policies.hf.policy import HFPolicy
from offline_agent.policies.weights import probe_of
from offline_agent.records import Context


def load(source: str) -> Any:
    """Return the model in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)


def perturbed(source: str, folder: str) -> Any:
    """Return the model with three tenths of each matrix's spread added as noise, and save it with its tokenizer."""
    import torch
    from transformers import AutoTokenizer

    model, noise = load(source), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim == 2:
                weights.add_(torch.randn(weights.shape, generator=noise) * weights.std() * 0.3)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return model


def close(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return |difference| of each."""
    return [abs(a - b) for a, b in zip(one, other, strict=True)]


def logps_of(policy: HFPolicy, context: Context, ids: Sequence[int]) -> Sequence[float]:
    """Return the log-probs of ids after a history by a policy's model, with attention of transformers' own."""
    policy.model.set_attn_implementation("sdpa")
    whole = [*policy.renderer.context_ids(context), *ids]
    return probe_of(policy.model, whole).logps[len(whole) - len(ids) - 1 :]
