"""Reference solutions of AgentBench's database tasks, carried out by `env=agentbench:db` and judged by its rules.

python benchmarks/agentbench.py CHECKOUT

`query gives the answer`: the first column of what a reference query gives is the recorded answer, by AgentBench's rule.
"""

from __future__ import annotations

import sys
from collections import Counter

from _common import write_result

from offline_agent.envs.base import EnvSpec
from offline_agent.errors import ToolError
from offline_agent_environments.adapters.agentbench import in_sqlite, same_answers, table_hash

KINDS = {True: "changes a table", False: "asks"}


def main(checkout: str) -> None:
    """Carry out all reference solutions; print and write their number by outcome."""
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
