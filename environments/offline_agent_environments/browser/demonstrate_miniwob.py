"""Scripted experts of MiniWoB++'s levels: from what is asked for and the page's elements to the next call."""

from __future__ import annotations

import re
from collections.abc import Callable

from offline_agent_environments.browser.view import Call, View, click

Expert = Callable[[View], Call | None]


def decide(level: str, view: View) -> Call | None:
    """Return the next call of a level's expert; None where it has none, or does not know how to go on."""
    expert = EXPERTS.get(level)
    return None if expert is None else expert(view)


def _named(view: View) -> str:
    """Return the last text in quotes of what is asked for."""
    found = re.findall(r'"([^"]*)"', view.asked)
    return found[-1] if found else ""


def _submit(view: View) -> Call | None:
    return click(next((e for e in view.all("button") if e.text.lower() in ("submit", "login")), None))


def _first_button(view: View) -> Call | None:
    return click(view.find("button"))


def _button(view: View) -> Call | None:
    return click(view.find("button", _named(view)))


def _test_2(view: View) -> Call | None:
    return click(view.find("button", "ONE"))


def _sequence(view: View) -> Call | None:
    # after the first click that button has the focus, which the text does not tell: the conversation does
    first, second = view.find("button", "ONE"), view.find("button", "TWO")
    clicked = view.call is not None and first is not None and view.call == ("click", {"element": first.number})
    return click(second if clicked and not view.refused else first)


def _link(view: View) -> Call | None:
    return click(view.find("link", _named(view)))


def _field(view: View) -> Call | None:
    return click(view.find("textbox"))


def _nth_field(view: View) -> Call | None:
    place = re.search(r"(\d+)(?:st|nd|rd|th)", view.asked)
    fields = view.all("textbox")
    return click(fields[int(place.group(1)) - 1]) if place and int(place.group(1)) <= len(fields) else None


def _fill(view: View, texts: list[str]) -> Call | None:
    """Type the texts into the fields, in order, then submit."""
    fields = [e for e in view.elements if e.kind.startswith("textbox")]
    for field, text in zip(fields, texts, strict=False):
        if field.value != text:
            return "type", {"element": field.number, "text": text}
    return _submit(view)


def _enter(view: View) -> Call | None:
    return _fill(view, [_named(view)])


def _password(view: View) -> Call | None:
    return _fill(view, [_named(view)] * 2)


def _login(view: View) -> Call | None:
    return _fill(view, re.findall(r'"([^"]*)"', view.asked)[:2])


def _list(view: View) -> Call | None:
    wanted = re.search(r"Select (.*) from the list", view.asked)
    field = view.find("select") or next(iter(view.all("select")), None)
    if wanted is None or field is None:
        return None
    if field.value != wanted.group(1):
        return "select", {"element": field.number, "option": wanted.group(1)}
    return _submit(view)


def _boxes(view: View) -> Call | None:
    asked = re.search(r"Select (.*) and click Submit", view.asked)
    wanted = set(asked.group(1).split(", ")) if asked else set()
    for box in view.all("checkbox", "radio"):
        if (box.text in wanted) != ("checked" in box.flags):
            if box.kind.startswith("radio") and box.text not in wanted:
                continue  # choosing the other takes it away
            return click(box)
    return _submit(view)


def _close(view: View) -> Call | None:
    return click(next((e for e in view.all("button") if e.text in ("Close", "x", "")), view.find("button")))


def _dialog(view: View) -> Call | None:
    wanted = _named(view)
    return _close(view) if wanted == "x" else click(view.find("button", wanted))


def _tab(view: View) -> Call | None:
    wanted = re.search(r"Tab #?(\d+)", view.asked)
    tabs = [e for e in view.all("link", "tab") if wanted and e.text in (f"Tab #{wanted.group(1)}", wanted.group(0))]
    return click(tabs[-1] if tabs else None)


def _tabs(view: View) -> Call | None:
    """Look for a link behind the tabs, one after the other."""
    wanted = _named(view)
    for element in view.all("link"):
        if element.text == wanted:
            return click(element)
    tabs = [e for e in view.all("link", "tab") if re.match(r"(Tab #)?\d+$", e.text) and e.kind == "tab"]
    chosen = next((i for i, e in enumerate(tabs) if "selected" in e.flags), -1)
    return click(tabs[(chosen + 1) % len(tabs)]) if tabs else None


def _collapsible(view: View) -> Call | None:
    closed = [e for e in view.all("tab") if e.text.lower() != "submit" and "expanded" not in e.flags]
    return click(closed[0]) if closed else _submit(view)


def _widget(view: View) -> Call | None:
    wanted = _named(view)
    found = view.all("textbox" if wanted == "text" else wanted)
    return click(found[0] if found else None)


def _table(view: View) -> Call | None:
    wanted = re.search(r"value of (.*) into", view.asked)
    texts = [e.text for e in view.elements if e.kind == "text"]
    place = texts.index(wanted.group(1)) if wanted and wanted.group(1) in texts else None
    return None if place is None or place + 1 == len(texts) else _fill(view, [texts[place + 1]])


def _arithmetic(view: View) -> Call | None:
    for element in view.elements:
        if sum_ := re.match(r"(\d+) ([+x-]) (\d+) =", element.text):
            left, sign, right = int(sum_.group(1)), sum_.group(2), int(sum_.group(3))
            return _fill(view, [str(left + right if sign == "+" else left - right if sign == "-" else left * right)])
    return None


def _odd(view: View) -> Call | None:
    """Mark numbers; each stands between its two buttons."""
    lines = view.elements
    for before, number, after in zip(lines, lines[1:], lines[2:], strict=False):
        if (before.text, after.text) == ("Odd", "Even") and re.fullmatch(r"-?\d+", number.text):
            right = before if int(number.text) % 2 else after
            if "selected" not in right.flags:
                return click(right)
    return _submit(view)


EXPERTS: dict[str, Expert] = {
    "choose-list": _list,
    "click-button": _button,
    "click-button-sequence": _sequence,
    "click-checkboxes": _boxes,
    "click-checkboxes-large": _boxes,
    "click-checkboxes-transfer": _boxes,
    "click-collapsible-nodelay": _collapsible,
    "click-dialog": _close,
    "click-dialog-2": _dialog,
    "click-link": _link,
    "click-option": _boxes,
    "click-tab": _tab,
    "click-tab-2-easy": _tabs,
    "click-test": _first_button,
    "click-test-2": _test_2,
    "click-widget": _widget,
    "enter-password": _password,
    "enter-text": _enter,
    "enter-text-dynamic": _enter,
    "focus-text": _field,
    "focus-text-2": _nth_field,
    "login-user": _login,
    "odd-or-even": _odd,
    "read-table": _table,
    "simple-arithmetic": _arithmetic,
    "unicode-test": _button,
}
"""The experts by level."""
