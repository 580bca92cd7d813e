"""Encoding of the text around turns: the start of an episode, and the section between one turn and the next."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from offline_agent.errors import ConfigError
from offline_agent.records import Context, ToolCall
from offline_agent.rendering.template import Placeholder, QuotedControl, Template, TemplateForm
from offline_agent.rendering.tokens import Tokens

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
        end_id: The id with which the template ends a turn.
    """

    def __init__(self, template: Template, tokens: Tokens, end_id: int) -> None:
        self._template = template
        self._tokens = tokens
        self._end_id = end_id
        self._roots: dict[tuple[str, str], _EncodedForm] = {}
        self._schemas: dict[int, tuple[object, str]] = {}
        self._bridges: dict[tuple[str, bool, str], _EncodedForm] = {}
        self._forms: dict[tuple[str, bool], TemplateForm] = {}
        self._contents = lru_cache(_CONTENTS)(tokens.content)  # the branches of a tree see the same observations again

    def root_ids(self, context: Context) -> tuple[int, ...]:
        """Return the ids of an episode's start, first generation prompt included."""
        key = (context.system, self._schemas_text(context))
        form = self._roots.get(key)
        if form is None:
            if len(self._roots) >= _FORMS:
                self._roots.clear()
            root = self._template.root(bool(context.system), context.tools)
            form = self._roots[key] = self._encode(root, "user", {"system": context.system})
        return self._filled(form, context.observation or "")

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
        form = self._between(context.role, None if context.action is None else context.action.call)
        return (*(() if ended else (self._end_id,)), *self._filled(form, context.observation))

    def _between(self, role: str, call: ToolCall | None) -> _EncodedForm:
        key = (role, call is not None, call.name if call is not None else "")
        form = self._bridges.get(key)
        if form is None:
            if len(self._bridges) >= _FORMS:
                self._bridges.clear()
            form = self._bridges[key] = self._encode(self.bridge(key[0], key[1]), "observation", {"name": key[2]})
        return form

    def bridge(self, role: str, called: bool) -> TemplateForm:
        """Return the form between two turns.

        Some templates allow a role after one kind of turn only (`tool` after a call, `user` after an answer); the form
        of that order is then used for the other order too.
        """
        form = self._forms.get((role, called))
        if form is None:
            usual = role == "tool"
            try:
                form = self._template.bridge(role, called)
            except ConfigError:
                if called == usual:
                    raise
                form = self._template.bridge(role, usual)
            self._forms[role, called] = form
        return form

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
