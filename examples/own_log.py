"""From a log of trajectories to a DPO checkpoint, without a search: the log below is written by a loop of one's own.

python examples/own_log.py logs/attempts.jsonl
python -m offline_agent.pipelines.import_logs source=logs run_dir=runs/logs
python -m offline_agent.pipelines.train_sft 'data.runs=[runs/logs]' run_dir=runs/logs-sft
python -m offline_agent.pipelines.train_dpo 'data.runs=[runs/logs]' 'data.kinds=[step,trajectory]' model.path=runs/logs-sft/model run_dir=runs/logs-dpo

The first command stands for an agent that exists already: it plays six attempts at each of 20 tasks and writes OpenAI
messages, one attempt a line, with the task and the outcome. The others need nothing but the file. docs/logs.md has the
formats that are read.
"""  # noqa: E501

import itertools
import json
import random
import sys
from pathlib import Path

from transformers.utils import get_json_schema

from offline_agent.envs.shop import Shop

TOOLS = ("search", "open", "next", "previous", "back", "choose", "buy")


def attempt(task, rng):
    """Play a careless attempt; return the messages and whether it succeeded."""
    shop = Shop()
    messages = [{"role": "system", "content": Shop.system_prompt}, {"role": "user", "content": shop.reset(**task)}]
    for number in range(Shop.max_steps):
        said = Shop.demonstrate(task, messages, rng, 0.4)
        calls = [{**call, "id": f"call-{number}"} for call in said.get("tool_calls", ())]
        messages.append({**said, **({"tool_calls": calls} if calls else {})})
        if not calls:
            break
        function = calls[0]["function"]
        try:
            answer = getattr(shop, function["name"])(**function["arguments"])
        except (LookupError, ValueError) as error:
            answer = str(error)
        messages.append({"role": "tool", "tool_call_id": calls[0]["id"], "content": answer})
        if shop.terminated:
            break
    return messages, bool(shop.get_reward().success)


def write(path, tasks=20, attempts=6):
    rng = random.Random(0)
    tools = [get_json_schema(getattr(Shop, name)) for name in TOOLS]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for number, task in enumerate(itertools.islice(Shop.tasks("train"), tasks)):
            for _ in range(attempts):
                messages, success = attempt(task, rng)
                row = {"task_id": f"task-{number}", "messages": messages, "tools": tools, "success": success}
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
