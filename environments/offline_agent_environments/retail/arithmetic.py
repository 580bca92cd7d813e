"""Arithmetic of a service desk's calculator, without evaluating code."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

_OPERATORS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def evaluate(expression: str) -> float:
    """Return the value of sums, differences, products and quotients of numbers.

    Raises:
        ValueError: It is something else, or cannot be computed.
    """
    if len(expression) > 500:
        raise ValueError("the expression is longer than 500 characters")
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError, ZeroDivisionError, OverflowError) as error:
        raise ValueError(f"cannot compute {expression[:80]!r}: {type(error).__name__}") from error


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError("allowed: numbers, + - * / and brackets")
