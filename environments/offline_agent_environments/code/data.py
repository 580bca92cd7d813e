"""Problems from files: HumanEval's and MBPP's rows as tasks of the environment."""

from __future__ import annotations

import ast
import doctest
from collections.abc import Iterator, Mapping
from typing import Any

from offline_agent.envs.task_files import tasks_of
from offline_agent.judges.code import free_names

FORMATS = "HumanEval (task_id, prompt, entry_point, canonical_solution, test) or MBPP (task_id, text, code, test_list)"


def read_file(path: str, key: str) -> list[dict[str, Any]]:
    """Return the tasks of a file. Raises ConfigError where it cannot be read or a row is of another format."""
    return tasks_of(path, key, _task, FORMATS)


def _task(row: Mapping[str, Any], number: str) -> dict[str, Any]:
    return _of_human_eval(row) if "entry_point" in row or "prompt" in row and "test" in row else _of_mbpp(row)


def _of_human_eval(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of HumanEval (Chen et al. 2021, arXiv 2107.03374) as a task.

    Its test is one function of many assertions, so the score is 1 or 0. It may use helpers that the prompt defines.
    """
    name, prompt = str(row["entry_point"]), str(row["prompt"])
    setup = f"{prompt}\n{row['test']}"
    ast.parse(setup)
    return {
        "task_id": str(row["task_id"]), "request": f"Complete this program. Write all of it.\n\n{prompt}",
        "tests": [f"check({name})"], "shown": list(_examples(prompt, name)), "setup": setup, "names": [name],
        "solution": prompt + str(row["canonical_solution"]),
    }  # fmt: skip


def _of_mbpp(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of MBPP (Austin et al. 2021, arXiv 2108.07732) as a task; its first test is shown, as usual."""
    tests = [str(test) for test in row["test_list"]]
    setup = "\n".join([str(row.get("test_setup_code") or ""), *map(str, row.get("test_imports") or ())]).strip()
    names = free_names(tests, setup)
    if not tests or not names:
        raise ValueError("its tests call no function")
    text = str(row["text"] if "text" in row else row["prompt"])
    shown = tests[0]
    return {
        "task_id": f"mbpp-{row['task_id']}", "request": f"{text}\nThis test must pass: {shown}",
        "tests": tests, "shown": [shown], "setup": setup, "names": names, "solution": str(row["code"]),
    }  # fmt: skip


def _examples(prompt: str, name: str) -> Iterator[str]:
    """Yield the examples of a docstring as assertions, those that are expressions with a plain value."""
    for node in ast.walk(ast.parse(prompt)):
        if not (isinstance(node, ast.FunctionDef) and node.name == name):
            continue
        try:
            found = doctest.DocTestParser().get_examples(ast.get_docstring(node) or "")
        except ValueError:  # examples that Python's own reader refuses
            return
        for example in found:
            source, wanted = example.source.strip(), example.want.strip()
            try:
                ast.parse(source, mode="eval")
                ast.literal_eval(wanted)
            except (ValueError, SyntaxError):
                continue
            yield f"assert {source} == {wanted}"
