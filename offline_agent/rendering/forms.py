"""Forms: rendered text with places for contents, found by rendering marks in place of contents."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offline_agent.errors import ConfigError
from offline_agent.pictures import OBJECT

HOW_TO_MEND = (
    "Use another template: name one with chat_template= (policy.chat_template=): a file, or one of "
    "the ready-made 'qwen' (models with <|im_start|>), 'llama3' (<|start_header_id|>) and 'plain' (any with an "
    "end-of-text token); or set tokenizer.chat_template."
)
ROUGH = ' \n\n"é\\ {x} <b>&amp; \t\n'


def _same(text: str) -> str:
    return text


def _json_inner(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


TRANSFORMS: tuple[Callable[[str], str], ...] = (_same, str.strip, _json_inner, str.rstrip, str.lstrip)


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A place in a form for a content, with the template's transformation of that content."""

    field: str
    transform: Callable[[str], str]


@dataclass(frozen=True, slots=True)
class QuotedControl:
    """A control string inside a tool's schema: it is content, so it must not become a control token."""

    text: str


@dataclass(frozen=True, slots=True)
class TemplateForm:
    """A section of rendered text: template text (str), quoted control strings and placeholders, in order."""

    parts: tuple[str | QuotedControl | Placeholder, ...]

    def text(self, fields: Mapping[str, str]) -> str:
        """Return the text with the placeholders filled."""
        out = []
        for part in self.parts:
            if isinstance(part, Placeholder):
                out.append(part.transform(fields[part.field]))
            else:
                out.append(part if isinstance(part, str) else part.text)
        return "".join(out)


class Marks:
    """Marks that stand for contents, and for control strings inside contents, in what a chat template renders.

    Args:
        source: The template's text.
        control_strings: The texts of the tokenizer's added tokens, longest first.

    Attributes:
        mark: A text that the template does not write.
    """

    def __init__(self, source: str, control_strings: Sequence[str]) -> None:
        self.mark = _free_mark(source)
        # the mark first: those of the others are made of it; last what begins the mark of a picture
        self._hideable = [self.mark, *control_strings, OBJECT]

    def fit(self, build: Callable[[Mapping[str, str]], str], needed: list[str], optional: list[str]) -> TemplateForm:
        """Return the form that a rendering of fields has; raises ConfigError where a content is not there once.

        Args:
            build: Renders contents, by field.
            needed, optional: The fields, and those that the template need not write.
        """
        marks = {field: f"{self.mark}{field}{self.mark[::-1]}" for field in [*needed, *optional]}
        text = build(marks)
        for field in marks:
            # once exactly: a content that stands twice could not be filled in without rendering again
            count = text.count(marks[field])
            if field in needed and count != 1:
                what = "drops" if count == 0 else "repeats"
                raise ConfigError(f"the chat template {what} or changes the content of the {field}. {HOW_TO_MEND}")
        parts: list[str | QuotedControl | Placeholder] = []
        hidden = self._hidden_pattern()
        pattern = "|".join([*(f"(?P<{f}>{mark})" for f, mark in marks.items()), f"(?P<hidden>{hidden})"])
        at = 0
        for match in re.finditer(pattern, text):
            if match.start() > at:
                parts.append(text[at : match.start()])
            name = match.lastgroup or ""
            if name in marks:
                parts.append(Placeholder(name, self._transform(build, marks, name, text)))
            else:
                parts.append(QuotedControl(self._hideable[int(match[match.re.groups])]))
            at = match.end()
        if at < len(text):
            parts.append(text[at:])
        return TemplateForm(tuple(parts))

    def _transform(
        self, build: Callable[[Mapping[str, str]], str], marks: Mapping[str, str], field: str, text: str
    ) -> Callable[[str], str]:
        """Return the transformation that the template applies to a field's content, found by rendering a probe."""
        # a rough text (blanks, quotes, markup) tells what the template does to contents
        around = text.split(marks[field])
        rough = build({**marks, field: ROUGH})
        for transform in TRANSFORMS:
            if transform(ROUGH).join(around) == rough:
                return transform
        raise ConfigError(
            f"the chat template changes the content of the {field} in a way that cannot be undone: "
            f"{ROUGH!r} became {rough[len(around[0]) : len(rough) - len(around[-1])]!r}. {HOW_TO_MEND}"
        )

    def hide(self, value: Any, but: frozenset[str] = frozenset()) -> Any:
        """Return contents, such as a tool's schema, with their control strings, except `but`, replaced by marks."""
        if isinstance(value, str):
            # contents are the environment's: they must not write control tokens
            for index, control in enumerate(self._hideable):
                if control in value and control not in but:
                    value = value.replace(control, self._hidden(index))
            return value
        if isinstance(value, Mapping):
            return {self.hide(key, but): self.hide(item, but) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.hide(item, but) for item in value]
        return value

    def split(self, text: str) -> list[str]:
        """Return a rendering cut at the marks of `hide`: every second part is a control string that was hidden."""
        parts = re.split(self._hidden_pattern(), text)
        return [self._hideable[int(part)] if place % 2 else part for place, part in enumerate(parts)]

    def _hidden(self, index: int) -> str:
        return f"{self.mark}hidden{index}z{self.mark[::-1]}"

    def _hidden_pattern(self) -> str:
        return self._hidden(0).replace("0", f"({'|'.join(map(str, range(len(self._hideable))))})")


def _free_mark(source: str) -> str:
    number = 7
    # a mark that the template itself writes would be taken for a content
    while f"q{number}w" in source:
        number += 1
    return f"q{number}wv"
