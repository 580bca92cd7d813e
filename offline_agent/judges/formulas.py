"""Mathematical texts as values; runs inside the sandbox, with `equality` and nothing else of this package.

A text is read as one whole formula (latex2sympy). Only an answer that has words is searched for a value, which must be
the only one of its last sentence.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, NormalizationConfig, latex2sympy, normalize_latex
from sympy import Expr, Float, MatrixBase, Rational, Symbol

from offline_agent.judges.equality import agree, same

_LONGEST = 2000  # characters of a formula
_NORMAL = NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="none")
_CASES = ConversionConfig(lowercase_symbols=False)

_SIGNS = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "÷": "/", "π": r"\pi ", "±": r"\pm ", "≤": r"\le ",
    "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "∞": r"\infty ", "∪": r"\cup ", "∈": r"\in ", "°": r"^\circ ",
    "√": r"\sqrt ",
    "²": "^2", "³": "^3", "\\leqslant": r"\le ", "\\geqslant": r"\ge ", "\\dots": r"\ldots", "\\cdots": r"\ldots",
}  # fmt: skip
_MANY = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_FUNCTIONS = frozenset(
    ("pi", "sqrt", "sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "and", "or", "inf", "infinity",
    "percent")
)
_CHANGED = frozenset(
    {"or", "not", "no", "never", "neither", "nor", "least", "most", "than", "more", "less", "fewer", "above",
    "below", "over", "under", "between", "either", "half", "third", "quarter", "twice", "double", "triple", "dozen",
    "root", "factorial", "minus", "negative", "plus", "times", "divided", "multiplied", "inverse", "reciprocal",
    "opposite", "power", "base", "mod", "modulo", "wrong", "false", "except", "without"}
) | frozenset(_MANY)
"""Words that make another value of the one beside them."""

_PAIRS = (r"\$\$(.+?)\$\$", r"\$(.+?)\$", r"\\\((.+?)\\\)", r"\\\[(.+?)\\\]")
_DELIMITED = re.compile("|".join(_PAIRS), re.DOTALL)
_MARK = re.compile(r"####|\b(?:answer|result|total|solution)s?\b(?:[^.$\n]{0,60}?\b(?:is|are|equals)\b|\s*[:=])", re.I)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z][A-Za-z'’-]*[A-Za-z](?![A-Za-z(])")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_UNIT = re.compile(r"(?:\s*(?:\\[ ,;]|/|\\cdot|\\frac)?\s*\{?\\text\{([A-Za-z .°/]*)\}\}?(?:\^\{?-?\d\}?)?)+$")
_PERCENT = re.compile(r"(?:\\?%|\\text\{\s*percent\s*\}|\bpercent)\s*$")
_BASE = re.compile(r"[\d)}]\s*_\s*\{?\s*(\w+)")


class Unreadable(Exception):
    """Raised where a text is no formula."""


class Gold:
    """The right answer: its text, and the value that it is read as, None where only its text can be compared.

    Raises:
        Unreadable: It is empty.
    """

    def __init__(self, text: str) -> None:
        self.text = _bare(text)
        if not _plain(self.text):
            raise Unreadable("it is empty")
        self.letters = set(re.sub(r"\\[A-Za-z]+", "", self.text))
        self.value: Any = None
        words = _words(self.text)
        if not re.fullmatch(r"[^\W\d_]{3,}(?:[\s'’-]+[^\W\d_]+)*", words) and not _TEXT.fullmatch(self.text):
            try:
                self.value = value(self.text)
                if not same(self.value, self.value):
                    self.value = None
            except Unreadable:
                pass
        self.shown = self.text if self.value is None else str(self.value)[:500]


def judged(answer: str, gold: Gold) -> tuple[bool, str]:
    """Return whether an answer is the right one, and what it was read as ("" where it cannot be read)."""
    text = _bare(answer)
    found = None
    for one in filter(None, dict.fromkeys((text, _value_in_prose(text, gold)))):
        if _plain(one) == _plain(gold.text) or (_words(one) == _words(gold.text) and not re.search(r"\d", one)):
            return True, one[:500]
        if gold.value is not None and not _prose(one, gold):
            with contextlib.suppress(Unreadable):
                found = value(one)
                return _judged(found, one, gold), str(found)[:500]
    return False, "" if found is None else str(found)[:500]


def _judged(found: Any, text: str, gold: Gold) -> bool:
    bases, wanted = _BASE.findall(text), _BASE.findall(gold.text)
    if bases and bases != wanted:
        return False
    if ":" in gold.text and re.sub(r"[^:]", "", text) != re.sub(r"[^:]", "", gold.text):
        return False
    if ":" in gold.text:  # a ratio in its lowest terms, or a time
        return all(same(value(a), value(b)) for a, b in zip(gold.text.split(":"), text.split(":"), strict=True))
    if re.search(r"[<>]|\\[lg]e", text) and _connectives(text) ^ _connectives(gold.text):
        return False
    if same(gold.value, found):
        return True
    percent = bool(_PERCENT.search(text)) - bool(_PERCENT.search(gold.text))
    return bool(percent) and isinstance(gold.value, Expr) and same(gold.value * Rational(100) ** percent, found)


def _connectives(text: str) -> set[str]:
    return set(re.findall(r"\b(?:and|or)\b", text))


def value(text: str) -> Any:
    """Return the value that a whole text is; raises Unreadable where it is no formula."""
    text = _formula(text)
    left, approx, right = text.partition(r"\approx")
    if approx:
        exact, rounded = value(left), value(right)
        if isinstance(exact, Symbol):
            return rounded
        if not agree(exact, rounded, Float("0.01")):
            raise Unreadable("the approximation is none")
        return exact
    normal = normalize_latex(text, _NORMAL)
    if len(normal) > _LONGEST or not normal or re.search(r"\d\s+\d", normal):
        raise Unreadable("too long, empty, or numbers side by side")
    try:
        found = latex2sympy(normal, is_real=True, normalization_config=None, conversion_config=_CASES)
    except RecursionError:
        raise
    except Exception as error:
        raise Unreadable(str(error)) from error
    if not isinstance(found, sympy.Basic | MatrixBase):
        raise Unreadable("no value")
    return found


def _formula(text: str) -> str:
    """Return a text's formula: without its unit and percent sign, its numbers as LaTeX has them."""
    text = re.sub(r"(?<=\d)\s*(?:\\text\{\s*)?(" + "|".join(_MANY) + r")\b\s*\}?",
                  lambda m: rf"\cdot 10^{{{_MANY[m[1]]}}}", text)  # fmt: skip
    unit = _UNIT.search(text)
    if unit and unit.start() and not _CHANGED.intersection(re.findall(r"[a-z]+", unit[0])):
        text = text[: unit.start()]
    text = _PERCENT.sub("", text.strip()).strip()
    text = re.sub(r"\\text\{\s*(and|or)\s*\}", r" \1 ", text)
    if "text{" in re.sub(r"(?:^|[,=({])\s*\\text\{[^{}]*\}\s*(?=$|[,)}])", ",", text) or r"\ldots" in text:
        raise Unreadable("words in the formula")
    text = re.sub(r"(?<=\d)(?:,?\\!|\\,|\{,\})(?=\d{3}(?!\d))", "", text)
    text = re.sub(r"(?<!\\)\\[ ,;:!]|\\q?quad|~", " ", text)
    if re.fullmatch(r"-?\d{1,3}( \d{3})+(\.\d+)?", text):
        text = text.replace(" ", "")
    text = re.sub(r"^([-+]?\d+(?:\.\d+)?)[eE]([-+]?\d+)$", r"\1 \\cdot 10^{\2}", text).replace("**", "^")
    text = re.sub(r"\^\s*([-+]?\d+)", r"^{\1}", text)
    text = re.sub(r"(?<![\d.])(\d+)\s+(\d+)/(\d+)(?![\d.])", r"\1\\frac{\2}{\3}", text)
    text = re.sub(r"(?<![A-Za-z\\])(pi|sin|cos|tan|cot|sec|csc|ln|log|exp)(?![A-Za-z])", r"\\\1 ", text)
    return re.sub(r"(\d*)\.(\d*)\\(?:overline|bar)\{(\d+)\}", _repeating, text)


def _repeating(match: re.Match[str]) -> str:
    whole, fixed, again = match.groups()
    over = (10 ** len(again) - 1) * 10 ** len(fixed)
    return rf"(\frac{{{int((whole or '0') + fixed + again) - int((whole or '0') + fixed)}}}{{{over}}})"


def _bare(text: str) -> str:
    """Return a text without what only wraps it: boxes, delimiters of the whole, currency, a full stop, a leading =."""
    boxes = list(dict.fromkeys(_boxes(text)))
    text = ", ".join(boxes) if boxes else text
    for sign, latex in _SIGNS.items():
        text = text.replace(sign, latex)
    text = re.sub(r"\\(?:mathbf|boldsymbol|vec)\s*\{([A-Za-z])\}", r"\1", text)
    text = re.sub(r"\\(?:mbox|mathrm|textbf|textrm|textit|textnormal|mathbf|mathit)\s*\{", r"\\text{", text)
    text = re.sub(r"\\(?:left|right|displaystyle)(?![A-Za-z])\.?|\*\*(?=\S.*\*\*$)", "", text).strip()
    text = text.strip().removesuffix(".").removeprefix("=").strip().removesuffix("**")
    for pair in _PAIRS:
        whole = re.fullmatch(pair, text, re.DOTALL)
        if whole and not re.search(r"\$|\\[()\[\]]", whole[1].replace(r"\$", "")):
            text = whole[1].strip()
    return re.sub(r"^(-?)\s*\\?[$€£](?=\s*[\d.])(?!.*\$)", r"\1", text).strip()


def _boxes(text: str) -> Iterator[str]:
    for match in re.finditer(r"\\f?box(?:ed)?\s*\{", text):
        depth, start = 1, match.end()
        for at in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            if depth == 0:
                yield text[start:at].strip()
                break


def _plain(text: str) -> str:
    """Return a text by which two are the same without being read: no spaces but between letters and digits."""
    text = " ".join(re.sub(r"\\[dt]frac", r"\\frac", _TEXT.sub(r"\1", text)).split())
    return re.sub(r"(?<![0-9A-Za-z])\s+|\s+(?![0-9A-Za-z])", "", text)


def _words(text: str) -> str:
    return " ".join(_TEXT.sub(r"\1", text).casefold().strip(" .()").split())


def _prose(text: str, gold: Gold) -> list[str]:
    """Return a text's words: runs of letters that are no function, nor a product of the right answer's letters."""
    bare = re.sub(r"\\text\{[^{}]*\}|\\(?:begin|end)\{[^{}]*\}", " ", text)
    return [word for word in _WORD.findall(bare) if word not in _FUNCTIONS and not set(word) <= gold.letters]


def _value_in_prose(text: str, gold: Gold) -> str | None:
    """Return the only value of a text's last sentence, or of what follows `answer is`; None where there is no such."""
    text = _TEXT.sub(r" \1 ", text)
    last = [part for part in re.split(r"(?<=[.!?])\s+|\n", text) if part.strip()][-1:]
    tail = (_MARK.split(text)[-1] if _MARK.search(text) else "".join(last)).strip().removesuffix(".")
    tail = re.sub(r"(?<=\d)\s*(" + "|".join(_MANY) + r")\b", lambda m: rf"\cdot 10^{{{_MANY[m[1]]}}}", tail)
    words = [word.casefold() for word in _WORD.findall(_DELIMITED.sub(" ", tail))]
    if gold.value is None:
        return tail
    if _CHANGED.intersection(words):
        return None
    cut = _DELIMITED.sub(lambda m: f" formula {m[0]} formula ", tail)
    apart = ["formula", *map(re.escape, set(_WORD.findall(cut)) - _FUNCTIONS - {"formula"})]
    parts = re.split(rf"(?<![A-Za-z])(?:{'|'.join(apart)})(?![A-Za-z])", cut)
    parts = [_bare(part.strip(" ,;:!?")) for part in parts]
    found = list(dict.fromkeys(re.sub(r"(?<=\d) [mghsLl]$", "", p) for p in parts if re.search(r"\d|\\[a-z]|\$", p)))
    return found[0] if len(found) == 1 else None
