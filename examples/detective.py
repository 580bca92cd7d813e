"""Questions that need passages and a database: tools of two environments and an answer in one class.

python -m offline_agent.pipelines.build_prefs env=examples/detective.py:Detective policy=noisy policy.noise=0.4
"""

import random
from pathlib import Path

from offline_agent_environments.composition import Composition, Part
from offline_agent_environments.search_qa import SearchQA, world
from offline_agent_environments.sql import SQL
from offline_agent_environments.sql.sources import find

FIRMS = Path(__file__).with_suffix(".sql")
STAFF = "SELECT staff FROM firms WHERE name = '{}'"


class Detective(Composition):
    system_prompt = (
        "Find the firm in the passages with search(query) and read(title), its figures in the table firms with"
        " list_tables(), describe(table) and query(sql), and hand in the number with answer(text)."
    )
    parts = {
        "passages": Part(SearchQA, "search", "read"),
        "records": Part(SQL, "list_tables", "describe", "query"),
    }

    @classmethod
    def tasks(cls, split):
        for question in world.questions():
            if question.text.startswith("For which firm") and world.split_of(question.answer) == split:
                author = question.text.removeprefix("For which firm did ").removesuffix(" work?")
                staff = find(str(FIRMS)).rows(STAFF.format(question.answer))[0][0]
                yield {
                    "question": f"How many people work at the firm for which {author} worked?",
                    "gold": [str(staff)],
                    "firm": question.answer,
                    "support": list(question.support),
                }

    def _arguments(self, part):
        if part == "passages":
            return {"question": self.task["question"], "gold": self.task["gold"]}
        return {"database": str(FIRMS), "question": self.task["question"], "gold": STAFF.format(self.task["firm"])}

    @classmethod
    def demonstrate(cls, task, messages, rng: random.Random, noise):
        made = [call["function"]["name"] for m in messages for call in m.get("tool_calls") or ()]
        if noise and rng.random() < noise:
            return _call("answer", text=str(rng.randrange(9000))) if made else _call("list_tables")
        plan = [("read", {"title": title}) for title in task["support"]]
        plan += [("query", {"sql": STAFF.format(task["firm"])}), ("answer", {"text": task["gold"][0]})]
        done = sum(name in ("read", "query") for name in made)
        return _call(plan[done][0], **plan[done][1])


def _call(name, **arguments):
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}
