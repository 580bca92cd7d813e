"""Loading of causal language models for the slot attention, and checks of arguments and weights."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from offline_agent.errors import ConfigError, PolicyError, did_you_mean
from offline_agent.policies.hf.attention import NAME, slot_attention
from offline_agent.policies.hf.kv_cache import CacheShape
from offline_agent.policies.hf.model_classes import (
    AttentionInterface,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
)
from offline_agent.rendering.hub import load
from offline_agent.rendering.vision import sees
from offline_agent.store import provenance
from offline_agent.store.provenance import free_memory

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_NAMED = 8  # most weights or files that a message names
LEAST_ACTION_TOKENS, MOST_ACTION_TOKENS = 64, 1024  # where the model does not say how long an action may be
_CONTEXT_SHARE = 8  # actions and observations of the longest turns that fit in a context
MOST_ON_CPU = 1 << 30  # bytes of keys and values
HASHED_WHOLE = 1 << 22  # most elements of a tensor that are hashed; larger tensors are sampled evenly

AttentionInterface.register(NAME, slot_attention)
_log = logging.getLogger(__name__)


def choose_device(device: str, dtype: str | None) -> tuple[torch.device, torch.dtype]:
    """Return the device and the number format: float32 on a CPU, bfloat16 elsewhere, unless `dtype` says so.

    Raises:
        ConfigError: No such device or format.
    """
    faults = []
    if dtype is not None and dtype not in DTYPES:
        faults.append(f"policy.dtype: got {dtype!r}, allowed: {', '.join(DTYPES)}.{did_you_mean(dtype, DTYPES)}")
    chosen = torch.device("cpu")
    try:
        chosen = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
        torch.zeros(1, device=chosen)
    except (RuntimeError, AssertionError) as error:
        faults.append(f"policy.device: got {device!r}, allowed: auto, cpu, or a device torch finds here ({error})")
    if faults:
        raise ConfigError(faults)
    number_format = DTYPES[dtype] if dtype else (torch.float32 if chosen.type == "cpu" else torch.bfloat16)
    if note := slow(number_format, chosen):
        _log.warning(note)
    return chosen, number_format


def slow(dtype: torch.dtype, device: torch.device) -> str | None:
    """Return a note where a number format of 16 bits is slow: on a processor with AVX2 and no AVX-512; else None."""
    if device.type != "cpu" or dtype.itemsize != 2 or torch.backends.cpu.get_cpu_capability() != "AVX2":
        return None
    name = str(dtype).removeprefix("torch.")
    return (
        f"this processor is slow in {name}: it has AVX2 and no AVX-512, and products of matrices take "
        "several times as long; leave policy.dtype and model.dtype out"
    )


def load_model(path_or_name: str, device: torch.device, dtype: torch.dtype) -> Any:
    """Return the model in evaluation mode, with the slot attention.

    Args:
        path_or_name: A folder with `config.json` and `*.safetensors`, or a hub name.
        device: Its device.
        dtype: Number format of its weights.

    Raises:
        ConfigError: There is no such model, it cannot be loaded, or it is damaged.
    """
    check_source(path_or_name, "policy.model")
    folder = Path(path_or_name).expanduser()
    if folder.is_dir():
        path_or_name = str(folder)
    model = load(
        model_class(path_or_name), path_or_name, "policy.model", "a causal language model",
        dtype=dtype, use_safetensors=True, attn_implementation=NAME,
    )  # fmt: skip
    check_finite(model, "policy.model", path_or_name)
    return model.eval().requires_grad_(False).to(device)


def model_class(source: str) -> Any:
    """Return the class of transformers that loads a model, with its vision tower where pictures can be shown to it."""
    return AutoModelForImageTextToText if sees(source) else AutoModelForCausalLM


def check_source(source: str, key: str) -> None:
    """Check that a path is a model's folder with all its files as they were written; a hub's name is not checked.

    Args:
        source: A folder or hub name.
        key: The configuration key that names it.

    Raises:
        ConfigError: There is no such folder, or it is not a whole model.
    """
    folder = Path(source).expanduser()
    if not folder.is_dir():
        if folder.is_absolute() or source.startswith(("./", "../", "~")):
            beside = [p.name for p in folder.parent.iterdir()] if folder.parent.is_dir() else []
            raise ConfigError(
                f"{key}: got {source!r}, allowed: a folder that exists, or a hub name; there is no such folder."
                f"{did_you_mean(folder.name, beside)}"
            )
        return
    if not (folder / "config.json").is_file():
        below = folder / "model"
        hint = f"did you mean {below}?" if (below / "config.json").is_file() else "give the folder of a merged model"
        raise ConfigError(f"{key}: {source!r} has no config.json; {hint}")
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(f"{key}: {source!r} has no *.safetensors; model.save_pretrained(folder) writes them")
    check_whole(folder, key)


def not_finite(weights: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
    """Return the names of weights with a non-finite value; of sharded weights, this process's part is checked.

    Args:
        weights: Names and tensors, of any shapes.
    """
    named = [(name, tensor.to_local() if hasattr(tensor, "to_local") else tensor) for name, tensor in weights]
    known = [(name, tensor.detach()) for name, tensor in named if tensor.is_floating_point() and tensor.numel()]
    if not known:
        return []
    sound = torch.stack([torch.isfinite(tensor).all().to(known[0][1].device) for _, tensor in known]).tolist()
    return [name for (name, _), good in zip(known, sound, strict=True) if not good]


def check_finite(model: Any, key: str, source: str) -> None:
    """Check that a model's weights are finite: diverged training may have saved NaN.

    Args:
        model: The model.
        key: The configuration key that names it.
        source: Its folder or hub name.

    Raises:
        ConfigError: Weights are not finite; names them.
    """
    broken = not_finite(model.named_parameters())
    if broken:
        named = ", ".join(broken[:_NAMED]) + (f" and {len(broken) - _NAMED} more" if len(broken) > _NAMED else "")
        raise ConfigError(
            f"{key}: the weights of {source!r} are not finite: {named}; the training that wrote them diverged. Give an "
            "earlier checkpoint of it, or train again with a lower optimizer.learning_rate"
        )


def check_whole(folder: Path, key: str) -> None:
    """Check a model folder against the seal that was written with it.

    Args:
        folder: The folder; without a seal, or where it is not a folder, it is not checked.
        key: The configuration key that names it.

    Raises:
        ConfigError: A file is missing or altered.
    """
    found = provenance.seal_faults(folder)
    if found:
        raise ConfigError(
            f"{key}: {str(folder)!r} is not as it was written: {'; '.join(found[:_NAMED])}. Restore it from a copy, or "
            f"give the command that made it again with its run_dir. Where it was altered on purpose, remove "
            f"{provenance.SEAL} in it"
        )


def model_hash(model: Any) -> str:
    """Return 16 hex digits that identify the weights: names, shapes, formats and values (large tensors sampled)."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        flat = tensor.detach().reshape(-1)
        if flat.numel() > HASHED_WHOLE:
            flat = flat[:: flat.numel() // HASHED_WHOLE]
        digest.update(flat.contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def copy_weights(source: Any, target: Any) -> None:
    """Copy a model's weights into another of the same shape; a PeftModel's with its adapters added.

    Args:
        source: A transformers model, or a PeftModel around one; not changed.
        target: A transformers model; on any device, in any format.

    Raises:
        PolicyError: They are not of the same shape.
    """
    found = dict(plain_weights(source))
    with torch.no_grad():
        for name, weights in target.named_parameters():
            given = found.get(name)
            if given is None or given.shape != weights.shape:
                got = "nothing" if given is None else str(tuple(given.shape))
                raise PolicyError(f"weights of {name}: got {got}, allowed: {tuple(weights.shape)}; is it another model")
            weights.copy_(given)


def plain_weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield names and weights of the plain model, adapters merged; the model itself is not changed."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    for prefix, module in base.named_modules():
        adapted = hasattr(module, "get_delta_weight") and hasattr(module, "base_layer")
        if adapted and not module.disable_adapters and not module.merged:
            weights = module.base_layer.weight
            delta = sum(module.get_delta_weight(name) for name in module.active_adapters if name in module.lora_A)
            yield f"{prefix}.weight", weights + delta
    for name, weights in base.named_parameters():
        plain = name.replace(".base_layer.", ".")
        if ".lora_" not in name and not (plain != name and name.endswith("base_layer.weight")):
            yield plain, weights


def shape(model: Any) -> CacheShape:
    """Return the shape of a model's keys and values."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return CacheShape(config.num_hidden_layers, heads, kv_heads, width, next(model.parameters()).device.type == "cpu")


def share_of_memory(device: torch.device) -> int:
    """Return the limit, in bytes, of keys and values in work, and by default of those kept of earlier histories.

    It is a sixth of the free memory, so both together take a third; on a CPU, whose memory other programs and the
    environments need too, at most 1 GiB.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0]) // 6
    return min(MOST_ON_CPU, free_memory() // 6)


def action_limit(context: int, generation: Any = None) -> int:
    """Return the most tokens of one action where the user names none.

    Args:
        context: Most tokens of a prompt and its action together.
        generation: The model's generation configuration, whose `max_new_tokens` is taken; None or without: an eighth of
            the context, within `LEAST_ACTION_TOKENS` and `MOST_ACTION_TOKENS`.
    """
    own = getattr(generation, "max_new_tokens", None)
    if own is not None:
        return int(own)
    return max(LEAST_ACTION_TOKENS, min(MOST_ACTION_TOKENS, context // _CONTEXT_SHARE))


def action_limit_of(path_or_name: str) -> int:
    """Return `action_limit` of a model's files, without loading its weights.

    Raises:
        ConfigError: There is no such model.
    """
    from transformers import AutoConfig, GenerationConfig

    from offline_agent.policies.hf.gguf import plain_folder

    path_or_name = plain_folder(path_or_name, "model.path")
    config = load(AutoConfig, path_or_name, "model.path", "the configuration of a model").get_text_config()
    try:
        generation = load(GenerationConfig, path_or_name, "model.path", "limits of generation")
    except ConfigError:  # not every model has one
        generation = None
    return action_limit(longest_context(config), generation)


def longest_context(config: Any) -> int:
    """Return the most positions of a model; a large number where its configuration sets no limit."""
    return getattr(config, "max_position_embeddings", None) or 1 << 20
