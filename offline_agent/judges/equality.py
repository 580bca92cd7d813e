"""Equality of mathematical values; runs inside the sandbox, so it imports nothing of this package.

Values are equal where their structures are (number, list, tuple, interval, relation) and each part is; a number by its
value, an expression by its values at fixed points.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import sympy
from latex2sympy2_extended.sets import FiniteSet
from sympy import Eq, Expr, Float, Interval, MatrixBase, Rational, Set, Symbol, Tuple
from sympy import FiniteSet as SetOfSome
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational

_DIGITS, _EXACT, _ROUNDED = 60, Float("1e-45", 60), Float("1e-6", 60)


def same(gold: Any, given: Any) -> bool:
    """Return whether a value is the right one; `x = 5` is 5, where x is a name."""
    gold, given = _alone(gold), _alone(given)
    right, made = _chain(gold), _chain(given)
    if right or made:
        return _same_equations(gold, right, made or [given])
    if isinstance(gold, Relational | sympy.And) or isinstance(given, Relational | sympy.And):
        return _same_relations(gold, given)
    if isinstance(gold, MatrixBase) and isinstance(given, MatrixBase):
        return gold.shape == given.shape and all(map(same, gold.flat(), given.flat()))
    if isinstance(gold, Interval) and isinstance(given, Interval):
        ends = (gold.left_open, gold.right_open) == (given.left_open, given.right_open)
        return bool(ends) and same(gold.start, given.start) and same(gold.end, given.end)
    if isinstance(gold, SetOfSome) and isinstance(given, SetOfSome):
        return _matched(_items(gold), _items(given))
    if isinstance(gold, Tuple) and isinstance(given, Tuple):
        return len(gold) == len(given) and all(map(same, gold, given))
    if isinstance(gold, Set) and isinstance(given, Set):
        return bool(gold == given or gold.symmetric_difference(given).is_empty)
    return isinstance(gold, Expr) and isinstance(given, Expr) and agree(gold, given)


def _same_equations(gold: Any, right: list[Any], made: list[Any]) -> bool:
    """Return whether what was given is the gold: of an equation, each side but a name must be the gold's value."""
    right, made = _name_first(right), _name_first(made)
    name = made[0] if len(made) > 1 and _named(made[0]) else None
    sides = made if name is None else made[1:]
    if not right:
        inside = isinstance(name, Symbol) and name in getattr(gold, "free_symbols", ())
        return not inside and all(same(gold, side) for side in sides)
    if _named(right[0]) and (name == right[0] or len(made) == 1) and all(same(right[-1], side) for side in sides):
        return True
    exprs = len(right) == len(made) == 2 and all(isinstance(side, Expr) for side in (*right, *made))
    return exprs and _ratio(right[0] - right[1], made[0] - made[1]) is not None


def _same_relations(gold: Any, given: Any) -> bool:
    if isinstance(gold, Set):
        return same(gold, given.as_set())
    if isinstance(given, Set):
        return same(gold.as_set(), given)
    both = [list(getattr(one, "_unsorted_args", one.args)) if isinstance(one, sympy.And) else [one]
            for one in (gold, given)]  # fmt: skip
    if len(both[0]) > 1 or len(both[1]) > 1:
        return _matched(*both)
    kinds, gaps = [], []
    for one in (gold, given):
        if not isinstance(one, Relational):
            return False
        more = isinstance(one, sympy.StrictGreaterThan | sympy.GreaterThan)
        kinds.append(one.rel_op.replace(">", "<"))
        gaps.append(one.rhs - one.lhs if more else one.lhs - one.rhs)
    ratio = _ratio(*gaps) if kinds[0] == kinds[1] else None
    return ratio is not None and (kinds[0] == "!=" or bool(sympy.re(ratio) > 0))


def _matched(gold: list[Any], given: list[Any]) -> bool:
    """Return whether two lists have the same values in any order."""
    left = list(given)
    for one in gold:
        at = next((at for at, other in enumerate(left) if same(one, other)), None)
        if at is None:
            return False
        del left[at]
    return not left


def _items(found: Any) -> list[Any]:
    return list(getattr(found, "_unsorted_args", found.args))


def _alone(found: Any) -> Any:
    items = _items(found) if isinstance(found, SetOfSome) else ()
    return items[0] if len(items) == 1 else found


def _chain(found: Any) -> list[Any]:
    """Return the sides of an equation, or of equations a = b = c; x = 1, x = 2 is x = {1, 2}. Else an empty list."""
    if isinstance(found, Eq):
        return [found.lhs, found.rhs]
    items = _items(found) if isinstance(found, sympy.And | SetOfSome) else []
    if not items or not all(isinstance(item, Eq) for item in items):
        return []
    if isinstance(found, sympy.And):
        return [items[0].lhs, *(item.rhs for item in items)]
    one = all(item.lhs == items[0].lhs for item in items) and _named(items[0].lhs)
    return [items[0].lhs, FiniteSet(*(item.rhs for item in items))] if one else []


def _name_first(sides: list[Any]) -> list[Any]:
    return sides[::-1] if sides and _named(sides[-1]) and not _named(sides[0]) else sides


def _named(found: Any) -> bool:
    if isinstance(found, Tuple | sympy.Mul):  # (x, y), or the side AB of a triangle
        short = 1 if isinstance(found, Tuple) else 2
        return all(isinstance(one, Symbol) and (short == 1 or one.name[0].isupper() or len(one.name) > 1)
                   for one in found.args)  # fmt: skip
    return isinstance(found, Symbol | AppliedUndef)


def _exact(found: Any) -> Any:
    """Return an expression with decimals as fractions, i as the imaginary unit and f(x) as a name."""
    new: dict[Any, Any] = {one: Rational(str(one)) for one in found.atoms(Float)}
    new |= {one: Symbol(str(one)) for one in found.atoms(AppliedUndef)}
    if not found.has(sympy.Sum, sympy.Product, sympy.Integral):
        new[Symbol("i", real=True)] = sympy.I
    return found.xreplace(new)


def _values(gold: Any, given: Any) -> Iterator[tuple[Any, Any]]:
    """Yield what both are at fixed points, where both are finite numbers."""
    names = sorted(gold.free_symbols | given.free_symbols, key=str)
    rng = random.Random(0)
    for _ in range(6 if names else 1):
        point = {name: Rational(rng.randint(-40, 40) or 1, rng.choice((7, 11, 13))) for name in names}
        pair = [one.subs(point).evalf(_DIGITS) for one in (gold, given)]
        if all(one.is_number and one.is_finite for one in pair):
            yield pair[0], pair[1]


def _near(a: Any, b: Any, share: Any) -> bool:
    most = max(abs(a), abs(b))
    return bool(most == 0 or abs(a - b) <= share * most)


def agree(gold: Any, given: Any, share: Any = None) -> bool:
    """Return whether two expressions have the same value wherever they are looked at, 1/3 and 0.333333 included."""
    decimal = bool(gold.atoms(Float) or given.atoms(Float))
    gold, given = _exact(gold), _exact(given)
    pairs = list(_values(gold, given))
    if not pairs:
        return bool(gold == given) and not gold.has(sympy.nan, sympy.zoo)
    if share is None:
        share = _EXACT if not decimal or (_ends(gold) and _ends(given)) else _ROUNDED
    if not all(_near(a, b, share) for a, b in pairs):
        return False
    whole = (gold.doit(), given.doit()) if share is _EXACT and not gold.free_symbols else (0, 0)
    return bool(whole[0] == whole[1]) or not all(isinstance(one, Rational) for one in whole)


def _ends(found: Any) -> bool:
    """Return whether a number's decimals end."""
    number = found.doit() if not found.free_symbols else found
    return isinstance(number, Rational) and 10 ** int(number.q).bit_length() % number.q == 0


def _ratio(gold: Any, given: Any) -> Any:
    """Return the constant by which two expressions differ; None where they differ otherwise, or are constant."""
    pairs = [pair for pair in _values(_exact(gold), _exact(given)) if any(one != 0 for one in pair)]
    if len(pairs) < 2 or any(one == 0 for pair in pairs for one in pair):
        return None
    ratios = [a / b for a, b in pairs]
    return ratios[0] if all(_near(ratios[0], one, _EXACT) for one in ratios) else None
