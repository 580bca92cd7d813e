"""Loading and saving what is trained: plain transformers folders in, plain transformers folders out."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from offline_agent.errors import ConfigError, TrainingError, did_you_mean
from offline_agent.policies.base import DEFAULT_MODEL
from offline_agent.rendering.hub import load, quiet
from offline_agent.rendering.renderer import Renderer
from offline_agent.store import provenance
from offline_agent.store.files import sync_folder
from offline_agent.training.checkpoints import sync
from offline_agent.training.settings import LoraSection

_EXCHANGE, _HERE = 2, -100  # RENAME_EXCHANGE and AT_FDCWD of renameat2(2)


class Trainable(NamedTuple):
    """A model with its tokenizer, chat template inside, and the renderer of that tokenizer."""

    model: Any
    tokenizer: Any
    renderer: Renderer


def load_trainable(
    path: str | None, tokenizer: str | None = None, chat_template: str | None = None, dtype: str = "float32"
) -> Trainable:
    """Return the model, on CUDA where there is one, its tokenizer with its chat template, and their renderer.

    Args:
        path: A folder or hub name; None = the embedded default.
        tokenizer: Path or name, where it is not the model's own.
        chat_template: Replaces the tokenizer's own: the name of a ready-made one, a file, or its text.
        dtype: Format of the weights: `float32` or `bfloat16`.

    Raises:
        ConfigError: One of them cannot be loaded, or they do not fit.
    """
    import torch

    from offline_agent.policies.hf.embedding import read_pictures
    from offline_agent.policies.hf.gguf import plain_folder
    from offline_agent.policies.hf.loading import check_finite, check_source, model_class

    if path is None:
        source = str(DEFAULT_MODEL)
    else:
        folder = Path(path).expanduser()
        source = plain_folder(str(folder) if folder.exists() else path, "model.path")
    check_source(source, "model.path")
    renderer = Renderer.load(tokenizer or source, chat_template)
    for name in ("is_local", "local_files_only"):  # where it was loaded from is no part of what is saved with a model
        renderer.tokenizer.init_kwargs.pop(name, None)
    model = load(
        model_class(source), source, "model.path", "a causal language model",
        dtype=getattr(torch, dtype), use_safetensors=True,
    )  # fmt: skip
    check_finite(model, "model.path", source)
    size = model.config.get_text_config().vocab_size
    if renderer.vocab_size > size:
        raise ConfigError(
            f"model.tokenizer: it has {renderer.vocab_size} ids, the model {size}; give the tokenizer the model was "
            "made with"
        )
    read_pictures(model, renderer.vision if hasattr(model, "get_image_features") else None, "model.path")
    place = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
    return Trainable(model.to(place), renderer.tokenizer, renderer)


def set_threads(threads: int | None, model: Any) -> None:
    """Give torch so many threads; None = one for a small model on a CPU, as it is for any other.

    With one, sums never change their order, and what else the machine does costs its share of the time and no more:
    threads that wait for each other were seen to take ten times as long on a busy machine.
    """
    import torch

    from offline_agent.policies.hf.policy import is_small

    if threads is None and is_small(model) and next(model.parameters()).device.type == "cpu":
        threads = 1
    if threads is not None:
        torch.set_num_threads(threads)


def use_checkpointing(model: Any, wanted: bool | None) -> None:
    """Make a model compute each layer again in the backward pass, in place of keeping its activations.

    Args:
        model: The model; it is changed.
        wanted: Whether it is done; None = for models that are not small (`policies.hf.policy.is_small`).

    Raises:
        ConfigError: It is wanted, and the model has no such layers.
    """
    from offline_agent.policies.hf.policy import is_small

    if model.supports_gradient_checkpointing and (not is_small(model) if wanted is None else wanted):
        model.gradient_checkpointing_enable({"use_reentrant": False})
    elif wanted:
        raise ConfigError(
            f"batch.gradient_checkpointing: got true, but {type(model).__name__} cannot compute its layers again; give "
            "false, and a smaller batch.tokens or batch.max_length where memory is short"
        )


def positions(model: Any) -> int:
    """Return the longest sequence, in tokens, that a model was made for; 2**20 where its configuration does not say."""
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 20)


def add_adapters(model: Any, lora: LoraSection, seed: int = 0) -> Any:  # peft.PeftModel
    """Return the model with low-rank adapters, which alone are trained (LoRA, Hu et al. 2022).

    Args:
        model: The model; it is changed.
        lora: The keys; the rank is at least 1.
        seed: Of the adapters' first weights.

    Raises:
        ConfigError: No module has such a name.
    """
    import torch
    from peft import LoraConfig, get_peft_model

    names = adapted(model, lora.targets)
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=2 * lora.rank if lora.alpha is None else lora.alpha,
        target_modules=names,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_peft_model(model, config)


def adapted(model: Any, targets: str) -> str | list[str]:
    """Return `targets` as peft takes them; raises ConfigError where the model has no such modules."""
    import torch

    if targets == "all-linear":
        return targets
    names = [name.strip() for name in targets.split(",") if name.strip()]
    head = model.get_output_embeddings()  # training reads its weights, and would pass by an adapter of it
    layers = [(n, module) for n, module in model.named_modules() if module is not head]
    linear = {name.rsplit(".", 1)[-1] for name, module in layers if isinstance(module, torch.nn.Linear)}
    faults = [
        f"lora.targets: got {name!r}, allowed: all-linear, or some of {', '.join(sorted(linear))}."
        f"{did_you_mean(name, linear)}"
        for name in names or [targets]
        if name not in linear
    ]
    if faults:
        raise ConfigError(faults)
    return names


def skeleton(folder: Path, key: str) -> Any:
    """Return a model of a folder's configuration without memory for weights, for checks; raises ConfigError."""
    import torch
    from transformers import AutoConfig

    from offline_agent.policies.hf.loading import model_class

    config = load(AutoConfig, str(folder), key, "the configuration of a model")
    with torch.device("meta"):
        return model_class(str(folder)).from_config(config, trust_remote_code=False)


def save_plain(model: Any, tokenizer: Any, folder: Path) -> str:
    """Write model and tokenizer, chat template inside, as a folder that plain transformers loads; return its hash.

    Adapters are merged into a copy; `model` itself does not change. The folder appears whole or not at all, in place of
    one that is there.

    Args:
        model: A transformers model, or a peft one around it.
        tokenizer: Its tokenizer.
        folder: The folder to write.

    Returns:
        `policies.hf.loading.model_hash` of what was written.

    Raises:
        TrainingError: The disk refused, or something in the model cannot be saved; what was there before is untouched.
    """
    written: list[str] = []
    _in_place(folder, lambda place: written.append(_write_plain(model, tokenizer, place)))
    return written[0]


def save_adapter(model: Any, folder: Path, base_hash: str | None = None) -> None:
    """Write a peft model's adapters alone, as a folder that peft loads; with the hash of its base, too.

    Raises as `save_plain`.
    """
    from offline_agent.policies.hf.adapters import BASE_FILE

    def write(place: Path) -> None:
        model.save_pretrained(str(place), safe_serialization=True)
        if base_hash is not None:
            known = {"dtype": str(model.get_base_model().dtype), "hash": base_hash}
            (place / BASE_FILE).write_text(json.dumps(known), encoding="utf-8")

    _in_place(folder, write)


def _write_plain(model: Any, tokenizer: Any, place: Path) -> str:
    from offline_agent.policies.hf.embedding import READER
    from offline_agent.policies.hf.loading import model_hash, not_finite

    if hasattr(model, "merge_and_unload"):
        model = copy.deepcopy(model).merge_and_unload()
    broken = not_finite(model.named_parameters())
    if broken:
        raise TrainingError(
            f"{len(broken)} weights, {broken[0]} first, are not finite, with adapters added where it has some; the "
            "model was not saved. Lower optimizer.learning_rate and begin in another run_dir"
        )
    config = model.config.get_text_config()
    cached, config.use_cache = config.use_cache, True  # trainers switch it off for themselves
    try:
        with quiet():
            model.save_pretrained(str(place))
        reader = getattr(model, READER, None)
        tokenizer.save_pretrained(str(place)) if reader is None else reader.save(place, tokenizer)
        return model_hash(model)
    finally:
        config.use_cache = cached


def _in_place(folder: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a new folder beside `folder`, then put it in its place."""
    folder = Path(folder).absolute()
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for left in folder.parent.glob(f".{folder.name}.*.tmp"):  # of a writer that was killed
            shutil.rmtree(left, ignore_errors=True)
        fresh.mkdir()
        write(fresh)
        provenance.seal(fresh)
        sync(fresh)
        _swap(fresh, folder)
        sync_folder(folder.parent)
    except TrainingError:
        raise
    except Exception as error:  # safetensors, transformers and the disk raise classes of their own
        raise TrainingError(_explain(folder, error)) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _explain(folder: Path, error: Exception) -> str:
    kept = "; what was there before is untouched" if folder.exists() else ""
    try:
        free = shutil.disk_usage(folder.parent).free
        room = f" {free / 1e6:.0f} MB are free there."
    except OSError:
        room = ""
    return (
        f"{folder}: it could not be saved ({type(error).__name__}: {error}){kept}.{room} "
        "Make room or mend that, and give the same command again: it goes on from the last checkpoint."
    )


def _swap(fresh: Path, folder: Path) -> None:
    """Put `fresh` at `folder`; what was there is at `fresh` afterwards. Atomic where the system can exchange names."""
    if not folder.exists():
        os.rename(fresh, folder)
        return
    with contextlib.suppress(OSError, AttributeError):
        exchange = ctypes.CDLL(None, use_errno=True).renameat2
        if exchange(_HERE, os.fsencode(fresh), _HERE, os.fsencode(folder), _EXCHANGE) == 0:
            return
    old = folder.with_name(f".{folder.name}.old.{os.getpid()}.tmp")
    os.rename(folder, old)
    os.rename(fresh, folder)
    os.rename(old, fresh)
