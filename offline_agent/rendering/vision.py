"""Pictures as ids: each patch of a picture has an id of its own, beyond every vocabulary.

A model's processor writes one placeholder for every patch, and the placeholders of all pictures are the same id. Here a
patch's id is a function of the picture's hash and of the patch's number: 2^62, then 49 bits of the hash, then 13 bits
of the number. So equal ids mean the equal patch of the equal picture, and whatever compares ids (caches of keys and
values, shared prefixes, linking, certificates) is right without knowing of pictures. Only the embedding of ids knows
(`policies.hf.embedding`).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent import pictures
from offline_agent.errors import ConfigError, DataError
from offline_agent.records import Message
from offline_agent.rendering.hub import load
from offline_agent.store.files import read_text

if TYPE_CHECKING:
    from offline_agent.rendering.template import Template

PATCH = 1 << 62
"""The first id of a patch."""
KINDS = ("idefics3", "llava", "smolvlm")
"""Model types whose patches are plain tokens at plain positions; a model is checked on a picture when it is loaded
(`policies.hf.embedding`). With M-RoPE (Qwen2-VL and later) a patch's position has two dimensions, and packed rows have
one.
"""
_NUMBER, _PICTURE = 13, 49  # bits
_TEXT = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
ASKED = f"pictures are read by models of type {', '.join(KINDS)}, with their own processor (docs/pictures.md)"


_hashes: dict[int, str] = {}  # by the id of a picture's first patch: one map for all models, whose ids are the same


class Vision:
    """The pictures' side of a processor.

    Args:
        processor: Of transformers.
        template: The chat template, which says where a picture stands and what is written around it.

    Attributes:
        hash: Identifies the settings, on which the number of a picture's patches depends.
        token, token_id: The placeholder.
        first: Whether the template writes a message's pictures before its words.
        around: What it writes before and after a picture, placeholder apart.

    Raises:
        ConfigError: It has no placeholder, or the template drops pictures.
    """

    def __init__(self, processor: Any, template: Template) -> None:
        self._processor = processor
        self.token = str(getattr(processor, "image_token", ""))
        self.token_id = int(getattr(processor, "image_token_id", None) or 0)
        if not self.token_id or getattr(processor, "image_processor", None) is None:
            raise ConfigError(f"the processor {type(processor).__name__} names no placeholder of pictures; {ASKED}")
        own = {key: value for key, value in processor.to_dict().items() if "tokenizer" not in key}
        told = [type(processor).__name__, own, processor.image_processor.to_dict()]
        self.hash = hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()
        self.first, self.around = _learn(template, self.token)
        self.ids = lru_cache(4096)(self._ids)

    def __deepcopy__(self, memo: Any) -> Vision:
        return self  # nothing in it changes

    def save(self, folder: Path, tokenizer: Any) -> None:
        """Write the processor, with a tokenizer and its chat template."""
        self._processor.tokenizer, self._processor.chat_template = tokenizer, tokenizer.chat_template
        self._processor.save_pretrained(str(folder))

    def encoded(self, hash: str) -> Mapping[str, Any]:
        """Return what the processor makes of a picture: `input_ids` int [1, n], and arrays for the vision tower.

        Raises:
            DataError: There is no such picture, or it cannot be decoded.
            ConfigError: Pillow is missing.
        """
        try:
            from PIL import Image
        except ImportError as error:
            raise ConfigError("pictures need Pillow: pip install 'offline-agent[pictures]'") from error
        data = pictures.data(hash)
        try:
            image = Image.open(io.BytesIO(data)).convert("RGB")
        except Exception as error:  # Pillow raises errors of many classes
            raise DataError(f"the picture {hash[:16]} cannot be decoded: {error}") from error
        found: Mapping[str, Any] = self._processor(
            text=[self.token], images=[image], return_tensors="np", add_special_tokens=False
        )
        return found

    def tower(self, hash: str) -> dict[str, Any]:
        """Return the arrays of a picture for the vision tower, by the names of its arguments. Raises as `encoded`."""
        return {name: value for name, value in self.encoded(hash).items() if name not in _TEXT}

    def _ids(self, hash: str) -> tuple[int, ...]:
        """Return a picture's ids: of its patches, and of tokens that the processor writes between them."""
        first = PATCH | int(hash, 16) >> (256 - _PICTURE) << _NUMBER
        if _hashes.setdefault(first, hash) != hash:
            raise DataError(f"the pictures {hash} and {_hashes[first]} begin alike; leave one of them out")
        out: list[int] = []
        count = 0
        for token in self.encoded(hash)["input_ids"][0]:
            patch = int(token) == self.token_id
            out.append(first + count if patch else int(token))
            count += patch
        if not 0 < count < 1 << _NUMBER:
            raise DataError(f"the picture {hash[:16]} has {count} patches, allowed: 1 to {(1 << _NUMBER) - 1}")
        return tuple(out)

    def patches(self, hash: str) -> list[int]:
        """Return the ids of a picture's patches. Raises as `encoded`."""
        return [token for token in self.ids(hash) if token >= PATCH]

    def hash_of(self, patch: int) -> tuple[str, int]:
        """Return the picture's hash and the number of a patch; raises DataError where its picture was never seen."""
        first = patch >> _NUMBER << _NUMBER
        if first not in _hashes:
            raise DataError(f"the id {patch} is of a picture that is not known here")
        return _hashes[first], patch - first

    def pictures_in(self, ids: Sequence[int]) -> list[str]:
        """Return the hashes of the pictures among ids, in order; raises DataError where one is not whole."""
        patches = [token for token in ids if token >= PATCH]
        found: list[str] = []
        while patches:
            hash, _ = self.hash_of(patches[0])
            whole = self.patches(hash)
            if patches[: len(whole)] != whole:
                raise DataError(f"the patches of the picture {hash[:16]} are not all there, each once, in order")
            found.append(hash)
            patches = patches[len(whole) :]
        return found

    def arranged(self, text: str) -> str:
        """Return a content with its pictures where the template puts them."""
        parts = pictures.split(text)
        if not self.first or len(parts) == 1:
            return text
        return "".join([*map(pictures.mark_of, parts[1::2]), *parts[::2]])

    def shown(self, text: str) -> str:
        """Return a text with the processor's own words in the place of marks, as it is tokenised there."""
        parts = pictures.split(text)
        for place in range(1, len(parts), 2):
            count = len(self.patches(parts[place]))
            parts[place] = self.around[0] + self.token * count + self.around[1]
        return "".join(parts)

    def plain(self, ids: Sequence[int]) -> list[int]:
        """Return ids as the processor has them: the placeholder for every patch."""
        return [token if token < PATCH else self.token_id for token in ids]

    def check_row(self, data: Mapping[str, Any], row: Mapping[str, Any]) -> None:
        """Check that the pictures among a row's ids are those that its certificate and its messages name.

        Args:
            data: The certificate.
            row: Its columns, by known names.

        Raises:
            DataError: They are not, or one is not whole.
        """
        for hash in data.get("pictures", ()):
            self.patches(hash)  # makes it known
        pair = "prompt_ids" in row
        for name in ("chosen", "rejected") if pair else ("sequence",):
            ids, messages = (f"{name}_ids", name) if pair else ("input_ids", "messages")
            told = [*(row.get("prompt") or () if pair else ()), *(row.get(messages) or ())]
            edges = [0, *data.get(name, {}).get("starts", []), len(row[ids])]
            wanted = pictures.in_messages(told)
            for start, end in zip(edges, edges[1:], strict=False):
                before = row["prompt_ids"] if pair and not start else []
                found = self.pictures_in([*before, *row[ids][start:end]])
                if not set(found) <= set(data.get("pictures", ())):
                    raise DataError(f"its {ids} have pictures that its certificate does not name")
                # after a renewed history earlier ones are absent
                if told and not (_within(found, wanted) if start else found == wanted[: len(found)]):
                    raise DataError(f"the pictures in its {ids} are not those of its {messages}")


def _within(some: Sequence[str], every: Sequence[str]) -> bool:
    """Return whether all of some are among others, in the same order."""
    rest = iter(every)
    return all(one in rest for one in some)


def sees(source: str | Path) -> bool:
    """Return whether pictures can be shown to a model: it is of `KINDS`, and has a processor.

    Raises:
        ConfigError: Its configuration cannot be loaded.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        if not any((folder / name).exists() for name in ("processor_config.json", "preprocessor_config.json")):
            return False
        with contextlib.suppress(OSError, ValueError, AttributeError):
            return json.loads(read_text(folder / "config.json")).get("model_type") in KINDS
        return False
    from transformers import AutoConfig

    return load(AutoConfig, str(source), "model", "the configuration of a model").model_type in KINDS


def arranged(vision: Vision | None, messages: Sequence[Message]) -> Sequence[Message]:
    """Return messages with their pictures where the template puts them."""
    if vision is None:
        return messages
    return [{**message, "content": vision.arranged(message["content"])} for message in messages]


def find(source: str | Path) -> Any:
    """Return the processor of a model that sees pictures; None where it reads text alone. Raises as `sees`."""
    if not sees(source):
        return None
    from transformers import AutoProcessor

    return load(AutoProcessor, str(source), "model", "the processor of pictures")


def _learn(template: Template, token: str) -> tuple[bool, tuple[str, str]]:
    """Return where the template writes a picture, and what around it, by rendering a probe."""
    if not template.dialect.parts:
        return False, ("", "")
    start, end = "q8wv begins", "q9wv ends"
    parts = [{"type": "text", "text": start}, {"type": "image"}, {"type": "text", "text": end}]
    try:
        found = template.raw([{"role": "user", "content": parts}])
    except Exception as error:  # jinja and templates raise errors of any class
        raise ConfigError(f"the chat template refuses a picture ({type(error).__name__}: {error}); {ASKED}") from error
    between = found.partition(start)[2].partition(end)[0]
    if between.count(token) == 1:
        before, _, after = between.partition(token)
        return False, (before, after)
    lead = template.raw([{"role": "user", "content": parts[::2]}]).partition(start)[0]
    before = found.partition(start)[0].removeprefix(lead)
    if before.count(token) != 1 or between:
        raise ConfigError(f"the chat template does not write a picture's placeholder {token!r} once; {ASKED}")
    return True, (before.partition(token)[0], before.partition(token)[2])
