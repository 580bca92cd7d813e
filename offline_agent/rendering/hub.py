"""Hub names of models and tokenizers: the check, made before anything is downloaded, that the hub can be reached."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

from offline_agent.errors import ConfigError

SECONDS = 5.0  # wait for the hub's answer; transformers would ask again and again for more than a minute
_FILES = ("config.json", "tokenizer_config.json", "tokenizer.json")


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
