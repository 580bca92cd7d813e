"""Gold answers of real data sets, judged by the environments: each must score 1, and wrong answers near them 0.

Prints a table and the exceptions.

    python benchmarks/gold.py FOLDER [--rows N]

The folder may hold HumanEval.jsonl(.gz), mbpp.jsonl, gsm8k_*.jsonl and math*.jsonl; what is absent is left out.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _common import write_result

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.math.problems import read_file as read_math
from offline_agent.records import Action, Task, ToolCall, Verdict
from offline_agent.sandbox import shared
from offline_agent_environments.code.data import read_file as read_code

sys.path.insert(0, str(Path(__file__).parents[1]))  # for tests.helpers

from tests.helpers.near_misses import near_misses  # noqa: E402

FILES = (("code", "HumanEval.jsonl*"), ("code", "*mbpp*.json*"), ("math", "gsm8k_*.jsonl"), ("math", "*math*.jsonl"))
_READ = {"code": read_code, "math": read_math}


def rows(folder: Path) -> Iterator[tuple[str, Path, list[dict[str, Any]]]]:
    """Yield environment, file and tasks of each data file."""
    for name, pattern in FILES:
        for path in sorted(folder.glob(pattern)):
            yield name, path, _READ[name](str(path), "file")


def played(spec: EnvSpec, args: dict[str, Any], right: bool) -> Verdict:
    """Return the verdict on a task's gold answer; or on an empty program or other numbers, of several the best one."""
    return max((_verdict(spec, args, calls) for calls in _calls(spec.name, args, right)), key=lambda v: v.score or 0.0)


def _verdict(spec: EnvSpec, args: dict[str, Any], calls: list[tuple[str, dict[str, Any]]]) -> Verdict:
    episode = spec.open()
    try:
        episode.reset(Task(str(args["task_id"]), "test", args))
        for name, arguments in calls:
            episode.step(Action("", call=ToolCall(name, arguments)))
        return episode.verdict()
    finally:
        episode.close()


def _calls(name: str, args: dict[str, Any], right: bool) -> list[list[tuple[str, dict[str, Any]]]]:
    if name == "math":
        return [[("answer", {"value": one})] for one in ([args["gold"]] if right else near_misses(args["gold"]))]
    code = args["solution"] if right else "\n".join(f"def {each}(*a, **k):\n    pass" for each in args["names"])
    return [[("write", {"code": code}), ("submit", {})]]


def measured(spec: EnvSpec, tasks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the counts of one file."""
    began = time.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        gold = list(pool.map(lambda args: played(spec, args, True), tasks))
        seconds = time.perf_counter() - began
        wrong = list(pool.map(lambda args: played(spec, args, False), tasks))
    pairs = list(zip(tasks, gold, strict=True))
    return {
        "rows": len(tasks),
        "gold_1": sum(verdict.score == 1.0 for verdict in gold),
        "wrong_0": sum(verdict.score == 0.0 for verdict in wrong),
        "ms": 1000 * seconds / len(tasks),
        "exceptions": [[t["task_id"], v.score, v.error or dict(v.evidence)] for t, v in pairs if v.score != 1.0],
        "wrong_scored": [[t["task_id"], v.score, v.error] for t, v in zip(tasks, wrong, strict=True) if v.score != 0.0],
    }


def main() -> None:
    """Judge every row, or a sample of each file; print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="where the data files are")
    parser.add_argument("--rows", type=int, help="rows of each file, drawn at random; all by default")
    given = parser.parse_args()
    out = {}
    for name, path, tasks in rows(Path(given.folder)):
        chosen = tasks if given.rows is None else random.Random(0).sample(tasks, min(given.rows, len(tasks)))
        out[path.name] = measured(EnvSpec.load(name), chosen)
    table = [
        {"file": file, "rows": found["rows"], "gold answers that score 1": found["gold_1"],
         "wrong answers that score 0": found["wrong_0"], "ms a row": round(found["ms"], 1)}
        for file, found in out.items()
    ]  # fmt: skip
    if given.rows is None:
        write_result("gold", table, {"sandbox": shared().level})
    else:  # a sample is no result
        print(*table, sep="\n")
    for file, found in out.items():
        for what in ("exceptions", "wrong_scored"):
            for task_id, score, why in found[what]:
                print(f"{file} {task_id}: {what}: {score} {json.dumps(why, default=str)[:300]}")


if __name__ == "__main__":
    main()
