"""Gold scores on real data: the scripted expert, who knows the right answers, plays every task of the files.

python benchmarks/gold_data.py --data FOLDER

Prints a table and writes benchmarks/results/gold_data.json. `empty` is the number of tasks that saying nothing solves;
`exceptions` are answers that no passage holds.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from _common import write_result

from offline_agent.envs.base import EnvSpec, Episode
from offline_agent.judges.verifiers import normalise
from offline_agent.records import Action, Task, ToolCall, Verdict
from offline_agent_environments.search_qa.sources import find

SPLITS = ("train", "validation", "test")
RESULTS = Path(__file__).parent / "results" / "gold_data.json"


def played(spec: EnvSpec, task: Task) -> tuple[Verdict, int]:
    """Return the verdict on the expert's episode, and its number of actions."""
    episode, messages = spec.open(), []
    messages.append({"role": "user", "content": episode.reset(task)})
    count = 0
    while not episode.terminated and count < 200:
        message = spec.demonstrate(task.args, messages, random.Random(0), 0.0)
        messages.append(message)
        result = episode.step(_action(message))
        messages.append({"role": result.role, "content": result.observation})
        count += 1
    return episode.verdict(), count


def nothing(spec: EnvSpec, task: Task) -> bool:
    """Return whether saying nothing solves the task."""
    episode: Episode = spec.open()
    episode.reset(task)
    while not episode.terminated:
        episode.step(Action(""))
    return bool(episode.verdict().success)


def row(name: str, spec: EnvSpec, exceptions: Any) -> dict[str, Any]:
    """Return the figures of one data set."""
    tasks = [task for split in SPLITS for task in spec.tasks(split)]
    begun, results = time.perf_counter(), {task.task_id: played(spec, task) for task in tasks}
    seconds = time.perf_counter() - begun
    right = [name for name, (verdict, _) in results.items() if verdict.success]
    return {
        "data": name,
        "tasks": len(tasks),
        "gold scores 1": len(right),
        "unscored": sum(verdict.score is None for verdict, _ in results.values()),
        "empty": sum(nothing(spec, task) for task in tasks),
        "failed": sorted(set(results) - set(right)),
        "actions": sum(count for _, count in results.values()),
        "seconds": round(seconds, 2),
        "exceptions": exceptions(tasks, {name: verdict for name, (verdict, _) in results.items()}),
    }


def _action(message: Any) -> Action:
    calls = message.get("tool_calls")
    if not calls:
        return Action(message["content"])
    function = calls[0]["function"]
    return Action("", call=ToolCall(function["name"], function["arguments"]))


def _answers(tasks: Iterable[Task], verdicts: dict[str, Verdict]) -> dict[str, Any]:
    """Return the questions whose answer does not stand in their supporting passages, by their kind of answer."""
    tasks = list(tasks)
    passages = find(tasks[0].args["passages"]).by_title
    missing = []
    for task in tasks:
        texts = " ".join(normalise(passages[title.casefold()].text) for title in task.args["support"])
        if not any(normalise(gold) in texts for gold in task.args["gold"]):
            missing.append((task.task_id, task.args["gold"][0]))
    decided = [name for name, gold in missing if normalise(gold) in ("yes", "no")]
    return {
        "answer is yes or no": len(decided),
        "answer stands in no passage": [m for m in missing if m[0] not in decided],
    }


def main() -> None:
    """Play every data set that is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the files")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the JSON file that is written")
    arguments = parser.parse_args()
    data: Path = arguments.data
    sets = [
        (
            "hotpotqa_100",
            data / "hotpotqa_100.json",
            "search_qa",
            _answers,
            {
                "questions": str(data / "hotpotqa_100.json"),
                "passages": str(data / "hotpotqa_100_corpus.json"),
                "support": "required",
            },
        ),
        (
            "chinook, generated questions",
            data / "chinook.sqlite",
            "sql",
            lambda *_: {},
            {"database": str(data / "chinook.sqlite")},
        ),
    ]
    rows = []
    for name, path, environment, exceptions, keys in sets:
        if not path.exists():
            print(f"{name}: there is no {path}; left out")
            continue
        rows.append(row(name, EnvSpec.load(environment, keys), exceptions))
    columns = ("data", "tasks", "gold scores 1", "unscored", "empty", "actions", "seconds")
    print(" | ".join(columns))
    for one in rows:
        print(" | ".join(str(one[column]) for column in columns))
        print(f"  exceptions: {json.dumps(one['exceptions'], ensure_ascii=False)}")
        if one["failed"]:
            print(f"  failed: {', '.join(one['failed'])}")
    table = [{**{column: one[column] for column in columns}, "seconds": round(one["seconds"], 2)} for one in rows]
    write_result("gold_data", table, {one["data"]: _told(one["exceptions"]) for one in rows}, arguments.out)


def _told(exceptions: dict[str, Any]) -> str:
    """Return the exceptions in words: a count, or the tasks."""
    said = []
    for what, which in exceptions.items():
        if which:
            tasks = which if isinstance(which, int) else ", ".join(map(str, which))
            said.append(f"{what}: {tasks}")
    return "; ".join(said) or "no exceptions"


if __name__ == "__main__":
    main()
