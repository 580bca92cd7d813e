"""Encoders of template text, contents and turns apart, so that only the template can write control tokens.

`PromptEncoder` has the text around turns: the start of an episode, and the section between one turn and the next.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from offline_agent.errors import ConfigError, DataError
from offline_agent.pictures import OBJECT, split
from offline_agent.records import Context
from offline_agent.rendering.forms import Placeholder, QuotedControl, TemplateForm
from offline_agent.rendering.parsing import clean
from offline_agent.rendering.template import Template
from offline_agent.rendering.vision import ASKED, Vision

_CACHED = 4096


class Tokens:
    """Encodes template text, contents and turns, and decodes exactly.

    Three clones of the tokenizer's Rust back end differ only in their added tokens: `template` has all of them,
    `content` has none except blank ones (so text of an environment never becomes a control token), and `turn` has
    those of the call format (`<tool_call>`), for turns that no policy sampled.

    Args:
        tokenizer: A transformers tokenizer with a Rust back end.

    Raises:
        ConfigError: There is no Rust back end.
    """

    def __init__(self, tokenizer: Any) -> None:
        from tokenizers import Tokenizer

        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ConfigError(
                f"{type(tokenizer).__name__} has no fast (tokenizers) back end, which rendering needs. "
                "Load it with AutoTokenizer and a tokenizer.json."
            )
        original = backend.to_str()
        self.hash = hashlib.sha256(original.encode()).hexdigest()
        self._data = _verbatim(json.loads(original))
        self._from_str: Callable[[str], Any] = Tokenizer.from_str
        unknown = self._data["model"].get("unk_token")  # not a control token: any content may be encoded as it
        self.added: dict[int, str] = {
            entry["id"]: entry["content"]
            for entry in self._data["added_tokens"]
            if entry["content"].strip() and entry["content"] != unknown
        }
        self.special = {entry["id"] for entry in self._data["added_tokens"] if entry["special"]} & self.added.keys()
        self._full = self._from_str(json.dumps(self._data))
        self._plain = self._turn = self._clone(())
        self._turn_ids: frozenset[int] = frozenset()
        self.vocab_size = 1 + max(self._full.get_vocab(True).values(), default=-1)
        self._split = re.compile("|".join(map(re.escape, self.control_strings())) or r"(?!)")
        self.template = lru_cache(_CACHED)(self._template_ids)
        self.vision: Vision | None = None  # set by a renderer whose model sees pictures

    def allow_in_turns(self, ids: Iterable[int]) -> None:
        """Set the added tokens that `turn` may use; before this call it uses none."""
        # the clone is made anew: a back end cannot forget added tokens
        self._turn_ids = frozenset(ids)
        self._turn = self._clone(self._turn_ids) if self._turn_ids else self._plain

    def _template_ids(self, text: str) -> tuple[int, ...]:
        """Return the ids of text of the template; control strings become control tokens."""
        return tuple(self._full.encode(text, add_special_tokens=False).ids)

    def rendered(self, text: str) -> list[int]:
        """Return the ids of template text and contents together, of which each is seen once: not cached."""
        return self._pictured(text, lambda part: list(self._full.encode(clean(part), add_special_tokens=False).ids))

    def content(self, text: str) -> list[int]:
        """Return the ids of content, e.g. an observation; the result has no control token but those of pictures.

        Raises:
            DataError: It has a picture, and the model reads text alone.
        """
        if OBJECT in text and self.vision is not None:
            text = self.vision.arranged(text)
        return self._pictured(text, lambda part: self._encode(self._plain, part, frozenset()))

    def _pictured(self, text: str, encode: Callable[[str], list[int]]) -> list[int]:
        parts = split(text)
        if len(parts) == 1:
            return encode(text)
        if self.vision is None:
            raise DataError(
                f"a message has a picture, and this model reads text alone here; {ASKED}, or take an environment "
                "without pictures"
            )
        before, after = map(self.template, self.vision.around)
        shown = [[*before, *self.vision.ids(part), *after] if at % 2 else encode(part) for at, part in enumerate(parts)]
        return [token for part in shown for token in part]

    def turn(self, text: str) -> list[int]:
        """Return the ids of a turn that no policy sampled; its only added tokens are those of the call format."""
        return self._encode(self._turn, text, self._turn_ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the exact text of ids, control tokens included."""
        if self.vision is not None:
            ids = self.vision.plain(ids)
        return str(self._full.decode(list(ids), skip_special_tokens=False))

    def added_in(self, text: str) -> list[int]:
        """Return the ids of the added tokens that encoding `text` as template text gives."""
        return [token for token in self.template(text) if token in self.added]

    def control_strings(self) -> list[str]:
        """Return the contents of all added tokens but blank ones, longest first."""
        return sorted(self.added.values(), key=len, reverse=True)

    def _encode(self, encode: Callable[[str], list[int]], text: str, allowed: frozenset[int]) -> list[int]:
        if not text:
            return []
        try:
            ids = encode(text)
        except (TypeError, UnicodeEncodeError):  # lone surrogates
            text = clean(text)
            ids = encode(text)
        if self._clear(ids, allowed):
            return ids
        # The model's own vocabulary may hold a control string as an ordinary word: encode it letter by letter.
        ids, at = [], 0
        for match in self._split.finditer(text):
            token = self._full.token_to_id(match.group())
            pieces = [match.group()] if token in allowed else list(match.group())
            for piece in [text[at : match.start()], *pieces]:
                ids += encode(piece) if piece else []
            at = match.end()
        ids += encode(text[at:]) if text[at:] else []
        if not self._clear(ids, allowed):
            raise DataError(f"the tokenizer turns plain text into a control token; text starts {text[:80]!r}")
        return ids

    def _clear(self, ids: list[int], allowed: frozenset[int]) -> bool:
        found = self.added.keys() & ids
        return not found or found <= allowed

    def _clone(self, keep: Iterable[int]) -> Callable[[str], list[int]]:
        """Return the encoder of a clone with the added tokens `keep` and the blank ones only."""
        kept = set(keep)
        entries = [e for e in self._data["added_tokens"] if e["id"] in kept or not e["content"].strip()]
        clone = self._from_str(json.dumps({**self._data, "added_tokens": entries}))
        # The back end gives added tokens new ids; map them back to the original ids.
        pairs = [(clone.token_to_id(entry["content"]), entry["id"]) for entry in entries]
        renumber = {got: want for got, want in pairs if got != want}

        def encode(text: str) -> list[int]:
            ids: list[int] = clone.encode(text, add_special_tokens=False).ids
            return [renumber.get(token, token) for token in ids] if renumber else ids

        return encode


def _verbatim(data: dict[str, Any]) -> dict[str, Any]:
    """Return the tokenizer's JSON without the parts that make pieces encode differently from the whole text.

    Removed are truncation, padding and template post-processing, canonical composition (contents must decode letter for
    letter), and the blank that SentencePiece models add before a text and remove when decoding.
    """
    data = {**data, "truncation": None, "padding": None, "post_processor": None}
    data["normalizer"] = _without(data.get("normalizer"), "normalizers", lambda e: e["type"] in ("NFC", "Prepend"))
    data["decoder"] = _without(
        data.get("decoder"), "decoders", lambda e: e["type"] == "Strip" and e.get("content") == " "
    )
    for part in (data.get("pre_tokenizer"), data.get("decoder")):
        for entry in [part, *(part or {}).get("pretokenizers", ()), *(part or {}).get("decoders", ())]:
            if entry and entry["type"] == "Metaspace":
                entry["prepend_scheme"] = "never"
            if entry and entry["type"] == "ByteLevel":
                entry["add_prefix_space"] = False
    return data


def _without(part: dict[str, Any] | None, key: str, drop: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
    if part is None or drop(part):
        return None
    if part["type"] != "Sequence":
        return part
    kept = [entry for entry in part[key] if not drop(entry)]
    return {**part, key: kept} if kept else None


_FORMS = 512
_CONTENTS = 128


class _EncodedForm(NamedTuple):
    """A form of which all but one content is encoded."""

    before: tuple[int, ...]
    slot: Placeholder
    after: tuple[int, ...]


class PromptEncoder:
    """Encodes everything of a prompt but the turns.

    Args:
        template: The chat template.
        tokens: The tokenizer's encoders.
        end_ids: The ids with which the template ends an answer, and a call.
    """

    def __init__(self, template: Template, tokens: Tokens, end_ids: tuple[int, int]) -> None:
        self._template = template
        self._tokens = tokens
        self._end_ids = end_ids
        self._roots = lru_cache(_FORMS)(self._root)
        self._schemas: dict[int, tuple[object, str]] = {}
        self._bridges = lru_cache(_FORMS)(self._between)
        self.bridge = lru_cache(_FORMS)(self._bridge)
        self._contents = lru_cache(_CONTENTS)(tokens.content)  # the branches of a tree see the same observations again

    def root_ids(self, context: Context) -> tuple[int, ...]:
        """Return the ids of an episode's start, first generation prompt included."""
        return self._filled(self._roots(context.system, self._schemas_text(context)), context.observation or "")

    def _root(self, system: str, schemas: str) -> _EncodedForm:
        return self._encode(self._template.root(bool(system), json.loads(schemas)), "user", {"system": system})

    def _schemas_text(self, context: Context) -> str:
        """Return the schemas of a context's tools as text; every tree that is read has schemas of its own."""
        known = self._schemas.get(id(context.tools))
        if known is None:
            if len(self._schemas) >= _CONTENTS:
                self._schemas.clear()
            # The entry keeps the schemas alive: after a garbage collection others could get the same id.
            known = self._schemas[id(context.tools)] = (context.tools, json.dumps(list(context.tools), default=repr))
        return known[1]

    def after_action(self, context: Context, ended: bool) -> tuple[int, ...]:
        """Return the ids from the end of a context's action to the next generation prompt.

        Args:
            context: A context with an action; no ids follow where it has no observation.
            ended: Whether the action's ids include its end-of-turn token.
        """
        if context.observation is None:
            return ()
        call = None if context.action is None else context.action.call
        called = call is not None
        form = self._bridges(context.role, called, "" if call is None else call.name)
        return (*(() if ended else (self._end_ids[called],)), *self._filled(form, context.observation))

    def _between(self, role: str, called: bool, name: str) -> _EncodedForm:
        return self._encode(self.bridge(role, called), "observation", {"name": name})

    def _bridge(self, role: str, called: bool) -> TemplateForm:
        """Return the form between two turns.

        Some templates allow a role after one kind of turn only (`tool` after a call, `user` after an answer); the form
        of that order is then used for the other order too.
        """
        usual = role == "tool"
        try:
            return self._template.bridge(role, called)
        except ConfigError:
            if called == usual:
                raise
            return self._template.bridge(role, usual)

    def _filled(self, form: _EncodedForm, content: str) -> tuple[int, ...]:
        return (*form.before, *self._contents(form.slot.transform(content)), *form.after)

    def _encode(self, form: TemplateForm, field: str, fields: Mapping[str, str]) -> _EncodedForm:
        """Encode everything of a form but the content `field`."""
        sides: tuple[list[int], list[int]] = ([], [])
        slot: Placeholder | None = None
        for part in form.parts:
            out = sides[slot is not None]
            if isinstance(part, str):
                out += self._tokens.template(part)
            elif isinstance(part, QuotedControl):
                out += self._tokens.content(part.text)
            elif part.field == field:
                slot = part
            else:
                out += self._tokens.content(part.transform(fields[part.field]))
        assert slot is not None  # Template._fit refuses a form without it
        return _EncodedForm(tuple(sides[0]), slot, tuple(sides[1]))
