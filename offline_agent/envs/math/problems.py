"""Problems: families of seeded word problems in arithmetic, and the rows of GSM8K's and MATH's files."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from offline_agent.envs.task_files import tasks_of

COUNTS = {"train": 2000, "validation": 200, "test": 200}
"""Problems of a split."""
_RESIDUES = {"train": range(8), "validation": range(8, 9), "test": range(9, 10)}

Problem = tuple[str, list[str]]
"""A question, and cells whose last line prints the answer."""


def problems(split: str) -> Iterator[dict[str, Any]]:
    """Yield the problems of a split as tasks.

    The first number of every problem leaves a remainder by ten that belongs to its split, so no problem is in two.
    """
    seen: set[str] = set()
    number = 0
    while len(seen) < COUNTS[split]:
        rng = random.Random(f"{split} {number}")
        number += 1
        first = rng.randrange(2, 9) * 10 + rng.choice(_RESIDUES[split])
        question, cells = rng.choice(_FAMILIES)(first, rng)
        if question not in seen:
            seen.add(question)
            yield {
                "task_id": f"{split}-{len(seen) - 1}", "question": question, "gold": _calculated(cells), "cells": cells,
            }  # fmt: skip


def _calculated(cells: list[str]) -> str:
    names: dict[str, Any] = {}
    for cell in cells[:-1]:
        exec(cell, names)  # a text of this file
    *lines, last = cells[-1].splitlines()
    exec("\n".join(lines), names)
    return str(eval(last, names))


def _shop(a: int, rng: random.Random) -> Problem:
    b, price, paid = rng.randrange(3, 20), rng.randrange(2, 9), rng.choice((50, 100, 200))
    question = (
        f"A shop has {a} boxes of pencils with {b} pencils each. It sells a third of a box's worth of pencils, rounded"
        f" down, to each of {price} customers, and then gets {paid} more pencils. How many pencils does it have?"
    )
    return question, [f"pencils = {a} * {b}", f"sold = {b} // 3 * {price}", f"pencils - sold + {paid}"]


def _trip(a: int, rng: random.Random) -> Problem:
    h1, v2, h2, rest = rng.randrange(2, 6), rng.randrange(30, 80), rng.randrange(1, 5), rng.randrange(5, 60)
    question = (
        f"A bus drives at {a} km an hour for {h1} hours, then at {v2} km an hour for {h2} hours. The town that it goes"
        f" to is another {rest} km away. How long is the way in km?"
    )
    return question, [f"first = {a} * {h1}", f"second = {v2} * {h2}", f"first + second + {rest}"]


def _ages(a: int, rng: random.Random) -> Problem:
    years, factor = rng.randrange(2, 12), rng.randrange(2, 4)
    question = (
        f"Ana is {a} years old. In {years} years her father will be {factor} times as old as she will be then. How old"
        " is her father now?"
    )
    return question, [f"ana = {a} + {years}", f"father = ana * {factor}", f"father - {years}"]


def _percent(a: int, rng: random.Random) -> Problem:
    b, off, extra = rng.randrange(2, 9), rng.choice((10, 20, 25, 40, 50)), rng.randrange(3, 30)
    question = (
        f"A chair costs {a} dollars. Somebody buys {b * 10} of them and gets {off} percent off the whole price, then"
        f" pays {extra} dollars for the transport. How many dollars does it cost in all?"
    )
    return question, [f"full = {a} * {b * 10}", f"cut = full * {off} // 100", f"full - cut + {extra}"]


def _work(a: int, rng: random.Random) -> Problem:
    b, hours, broken = rng.randrange(20, 60), rng.randrange(3, 9), rng.randrange(4, 30)
    question = (
        f"One machine makes {a} bolts an hour and another one {b}. Both run for {hours} hours; then {broken} bolts are"
        " found to be broken, and the first machine runs one hour more. How many good bolts are there?"
    )
    return question, [f"both = ({a} + {b}) * {hours}", f"good = both - {broken}", f"good + {a}"]


def _garden(a: int, rng: random.Random) -> Problem:
    b, path = rng.randrange(11, 60), rng.randrange(1, 4)
    question = (
        f"A garden is {a} m long and {b} m wide. A path of {path} m runs along the inside of all four sides. How many"
        " square metres are left inside of the path?"
    )
    return question, [f"long = {a} - 2 * {path}", f"wide = {b} - 2 * {path}", "long * wide"]


def _fraction(a: int, rng: random.Random) -> Problem:
    d, share = rng.randrange(3, 12), rng.randrange(2, 6)
    question = (
        f"A tank holds {a} litres. Each day 1/{d} of what the full tank holds is used. What is left after {share} days,"
        " in litres? A negative number says how much would be missing. Give a fraction where it is no whole number."
    )
    return question, ["from fractions import Fraction", f"used = Fraction({a}, {d}) * {share}", f"str({a} - used)"]


def _money(a: int, rng: random.Random) -> Problem:
    months, gift, spent = rng.randrange(3, 24), rng.randrange(10, 90), rng.randrange(10, 90)
    question = (
        f"Leo saves {a} dollars each month for {months} months. In that time he gets {gift} dollars twice, and in"
        f" the end he spends {spent} dollars. How many dollars does he have?"
    )
    return question, [f"saved = {a} * {months}", f"gifts = 2 * {gift}", f"saved + gifts - {spent}"]


_FAMILIES: tuple[Callable[[int, random.Random], Problem], ...] = (
    _shop, _trip, _ages, _percent, _work, _garden, _fraction, _money,
)  # fmt: skip


# -- files -----------------------------------------------------------------------------------------------------------

FORMATS = "GSM8K (question, answer ending in '#### NUMBER') or MATH (problem, solution with \\boxed{...})"
_STEP = re.compile(r"<<([^=<>]+)=([^<>]*)>>")
_CALCULATION = re.compile(r"[0-9+\-*/(). ]+")


def read_file(path: str, key: str) -> list[dict[str, Any]]:
    """Return the tasks of a file. Raises ConfigError where it cannot be read or a row is of another format."""
    return tasks_of(path, key, _task, FORMATS)


def _task(row: Mapping[str, Any], number: str) -> dict[str, Any]:
    if "problem" in row:
        return _math_task(row, number)
    return _gsm8k_task(row, number)


def _gsm8k_task(row: Mapping[str, Any], number: str) -> dict[str, Any]:
    """Return a row of GSM8K (Cobbe et al. 2021, arXiv 2110.14168) as a task; its notes <<...>> are the cells."""
    question, answer = str(row["question"]), str(row["answer"])
    steps, mark, gold = answer.rpartition("####")
    if not mark or not gold.strip():
        raise ValueError("its answer has no '#### NUMBER'")
    cells = [left.strip() for left, _ in _STEP.findall(steps)]
    return {
        "task_id": str(row.get("task_id", f"gsm8k-{number.removeprefix('row ')}")), "question": question,
        "gold": gold.strip().replace(",", ""), "cells": [cell for cell in cells if _CALCULATION.fullmatch(cell)],
    }  # fmt: skip


def _math_task(row: Mapping[str, Any], number: str) -> dict[str, Any]:
    """Return a row of MATH (Hendrycks et al. 2021, arXiv 2103.03874) as a task; its solution is not shown."""
    gold = str(row["answer"]) if "answer" in row else boxed(str(row["solution"]))
    if gold is None:
        raise ValueError("its solution has no \\boxed{...}")
    name = row.get("task_id", row.get("unique_id", f"math-{number.removeprefix('row ')}"))
    return {"task_id": str(name), "question": str(row["problem"]), "gold": gold, "cells": []}


def boxed(solution: str) -> str | None:
    """Return what the last \\boxed{...} of a solution holds; None where there is none."""
    start = max(solution.rfind("\\boxed"), solution.rfind("\\fbox"))
    if start < 0:
        return None
    begin = solution.find("{", start)
    if begin < 0 or solution[start:begin].strip() not in ("\\boxed", "\\fbox"):
        return solution[start:].removeprefix("\\boxed").strip().split("$")[0].strip() or None
    depth = 0
    for at in range(begin, len(solution)):
        depth += {"{": 1, "}": -1}.get(solution[at], 0)
        if depth == 0:
            return solution[begin + 1 : at]
    return None
