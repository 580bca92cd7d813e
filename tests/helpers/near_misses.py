"""Wrong answers that lie near a right one, made from its text alone: none may be paid."""

from __future__ import annotations

import re

_OTHER = ((r"\ge", r"\le"), (r"\le", r"\ge"), ("<", ">"), (">", "<"), (r"\cup", r"\cap"), ("[", "("), ("]", ")"))


def near_misses(gold: str) -> list[str]:
    """Return the wrong answers near a right one, each once.

    Of a number: another sign, an added relation, value, part or sign. Of a formula also one without a factor, exponent,
    radical, factorial or element, and one with another relation.

    Args:
        gold: A number or a formula.
    """
    text = gold.strip().strip("$")
    zero = re.fullmatch(r"[-+]?0*\.?0*", text) is not None
    made = [rf"({text}) + 1", f"{text}, 7919", rf"x \ge {text}", f"7919 = {text}", f"{text} = 7919",
            rf"{text} \times 2", f"7919 {text}", f"({text}, 7919)", f"7919 or {text}", f"at least {text}"]  # fmt: skip
    if zero:
        return made[:5] + made[6:]  # twice nothing is nothing
    made.append(f"{text} million")
    if r"\pm" not in text:
        made += [rf"\pm {text}", text[1:] if text.startswith("-") else f"-{text}"]
    if re.fullmatch(r"\d+", text):
        made += [rf"{text}\frac{{1}}{{3}}", f"{text}.5", rf"\frac{{1}}{{3}}{text}", f"{text}_9"]
        made += [] if text == "1" else [f"{text}^{{2}}", f"1/{text}"]
        made += [] if text in ("1", "2") else [f"{text}!"]
    if mixed := re.fullmatch(r"(-?\d+)\s*(\\[dt]?frac.*)", text):
        made += [mixed[1], mixed[2]]
    if factor := re.fullmatch(r"(-?\d+)\s*(?:\\cdot\s*)?(\\(?:sqrt|pi).*)", text):
        made += [factor[1], factor[2]]
    if power := re.fullmatch(r"(\w+)(?:\^(?:\{.*\}|.)|!)", text):
        made.append(power[1])
    if r"\sqrt{" in text:
        made.append(text.replace(r"\sqrt{", "{"))
    if fraction := re.fullmatch(r"-?\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}", text):
        made += [fraction[1], rf"\frac{{{fraction[2]}}}{{{fraction[1]}}}"] if fraction[1] != fraction[2] else []
    if "," in text:
        inner = text.strip("()[]{}\\ ")
        made += [inner.partition(",")[0], inner.rpartition(",")[2]]
        made += [inner] if text[0] in "([" else [f"({text})"] if text[0].isalnum() else []
    for old, new in _OTHER:
        if old in text:
            made.append(text.replace(old, new))
    return list(dict.fromkeys(made))
