"""Loading of models and tokenizers: no code of theirs is run, and what is cached is loaded without the hub.

Tokenizers are read without transformers' classes (which import torch) where their files suffice for rendering.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from offline_agent.crash_notes import noted
from offline_agent.errors import ConfigError
from offline_agent.store.files import read_text

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_KNOWN = {*_SPECIAL, "backend", "clean_up_tokenization_spaces", "model_max_length", "tokenizer_class"}
_MORE = ("added_tokens.json", "special_tokens_map.json", "additional_chat_templates")  # files that change the result
_MOST_IDS = 100_000  # transformers inspects, and may correct, the pre-tokenizer of larger vocabularies


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
    failed: Exception | None = None
    for here in (True,) if Path(source).is_dir() else (True, False):
        try:
            with quiet(), noted(f"loading {what}, {source}"):
                return kind.from_pretrained(source, local_files_only=here, trust_remote_code=False, **options)
        except Exception as error:  # transformers raises errors of nearly every class
            failed = error
    said = str(failed).strip().splitlines()
    why = f"{type(failed).__name__}: {said[0] if said else 'no message'}"
    if "trust_remote_code" in str(failed):
        why = "it needs program code of its own (auto_map in its files), which is never run"
    raise ConfigError(
        f"{key}: {source!r} cannot be loaded as {what} ({why}); give a folder written by save_pretrained, or the name "
        "of one on the hub that this machine can reach"
    ) from failed


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


class PlainTokenizer:
    """The part of a transformers tokenizer that rendering uses, with the same results.

    Args:
        folder: The folder that it was read from.
        backend: The `tokenizers.Tokenizer`.
        special: Texts of the named special tokens.
        chat_template: The template's text, or None.

    Attributes:
        chat_template: The template's text; may be replaced.
        special_tokens_map: Texts of the named special tokens, as transformers calls them.
    """

    def __init__(self, folder: str, backend: Any, special: dict[str, str], chat_template: str | None) -> None:
        self.name_or_path = folder
        self.backend_tokenizer = backend
        self.chat_template = chat_template
        self.special_tokens_map = special

    @classmethod
    def read(cls, folder: Path) -> PlainTokenizer | None:
        """Return a folder's tokenizer; None where `AutoTokenizer` might read its files differently, or fail."""
        from tokenizers import Tokenizer

        try:
            settings = json.loads(read_text(folder / "tokenizer_config.json"))
            model = json.loads(read_text(folder / "config.json"))
            backend = Tokenizer.from_str(read_text(folder / "tokenizer.json"))
            template = folder / "chat_template.jinja"
            text = read_text(template) if template.exists() else None
            special = {name: settings[name] for name in _SPECIAL if settings.get(name) is not None}
            kind = settings.get("tokenizer_class"), model.get("model_type")
        except Exception:  # transformers reports the error, in its own words
            return None
        added = {token.content for token in backend.get_added_tokens_decoder().values()}
        plain = (
            settings.keys() <= _KNOWN
            and kind == ("TokenizersBackend", "llama")
            and not any((folder / name).exists() for name in _MORE)
            and all(isinstance(token, str) and token in added for token in special.values())
            and backend.truncation is backend.padding is None
            and backend.get_vocab_size() <= _MOST_IDS
        )
        return cls(str(folder), backend, special, text) if plain else None

    @property
    def eos_token_id(self) -> int | None:
        """The id of the end-of-text token; None where there is none."""
        token = self.special_tokens_map.get("eos_token")
        return None if token is None else self.backend_tokenizer.token_to_id(token)

    def get_chat_template(self, name: None = None, tools: Any = None) -> str:
        """Return the template's text. Raises ValueError where there is none."""
        if self.chat_template is None:
            raise ValueError(f"{self.name_or_path} has no chat template")
        return self.chat_template

    def apply_chat_template(
        self,
        conversation: list[Any],
        tools: list[Any] | None = None,
        *,
        chat_template: str,
        tokenize: Literal[False] = False,
        add_generation_prompt: bool = False,
        **more: Any,
    ) -> str:
        """Return a conversation rendered by transformers' own function; raises what that raises."""
        from transformers.utils.chat_template_utils import render_jinja_template

        texts, _ = render_jinja_template(
            conversations=[conversation],
            tools=tools,
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            **self.special_tokens_map,
            **more,
        )
        return str(texts[0])

    def whole(self) -> Any:
        """Return transformers' own tokenizer of the same files, with the template of this one."""
        from transformers import AutoTokenizer

        tokenizer = load(AutoTokenizer, self.name_or_path, "tokenizer", "a tokenizer")
        tokenizer.chat_template = self.chat_template
        return tokenizer
