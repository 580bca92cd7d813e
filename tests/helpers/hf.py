"""Tiny random models of several families in a folder, and the plain ways to run them it is held against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offline_agent.policies.base import Proposals, ProposeRequest
from offline_agent.policies.hf.policy import HFPolicy
from offline_agent.records import Action, Context, Task
from tests.helpers import rendering as rendering_kit

SHAPE: dict[str, Any] = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 1024, "initializer_range": 0.25,
}  # fmt: skip
OLD = ("gpt2", "bloom")  # have names of their own for everything
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 4},
    "qwen3": {},
    "qwen2": {"head_dim": 12},
    "gemma": {"num_key_value_heads": 1},
    "mistral": {"sliding_window": 24},
    "gemma2": {"sliding_window": 24},
    "gpt2": {"n_embd": 48, "n_head": 4, "n_layer": 2, "n_positions": 512, "initializer_range": 0.25},
    "bloom": {"hidden_size": 48, "n_head": 4, "n_layer": 2},
}


def save(family: str, folder: Path, **changes: Any) -> Path:
    """Write a random model of a family, with a tokenizer, and return its folder."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = rendering_kit.qwen()
    torch.manual_seed(0)
    common = {
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": 0,
        "bos_token_id": None,
    }
    config = AutoConfig.for_model(
        family, **{**({} if family in OLD else SHAPE), **common, **FAMILIES.get(family, {}), **changes}
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def start(number: int = 0, text: str = "Find red shoes, size 42.") -> Context:
    """Return the start of an episode."""
    task = Task(f"t-{number}", "train", {})
    return Context(task, "You shop with care.", rendering_kit.TOOLS, f"{text} Item {number}.")


def follow(context: Context, action: Action, observation: str = "nothing found; try other words") -> Context:
    """Return a history one turn longer."""
    return context.child(action, observation)


def ask(policy: HFPolicy, *requests: ProposeRequest) -> list[Proposals]:
    """Return the answers, none of which may be an error."""
    answers = policy.propose(requests)
    for answer in answers:
        assert isinstance(answer, Proposals), answer
    return answers  # type: ignore[return-value]


def generated(policy: HFPolicy, folder: Path, contexts: list[Context]) -> list[tuple[int, ...]]:
    """Return what plain left-padded `generate` answers greedily."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompts = [policy.renderer.context_ids(context) for context in contexts]
    longest = max(map(len, prompts))
    out = model.generate(
        input_ids=torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts]),
        attention_mask=torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]),
        max_new_tokens=policy.max_tokens,
        do_sample=False,
        eos_token_id=sorted(policy.renderer.eos_ids),
        pad_token_id=0,
    )
    ends = policy.renderer.eos_ids
    rows = out[:, longest:].tolist()
    return [tuple(next((row[: at + 1] for at, token in enumerate(row) if token in ends), row)) for row in rows]


def full_logps(folder: Path, prompt: list[int], ids: tuple[int, ...]) -> list[float]:
    """Return the log-probabilities of `ids` after `prompt` by one plain forward pass."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(ids)[:, None])[:, 0].tolist()


def trie_size(prompts: list[list[int]]) -> int:
    """Return the number of distinct prefixes of all prompts."""
    root: dict[int, Any] = {}
    count = 0
    for prompt in prompts:
        node = root
        for token in prompt:
            if token not in node:
                node[token] = {}
                count += 1
            node = node[token]
    return count
