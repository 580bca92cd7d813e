"""Problems from files: GSM8K's and MATH's rows as tasks of the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from offline_agent.envs.task_files import tasks_of

FORMATS = "GSM8K (question, answer ending in '#### NUMBER') or MATH (problem, solution with \\boxed{...})"
_STEP = re.compile(r"<<([^=<>]+)=([^<>]*)>>")
_CALCULATION = re.compile(r"[0-9+\-*/(). ]+")


def read_file(path: str, key: str) -> list[dict[str, Any]]:
    """Return the tasks of a file. Raises ConfigError where it cannot be read or a row is of another format."""
    return tasks_of(path, key, _task, FORMATS)


def _task(row: Mapping[str, Any], number: str) -> dict[str, Any]:
    if "problem" in row:
        return _of_math(row, number)
    return _of_gsm8k(row, number)


def _of_gsm8k(row: Mapping[str, Any], number: str) -> dict[str, Any]:
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


def _of_math(row: Mapping[str, Any], number: str) -> dict[str, Any]:
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
