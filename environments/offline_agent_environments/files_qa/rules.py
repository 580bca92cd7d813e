"""GAIA's comparison of answers, and the arithmetic that the tool `calculate` knows."""

from __future__ import annotations

import ast
import datetime
import operator
import re
import string
from collections.abc import Callable, Mapping
from typing import Any

from offline_agent.judges.verifiers import verifier

_BINARY: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_NAMED: Mapping[str, Callable[..., Any]] = {
    "round": round, "min": min, "max": max, "abs": abs,
    "days": lambda text: datetime.date.fromisoformat(text).toordinal(),
}  # fmt: skip
_LONGEST = 300  # characters of an expression


@verifier("1")
def quasi_exact_match(answer: str, gold: str) -> tuple[float, bool, dict[str, Any]]:
    """Judge an answer by GAIA's quasi-exact match (Mialon et al. 2023; `scorer.py` of the leaderboard's space).

    A right answer that is a number is compared as one, after `$`, `%` and `,` are taken out of the given answer. One
    with `,` or `;` is a list: as many elements, in its order, each a number or a text without space and case. Any
    other is compared without space, case and ASCII punctuation.

    Args:
        answer: The given answer.
        gold: The right one.
    """
    if _number(gold) is not None:
        rule, equal = "number", _same_number(answer, gold)
    elif re.search("[,;]", gold):
        given, wanted = re.split("[,;]", answer), re.split("[,;]", gold)
        rule = "list"
        equal = len(given) == len(wanted) and all(map(_same_element, given, wanted))
    else:
        bare = str.maketrans("", "", string.punctuation)
        rule, equal = "text", _squeezed(answer).translate(bare) == _squeezed(gold).translate(bare)
    return float(equal), equal, {"answer": answer, "gold": gold, "rule": rule}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _same_number(answer: str, gold: str) -> bool:
    return _number(re.sub("[$%,]", "", answer)) == float(gold)


def _same_element(answer: str, gold: str) -> bool:
    return _squeezed(answer) == _squeezed(gold) if _number(gold) is None else _same_number(answer, gold)


def _squeezed(text: str) -> str:
    return re.sub(r"\s", "", text).lower()


def calculated(expression: str) -> str:
    """Return the value of an expression of numbers, `+ - * / // %`, brackets, round, min, max, abs and days("DATE").

    Raises:
        ValueError: It is no such expression, or has no value.
    """
    if len(expression) > _LONGEST:
        raise ValueError(f"it has {len(expression)} characters; allowed: at most {_LONGEST}")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, TypeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise ValueError(str(error) or type(error).__name__) from error
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int() | float() | str() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            values = _value(left), _value(right)
            if not all(isinstance(one, int | float) for one in values):  # "a" * 10**9 would fill the memory
                raise ValueError("a text stands where a number must")
            return _BINARY[type(op)](*values)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _NAMED:
            return _NAMED[name](*map(_value, args))
        case _:
            raise ValueError(f"got {ast.unparse(node)[:60]!r}, allowed: numbers, + - * / // %, brackets, "
                             'round(x, digits), min, max, abs, and days("2026-01-31")')  # fmt: skip
