"""Unpacks a GGUF file into a model folder that policy.model and model.path take: weights in float32, and the tokenizer.

    python tools/unpack_gguf.py FOLDER

The folder has one GGUF file; the model is written beside it. Needs the package gguf.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from offline_agent.store import provenance


def unpack(folder: Path) -> None:
    """Write the model of the folder's GGUF file into the folder.

    The tokenizer ends turns with the token that the model's configuration names, and pads with it where it has none of
    its own; decoding gives the text that was encoded.
    """
    (file,) = folder.glob("*.gguf")
    source, named = str(folder), {"gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(source, **named)
    packed = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, **named)
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
    fresh = folder / f".{os.getpid()}.tmp"
    try:
        model.save_pretrained(str(fresh))
        tokenizer.save_pretrained(str(fresh))
        provenance.seal(fresh)
        for path in sorted(fresh.iterdir(), key=lambda path: path.name == "config.json"):  # last: it makes it a model
            path.rename(folder / path.name)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    place = Path(sys.argv[1])
    if not (place / "config.json").is_file():
        unpack(place)
    print(place)
