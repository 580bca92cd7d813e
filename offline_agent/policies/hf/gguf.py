"""GGUF files as plain model folders: weights made full once, kept in the user's cache.

    python -m offline_agent.policies.hf.gguf FILE.gguf
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path

from offline_agent.errors import ConfigError
from offline_agent.rendering.hub import load, quiet
from offline_agent.store import provenance

SUFFIX = ".gguf"


def cache() -> Path:
    """Return the folder of models of this user: `$XDG_CACHE_HOME/offline_agent/models`, by default below `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "offline_agent" / "models"


def plain_folder(source: str, key: str) -> str:
    """Return where a model is loaded from: the folder of an unpacked GGUF file, else `source` itself.

    Args:
        source: A GGUF file, a folder with one and no `config.json`, any other folder, or a hub name.
        key: The configuration key that names it, for messages.

    Raises:
        ConfigError: The folder has several GGUF files, or the file cannot be read.
    """
    place = Path(source).expanduser()
    found = [place] if place.suffix == SUFFIX and place.is_file() else []
    if place.is_dir() and not (place / "config.json").is_file():
        found = sorted(place.glob(f"*{SUFFIX}"))
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise ConfigError(f"{key}: got {source!r}, allowed: one of its files; it has {names}")
    return str(unpacked(found[0], key)) if found else source


def unpacked(file: Path, key: str) -> Path:
    """Return the folder of a GGUF file's model, by a hash of the file; it is written where it is not there.

    The weights are in float32. The tokenizer ends turns with the token that the model's configuration names, and pads
    with it where it has none of its own; decoding gives the text that was encoded.

    Raises:
        ConfigError: The file cannot be read as a causal language model, or the package `gguf` is missing.
    """
    with file.open("rb") as stream:
        folder = cache() / f"{file.stem}-{hashlib.file_digest(stream, 'sha256').hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    try:
        import gguf  # noqa: F401  (transformers reads the file with it)
    except ImportError as error:
        raise ConfigError(f"{key}: got {str(file)!r}; GGUF files need a package: pip install gguf") from error
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, named = str(file.parent), {"gguf_file": file.name}
    tokenizer = load(AutoTokenizer, source, key, "a tokenizer", **named)
    packed = load(AutoModelForCausalLM, source, key, "a causal language model", dtype=torch.float32, **named)
    config = packed.config
    del config.quantization_config  # a model with it refuses to be saved
    model = type(packed)(config)
    model.load_state_dict(packed.state_dict())
    if config.eos_token_id is not None:
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(config.eos_token_id)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.clean_up_tokenization_spaces = False
    for name in ("is_local", "local_files_only"):  # where it was loaded from is no part of it
        tokenizer.init_kwargs.pop(name, None)
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        with quiet():
            model.save_pretrained(str(fresh))
        tokenizer.save_pretrained(str(fresh))
        provenance.seal(fresh)
        fresh.rename(folder)
    except Exception as error:  # safetensors, transformers and the disk raise classes of their own
        if folder.is_dir():  # another process was faster
            return folder
        raise ConfigError(
            f"{key}: {str(file)!r} could not be unpacked into {folder} ({type(error).__name__}: {error}); make room "
            "there, or name another folder with XDG_CACHE_HOME"
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(plain_folder(sys.argv[1], "model"))
