"""A page's text, read back: what was asked for, and the elements with their numbers."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from offline_agent.records import Message

Call = tuple[str, dict[str, Any]]

_ELEMENT = re.compile(r'\[(\d+)\] (\S+)(?: ("(?:[^"\\]|\\.)*"))?(?: = (.*?))?((?: \(\w+\))*)$')
_TEXT = re.compile(r'text ("(?:[^"\\]|\\.)*")$')
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


@dataclass(frozen=True, slots=True)
class Element:
    """One line of a page.

    Attributes:
        number: Its number; 0 = a text that cannot be acted on.
        kind: `button`, `link`, `textbox`, `checkbox`, `radio`, `select`, `tab`, `text`, …
        text: Its text or label.
        value: What a field holds, or the chosen option of a list.
        options: Of a list.
        flags: `checked`, `selected`, `expanded`, `disabled`.
    """

    number: int
    kind: str
    text: str = ""
    value: str = ""
    options: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """One observation.

    Attributes:
        asked: What is to be done, in words.
        address: The page's address; "" where it is not told.
        elements: Its lines, in order.
        refused: The call before was answered with an error; the elements are those of the page before.
        call: The call that led here; None at the start.
    """

    asked: str
    address: str
    elements: tuple[Element, ...]
    refused: bool = False
    call: Call | None = None

    @classmethod
    def page(cls, asked: str, lines: Sequence[str], call: Call | None) -> View:
        """Return the view of a page's lines."""
        return cls(asked, *_read("\n".join(lines)), False, call)

    @classmethod
    def of(cls, messages: Sequence[Message]) -> list[View]:
        """Return the observations of a conversation, the last one last."""
        views: list[View] = []
        call: Call | None = None
        for message in messages:
            if message["role"] == "assistant":
                functions = [one["function"] for one in message.get("tool_calls") or ()]
                call = (functions[0]["name"], _arguments(functions[0]["arguments"])) if functions else None
            elif message["role"] in ("tool", "user"):
                text = str(message.get("content") or "")
                if not views:
                    asked, _, page = text.partition("\n\n")
                    views.append(cls(asked, *_read(page)))
                elif text.startswith("Error"):
                    last = views[-1]
                    views.append(cls(last.asked, last.address, last.elements, True, call))
                elif call is not None and call[0] == "read":
                    views.append(cls(views[-1].asked, views[-1].address, views[-1].elements, False, call))
                else:
                    views.append(cls(views[0].asked, *_read(text), False, call))
        return views

    def find(self, kind: str, text: str | None = None) -> Element | None:
        """Return the first element of a kind, and of a text where one is given."""
        return next((e for e in self.all(kind) if text is None or e.text == text), None)

    def all(self, *kinds: str) -> list[Element]:
        """Return the elements of some kinds that can be acted on, in order; of every kind where none is given."""
        return [e for e in self.elements if e.number and (not kinds or e.kind.partition("#")[0] in kinds)]


def careless(view: View, rng: random.Random) -> Call:
    """Return a call on some element of the page, drawn at random."""
    elements = [e for e in view.all() if "disabled" not in e.flags]
    if not elements:
        return "read", {}
    element = rng.choice(elements)
    kind = element.kind.partition("#")[0]
    if kind == "select" and any(element.options):
        return "select", {"element": element.number, "option": rng.choice([o for o in element.options if o])}
    if kind in ("textbox", "textarea"):
        words = re.findall(r"\w+", view.asked) or ["a"]
        return "type", {"element": element.number, "text": rng.choice(words)}
    return "click", {"element": element.number}


def click(element: Element | None) -> Call | None:
    """Return the click on an element; None where there is none."""
    return None if element is None else ("click", {"element": element.number})


def _arguments(given: Any) -> dict[str, Any]:
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            given = {}
    return dict(given) if isinstance(given, dict) else {}


def _read(text: str) -> tuple[str, tuple[Element, ...]]:
    address, elements = "", []
    for line in text.splitlines():
        if line.startswith("page "):
            address = line.removeprefix("page ")
        elif found := _ELEMENT.match(line):
            number, kind, label, value, flags = found.groups()
            chosen, _, options = (value or "").partition(" of ") if kind.startswith("select") else (value or "", "", "")
            elements.append(
                Element(
                    int(number),
                    kind,
                    json.loads(label) if label else "",
                    "".join(map(json.loads, _QUOTED.findall(chosen)[:1])),
                    tuple(map(json.loads, _QUOTED.findall(options))),
                    tuple(re.findall(r"\((\w+)\)", flags)),
                )
            )
        elif found := _TEXT.match(line):
            elements.append(Element(0, "text", json.loads(found.group(1))))
    return address, tuple(elements)
