"""GAIA's comparison of answers, and the arithmetic that the tool `calculate` knows."""

from __future__ import annotations

import ast
import datetime
import operator
import re
import string
from collections.abc import Callable, Mapping
from typing import Any

from offline_agent.errors import ToolError
from offline_agent.judges.verifiers import verifier

_BINARY: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_DIGITS = 300  # more make integers that take minutes
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
    if re.search("[,;]", gold):  # so it is no number
        given, wanted = re.split("[,;]", answer), re.split("[,;]", gold)
        equal = len(given) == len(wanted) and all(map(_same, given, wanted))
    else:
        equal = _same(answer, gold, string.punctuation)
    return float(equal), equal, {"answer": answer, "gold": gold}


def _same(answer: str, gold: str, without: str = "") -> bool:
    try:
        wanted = float(gold)
    except ValueError:
        one, other = ("".join(text.lower().split()) for text in (answer, gold))
        return one.translate(str.maketrans("", "", without)) == other.translate(str.maketrans("", "", without))
    try:
        return float(re.sub("[$%,]", "", answer)) == wanted
    except ValueError:
        return False


def calculated(expression: str) -> str:
    """Return the value of an expression of numbers, `+ - * /`, brackets, `round` and `days("DATE")`.

    Raises:
        ToolError: It is no such expression, has no value, or is too long.
    """
    if len(expression) > _LONGEST:
        raise ToolError(f"an expression has at most {_LONGEST} characters")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, TypeError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
        raise ToolError(f"{expression[:60]!r} cannot be computed: {error or type(error).__name__}") from error
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left), _value(right))
        case ast.Call(func=ast.Name(id="days"), args=[ast.Constant(value=str() as date)]):
            return datetime.date.fromisoformat(date).toordinal()
        case ast.Call(func=ast.Name(id="round"), args=args):
            number, *digits = map(_value, args)
            if digits and abs(digits[0]) > _DIGITS:
                raise ValueError(f"round takes at most {_DIGITS} digits")
            return round(number, *digits)
    raise ValueError(f'got {ast.unparse(node)[:60]!r}, allowed: numbers, + - * /, brackets, round(x, digits) and '
                     'days("2026-01-31")')  # fmt: skip
