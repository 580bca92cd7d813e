"""Low-rank adapters on top of their base model, never merged: from a folder that peft wrote, or a trainer's own."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

from offline_agent.errors import ConfigError
from offline_agent.policies.hf.attention import NAME
from offline_agent.policies.hf.loading import check_finite, check_source, check_whole, model_hash
from offline_agent.policies.weights import ADAPTER_FILE, tensor_shapes
from offline_agent.rendering.hub import quiet
from offline_agent.store.provenance import hash_path

BASE_FILE = "base.json"  # ours, beside peft's files: `dtype` and `hash` (`loading.model_hash`) of the base


def base_of(source: str, key: str) -> str | None:
    """Return the folder or hub name of the base model that a folder of adapters names; None = no such folder.

    Args:
        source: A folder or hub name.
        key: The configuration key that names it, for messages.

    Raises:
        ConfigError: The folder is damaged, names no base, or its base is not there.
    """
    folder = Path(source).expanduser()
    if not (folder / ADAPTER_FILE).is_file() or (folder / "config.json").is_file():
        return None
    check_whole(folder, key)
    what = f"{key}: {source!r} has adapters alone, and base_model_name_or_path in its {ADAPTER_FILE}"
    try:
        base = json.loads((folder / ADAPTER_FILE).read_text(encoding="utf-8"))["base_model_name_or_path"]
        base = str(Path(base).expanduser())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{what} cannot be read ({error!r}); write the base's folder or hub name there") from error
    try:
        check_source(base, key)
    except ConfigError as error:
        raise ConfigError(f"{what} names a base that cannot be taken; write its place there. {error}") from error
    return base


def put_on(model: Any, base: str, source: str, key: str) -> dict[str, object]:
    """Put the adapters of a folder onto a model in place, and return entries of the manifest.

    Args:
        model: The base model, as it was loaded.
        base, key: As of `base_of`.
        source: The folder of adapters.

    Returns:
        `base`, and the hashes of both: `base_hash`, of the weights, and `adapter_hash`, of the folder.

    Raises:
        ConfigError: The adapters are not of this base, or not finite.
    """
    from peft import PeftModel

    folder, found = Path(source).expanduser(), {"dtype": str(model.dtype), "hash": model_hash(model)}
    remedy = f"name the base that they were trained on in {ADAPTER_FILE}, or give a merged model"
    if (folder / BASE_FILE).is_file():
        known = json.loads((folder / BASE_FILE).read_text(encoding="utf-8"))
        if known["dtype"] == found["dtype"] and known != found:  # in another format the same weights hash otherwise
            raise ConfigError(
                f"{key}: the adapters in {source!r} were trained on another base than {base!r}: its weights have the "
                f"hash {found['hash']}, allowed: {known['hash']}; {remedy}"
            )
    try:
        with quiet():
            adapted = PeftModel.from_pretrained(model, str(folder), autocast_adapter_dtype=False)
    except Exception as error:  # peft and torch raise classes of their own
        said = str(error).strip().rpartition("\n")[2].strip()
        raise ConfigError(f"{key}: the adapters in {source!r} do not fit {base!r} ({said}); {remedy}") from error
    there = {re.sub(r"\.default(?=\.|$)", "", name) for name in adapted.state_dict() if ".lora_" in name}
    if odd := sorted(there ^ set(tensor_shapes(folder))):
        raise ConfigError(f"{key}: the adapters in {source!r} do not fit {base!r}: {odd[0]} is in one alone; {remedy}")
    check_finite(adapted, key, source)
    adapted.eval().requires_grad_(False).to(model.dtype)
    return {"base": base, "base_hash": found["hash"], "adapter_hash": hash_path(folder)}


def share(one: Any, other: Any) -> bool:
    """Return whether two models have the same weights in the same memory, a peft model's inner one for it."""
    mine, theirs = ([w.data_ptr() for w in _inner(model).parameters()] for model in (one, other))
    return mine == theirs


def sharing(trained: Any, own: Any) -> Any:
    """Return a model with the slot attention that runs the weights of a peft model, without a copy of them.

    Args:
        trained: The model.
        own: A model for the same requests; weights in another format or elsewhere are not shared.

    Returns:
        The model; None where it cannot be, as for a model without adapters, whose training would need a second copy.
    """
    inner = _inner(trained)
    if inner is trained or any((w.dtype, w.device) != (own.dtype, own.device) for w in inner.parameters()):
        return None
    mine = copy.deepcopy(inner, {id(tensor): tensor for tensor in (*inner.parameters(), *inner.buffers())})
    for module in mine.modules():  # the trainer's
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    mine.set_attn_implementation(NAME)
    return mine.eval()


def _inner(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "disable_adapter") else model
