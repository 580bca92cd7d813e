"""Loading of models and tokenizers: no code of theirs is run, and a hub that does not answer is asked once."""

from __future__ import annotations

import contextlib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from offline_agent.crash_notes import noted
from offline_agent.errors import ConfigError

SECONDS = 5.0  # wait for the hub's answer; transformers would ask again and again for more than a minute
_FILES = ("config.json", "tokenizer_config.json", "tokenizer.json")


def load(kind: Any, source: str, key: str, what: str, **options: Any) -> Any:
    """Return `kind.from_pretrained(source, …)`; the one place where files of a checkpoint are loaded.

    Args:
        kind: A class of transformers.
        source: A folder, or a hub name.
        key: The configuration key that names it, for messages.
        what: The thing that it is loaded as, for messages.
        options: Of `from_pretrained`.

    Raises:
        ConfigError: It cannot be loaded, the hub cannot be reached, or it needs code of its own.
    """
    here = only_here(source, key)
    try:
        with quiet(), noted(f"loading {what}, {source}"):
            return kind.from_pretrained(source, local_files_only=here, trust_remote_code=False, **options)
    except Exception as error:  # transformers raises errors of nearly every class
        said = str(error).strip().splitlines()
        why = f"{type(error).__name__}: {said[0] if said else 'no message'}"
        if "trust_remote_code" in str(error):
            why = "it needs program code of its own (auto_map in its files), which is never run"
        raise ConfigError(
            f"{key}: {source!r} cannot be loaded as {what} ({why}); give a folder written by save_pretrained, or the "
            "name of one on the hub that this machine can reach"
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from drawing bars of its own: commands have theirs."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def only_here(source: str, key: str) -> bool:
    """Return whether a model or tokenizer must be loaded from this machine alone, because the hub does not answer.

    Args:
        source: A folder, or a hub name.
        key: The configuration key that names it, for messages.

    Raises:
        ConfigError: It is neither a folder nor in the hub's cache on this machine, and the hub cannot be reached.
    """
    if Path(source).is_dir():
        return False
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else _unreachable(constants.ENDPOINT)
    if not why:
        return False
    try:
        if any(isinstance(try_to_load_from_cache(source, name), str) for name in _FILES):
            return True
    except HFValidationError:
        pass  # no hub name at all, and no folder either
    raise ConfigError(
        f"{key}: got {source!r}; there is no such folder, no model of that name in the hub's cache on this machine, "
        f"and the hub cannot be reached ({why}). Give a folder that save_pretrained wrote, or copy the model here first"
    )


def _unreachable(endpoint: str) -> str:
    """Return why the hub gives no answer; "" where it answers, whatever it says."""
    try:
        with urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=SECONDS):
            return ""
    except urllib.error.HTTPError:
        return ""
    except (OSError, ValueError) as error:
        return f"{endpoint}: {getattr(error, 'reason', None) or error}"
