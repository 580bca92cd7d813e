"""Mutations of Python source: one operator, constant, comparison or condition changed, as programmers err."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import libcst as cst

_COMPARISONS: dict[type[cst.BaseCompOp], type[cst.BaseCompOp]] = {
    cst.LessThan: cst.LessThanEqual, cst.LessThanEqual: cst.LessThan, cst.GreaterThan: cst.GreaterThanEqual,
    cst.GreaterThanEqual: cst.GreaterThan, cst.Equal: cst.NotEqual, cst.NotEqual: cst.Equal,
    cst.In: cst.NotIn, cst.NotIn: cst.In,
}  # fmt: skip
_ARITHMETIC: dict[type[cst.BaseBinaryOp], type[cst.BaseBinaryOp]] = {
    cst.Add: cst.Subtract, cst.Subtract: cst.Add, cst.Multiply: cst.Add, cst.FloorDivide: cst.Multiply,
    cst.Modulo: cst.FloorDivide, cst.Divide: cst.Multiply,
}  # fmt: skip
_BOOLEAN: dict[type[cst.BaseBooleanOp], type[cst.BaseBooleanOp]] = {cst.And: cst.Or, cst.Or: cst.And}


def mutants(source: str) -> int:
    """Return the number of mutants of a module; raises ValueError where it does not parse."""
    return _applied(source, -1)[1]


def mutant(source: str, number: int) -> str:
    """Return a mutant of a module, by number from 0; raises ValueError where it does not parse or has none such."""
    changed, count = _applied(source, number)
    if not 0 <= number < count:
        raise ValueError(f"the module has {count} mutants, none is number {number}")
    return changed


def mutated(source: str, rng: random.Random) -> str:
    """Return a mutant drawn at random; the source itself where it has none or does not parse."""
    try:
        count = mutants(source)
        return mutant(source, rng.randrange(count)) if count else source
    except ValueError:
        return source


@lru_cache(maxsize=4096)
def _applied(source: str, number: int) -> tuple[str, int]:
    try:
        module = cst.parse_module(source)
    except cst.ParserSyntaxError as error:
        raise ValueError(f"it does not parse: {error}") from error
    mutation = _Mutation(number)
    changed = module.visit(mutation)
    return changed.code, mutation.count


class _Mutation(cst.CSTTransformer):
    """Applies the mutation of one number, and counts all.

    Args:
        number: Its number; -1 = none.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.count = 0
        self._number = number

    def visit_Decorator(self, node: cst.Decorator) -> bool:  # noqa: D102  (libcst's names)
        return False

    def visit_Annotation(self, node: cst.Annotation) -> bool:  # noqa: D102
        return False

    def leave_ComparisonTarget(  # noqa: D102
        self, original_node: cst.ComparisonTarget, updated_node: cst.ComparisonTarget
    ) -> cst.ComparisonTarget:
        other = _COMPARISONS.get(type(updated_node.operator))
        return self._one(updated_node, other and (lambda: updated_node.with_changes(operator=other())))

    def leave_BinaryOperation(  # noqa: D102
        self, original_node: cst.BinaryOperation, updated_node: cst.BinaryOperation
    ) -> cst.BaseExpression:
        other = _ARITHMETIC.get(type(updated_node.operator))
        return self._one(updated_node, other and (lambda: updated_node.with_changes(operator=other())))

    def leave_BooleanOperation(  # noqa: D102
        self, original_node: cst.BooleanOperation, updated_node: cst.BooleanOperation
    ) -> cst.BaseExpression:
        other = _BOOLEAN.get(type(updated_node.operator))
        return self._one(updated_node, other and (lambda: updated_node.with_changes(operator=other())))

    def leave_Integer(self, original_node: cst.Integer, updated_node: cst.Integer) -> cst.BaseExpression:  # noqa: D102
        return self._one(updated_node, lambda: updated_node.with_changes(value=str(original_node.evaluated_value + 1)))

    def leave_UnaryOperation(  # noqa: D102
        self, original_node: cst.UnaryOperation, updated_node: cst.UnaryOperation
    ) -> cst.BaseExpression:
        negated = isinstance(updated_node.operator, cst.Not)
        return self._one(updated_node, (lambda: updated_node.expression) if negated else None)

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> cst.If:  # noqa: D102
        def negated() -> cst.If:
            inner = updated_node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
            return updated_node.with_changes(test=cst.UnaryOperation(cst.Not(), inner))

        return self._one(updated_node, negated)

    def _one(self, node: Any, change: Callable[[], Any] | None) -> Any:
        if change is None:
            return node
        self.count += 1
        return change() if self.count - 1 == self._number else node


