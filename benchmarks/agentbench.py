"""Reference solutions of AgentBench's database and OS tasks, carried out by `env=agentbench:db` and `:os` and judged.

python benchmarks/agentbench.py CHECKOUT

`query gives the answer`: the first column of what a reference query gives is the recorded answer, by AgentBench's rule.
`expert's success`: of the tasks played, those that `policy=oracle` solves with the tools.
"""

from __future__ import annotations

import sys
from collections import Counter
from random import Random

from _common import write_result

from offline_agent.envs.base import EnvSpec
from offline_agent.errors import ToolError
from offline_agent_environments.adapters import agentbench_os
from offline_agent_environments.adapters.agentbench import in_sqlite, same_answers, table_hash

KINDS = {True: "changes a table", False: "asks"}

REASONS = {"a process goes on": agentbench_os.GOES_ON, "files cannot be made": "its files",
           "reference solution refused": "its check"}  # fmt: skip


def main(checkout: str) -> None:
    """Carry out all reference solutions; print and write their number by outcome."""
    databases(checkout)
    systems(checkout)


def systems(checkout: str) -> None:
    """Write how many OS tasks are played, and why others are not."""
    spec = EnvSpec.load("agentbench:os", {"checkout": checkout})
    found: dict[str, Counter[str]] = {}
    for task_id, known in spec.cls._found.items():
        counts, why = found.setdefault(task_id.partition("-")[0], Counter()), agentbench_os.fault(known)
        counts["tasks"] += 1
        if why is not None:
            counts[next(name for name, begins in REASONS.items() if why.startswith(begins))] += 1
            continue
        counts["played"] += 1
        environment, task = spec.cls(checkout), {"task_id": task_id}
        messages = [{"role": "user", "content": environment.reset(task_id)}]
        environment.finish_action("")
        counts["solved by nothing"] += bool(environment.get_reward().success)
        environment.reset(task_id)
        while not environment.terminated:
            messages.append(spec.cls.demonstrate(task, messages, Random(0), 0.0))
            made = messages[-1]["tool_calls"][0]["function"]
            messages.append({"role": "tool", "content": getattr(environment, made["name"])(**made["arguments"])})
        counts["expert's success"] += bool(environment.get_reward().success)
    columns = ("tasks", "played", *REASONS, "expert's success", "solved by nothing")
    rows = [{"set": name, **{column: counts[column] for column in columns}} for name, counts in sorted(found.items())]
    write_result("agentbench_os", rows, {})


def databases(checkout: str) -> None:
    """Write the outcomes of the statements of the database tasks."""
    spec = EnvSpec.load("agentbench:db", {"checkout": checkout})
    found: dict[tuple[str, str], Counter[str]] = {}
    failed = []
    for split in ("train", "validation", "test"):
        for task in spec.tasks(split):
            environment = spec.cls(checkout)
            environment.reset(**task.args)
            row = environment._task
            counts = found.setdefault((task.task_id.partition("-")[0], KINDS[row["writes"]]), Counter())
            counts["tasks"] += 1
            counts["solved by nothing"] += row["writes"] and table_hash(row["rows"]) == row["goal"]
            try:
                environment.execute_sql(row["statement"])
            except ToolError:
                counts["statement fails"] += 1
            else:
                counts["statement runs"] += 1
                if not row["writes"]:
                    given = environment._database.execute(in_sqlite(row["statement"])).fetchall()
                    counts["query gives the answer"] += same_answers([str(one[0]) for one in given], row["goal"])
            environment.commit_final_answer(["done"] if row["writes"] else row["goal"])
            counts["solution is right"] += bool(environment.get_reward().success)
            failed += [] if environment.get_reward().success else [task.task_id]
    columns = ("tasks", "statement runs", "statement fails", "query gives the answer", "solution is right",
               "solved by nothing")  # fmt: skip
    rows = [{"file": file, "task": kind, **{name: counts[name] for name in columns}} for (file, kind), counts in
            found.items()]  # fmt: skip
    write_result("agentbench", rows, {"not right": ", ".join(failed)})


if __name__ == "__main__":
    main(sys.argv[1])
