"""GGUF files as plain model folders: weights made full once, kept in the user's cache.

    python -m offline_agent.policies.hf.gguf FILE.gguf [FOLDER]
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

from offline_agent.errors import ConfigError
from offline_agent.store import integrity

SUFFIX = ".gguf"


def cache() -> Path:
    """Return the folder of models of this user: `$XDG_CACHE_HOME/offline_agent/models`, by default below `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "offline_agent" / "models"


def gguf_file(path: str | Path) -> Path | None:
    """Return the GGUF file that a path names, itself or as the only one of a folder without `config.json`.

    Raises:
        ConfigError: The folder has several.
    """
    place = Path(path).expanduser()
    if place.suffix == SUFFIX and place.is_file():
        return place
    if not place.is_dir() or (place / "config.json").is_file():
        return None
    found = sorted(place.glob(f"*{SUFFIX}"))
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise ConfigError(f"model: got {str(path)!r}, allowed: a folder with one GGUF file, or a file; it has {names}")
    return found[0] if found else None


def unpacked(file: Path, folder: Path | None = None) -> Path:
    """Return the folder of a GGUF file's model as plain transformers reads it; it is written where it is not there.

    The weights are made full in float32. The tokenizer's end of turn is the one that the model's configuration names,
    and it pads with the same token where it has none of its own.

    Args:
        file: The file.
        folder: Where to write; None = the cache, by a hash of the file.

    Raises:
        ConfigError: The file cannot be read as a causal language model, or the package `gguf` is missing.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if folder is None:
        with file.open("rb") as stream:
            folder = cache() / f"{file.stem}-{hashlib.file_digest(stream, 'sha256').hexdigest()[:16]}"
    if (folder / "config.json").is_file():
        return folder
    place: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(file.parent), **place)
        packed = AutoModelForCausalLM.from_pretrained(str(file.parent), dtype=torch.float32, **place)
    except Exception as error:  # transformers raises errors of many classes
        missing = " (pip install gguf)" if "gguf" in str(error) and isinstance(error, ImportError) else ""
        raise ConfigError(
            f"model: {str(file)!r} cannot be read as a causal language model{missing}: {type(error).__name__}: {error}"
        ) from error
    config = packed.config
    del config.quantization_config  # it refuses to be saved
    model = type(packed)(config)
    model.load_state_dict(packed.state_dict())
    if config.eos_token_id is not None:
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(config.eos_token_id)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.clean_up_tokenization_spaces = False  # decoding is to give the text that was encoded
    for name in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(name, None)
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    model.save_pretrained(str(fresh))
    tokenizer.save_pretrained(str(fresh))
    integrity.seal(fresh)
    fresh.rename(folder)
    return folder


def main() -> None:
    """Unpack a file and print its folder."""
    if not 2 <= len(sys.argv) <= 3:
        raise SystemExit(__doc__)
    file = gguf_file(sys.argv[1])
    if file is None:
        raise SystemExit(f"got {sys.argv[1]!r}, allowed: a GGUF file, or a folder with one")
    print(unpacked(file, Path(sys.argv[2]) if sys.argv[2:] else None))


if __name__ == "__main__":
    main()
