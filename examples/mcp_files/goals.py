"""Tasks over the files of a folder, with a goal state and its verifier, for the MCP server beside this file.

python -m offline_agent.pipelines.build_prefs --config examples/mcp_files/search.yaml

A task of `tasks.jsonl` has the files at the start and those of the goal. `policy=random` needs no expert.
"""

import json
from pathlib import Path

TASKS = Path(__file__).with_name("tasks.jsonl")


def tasks(split):
    for line in TASKS.read_text().splitlines():
        task = json.loads(line)
        if task.pop("split") == split:
            yield task


def setup(task, folder):
    for path, text in task["start"].items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return task["instruction"]


def verify(task, folder):
    """Return 1 at the goal, else half of the share of the changes that are made; 0 where anything else was changed."""
    start, goal = task["start"], task["goal"]
    now = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    to_change = [path for path in {*start, *goal} if start.get(path) != goal.get(path)]
    if any(now.get(path) != goal.get(path) for path in {*now, *start} - {*to_change}):
        return 0.0
    made = sum(now.get(path) == goal.get(path) for path in to_change)
    return 1.0 if made == len(to_change) else 0.5 * made / len(to_change)


def demonstrate(task, messages, rng, noise):
    """Move the files that the goal has elsewhere and delete those that it has not; with noise, also any other file."""
    files, goal = dict(task["start"]), task["goal"]
    for message in messages:
        for call in message.get("tool_calls") or ():
            _execute(files, call["function"]["name"], call["function"]["arguments"])
    if rng.random() < noise and files:
        return _call("delete_file", path=rng.choice(sorted(files)))
    for path, text in sorted(files.items()):
        if path not in goal:
            new = next((other for other in sorted(goal) if goal[other] == text and other not in files), None)
            return _call("delete_file", path=path) if new is None else _call("move_file", source=path, target=new)
    return {"role": "assistant", "content": "Done."}


def _execute(files, name, given):
    if name == "delete_file":
        files.pop(given["path"], None)
    elif name == "move_file" and given["source"] in files and given["target"] not in files:
        files[given["target"]] = files.pop(given["source"])


def _call(name, **arguments):
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
