"""A policy that attacks, drawn at random: programs and files of `attacks` in the tools of `code`, `math` and `repo`,
and statements of `sql_attacks` in those of `sql`.
"""

from __future__ import annotations

import random

from offline_agent.policies.scripted import ScriptedPolicy
from offline_agent.records import Action, Context, ToolCall
from offline_agent.rendering.renderer import Renderer
from offline_agent_environments.sql.tests import attacks as sql_attacks
from tests.helpers import attacks
from tests.helpers.near_misses import near_misses


class HostilePolicy(ScriptedPolicy):
    """Calls tools with hostile programs, answers and files; it solves nothing, so each of its scores must be 0.

    Args:
        folder: A folder that statements of SQL reach for.
        renderer: See `ScriptedPolicy`.
    """

    name = "hostile"
    trusted = False

    def __init__(self, folder: str = "/tmp", renderer: Renderer | None = None) -> None:
        super().__init__(renderer)
        self._folder = folder

    def _act(self, context: Context, rng: random.Random) -> Action:
        tools = {schema["function"]["name"] for schema in context.tools}
        args = context.task.args
        if "write" in tools:
            return self._write("", self._code(context, str(args["names"][0]), rng))
        if "python" in tools:
            return self._write("", self._math(context, rng))
        if "query" in tools:
            tool = "answer" if rng.random() < 0.3 else "query"
            return self._write("", ToolCall(tool, {"sql": sql_attacks.statement(rng, self._folder)}))
        return self._write("", self._repo(context, args["source"], rng))

    def _code(self, context: Context, name: str, rng: random.Random) -> ToolCall:
        if context.depth == 0 or rng.random() < 0.3:
            return ToolCall("write", {"code": attacks.program(name, rng)})
        return ToolCall(rng.choice(("run_tests", "submit")), {})

    def _math(self, context: Context, rng: random.Random) -> ToolCall:
        if rng.random() < 0.7 and context.depth < 4:
            return ToolCall("python", {"code": attacks.program("f", rng)})
        answers = ("", "gold", "1=1", "True", "x", "9**9**9**9", "\\boxed{}", "__import__('os').getpid()", "\u0000",
                   "$$", " ".join(map(str, range(60))), "[0, 10000]", "oo", "nan", "\\frac{0}{0}", "((9!)!)!",
                   "(" * 140 + "1" + ")" * 140, *near_misses(str(context.task.args["gold"])))  # fmt: skip
        return ToolCall("answer", {"value": rng.choice(answers)})

    def _repo(self, context: Context, source: dict[str, str], rng: random.Random) -> ToolCall:
        if "package" not in source:
            return self._rows(context, rng)
        package = source["package"]
        if context.depth < 2 or rng.random() < 0.5:
            path = rng.choice((
                f"{package}/__init__.py", f"{package}/conftest.py", "conftest.py", "sitecustomize.py", "unittest.py",
                "hidden/test_hidden_x.py", "tests/test_x.py", "json.py", "../escape.py", "/tmp/escape.py", "pytest.ini",
            ))  # fmt: skip
            old = f'"""{_DOCS[package]}"""' if path == f"{package}/__init__.py" else ""
            return ToolCall("edit", {"path": path, "old": old, "new": attacks.program("f", rng)})
        return ToolCall(rng.choice(("run_tests", "submit")), {})

    def _rows(self, context: Context, rng: random.Random) -> ToolCall:
        if context.depth > 2:
            return ToolCall(rng.choice(("run_tests", "submit", "submit")), {})
        path, text = rng.choice([item for files in attacks.ON_THE_RUNNER.values() for item in files.items()])
        if path:
            return ToolCall("edit", {"path": path, "old": "", "new": text})
        text = rng.choice((text, attacks.program("double", rng)))
        return ToolCall("edit", {"path": "pkg/core.py", "old": "def double(x)", "new": f"{text}\ndef double(x)"})


_DOCS = {
    "gridpath": "Grids of characters.", "ledger": "Accounts in whole cents.",
    "schedule": "Times of the day as minutes since midnight.", "textkit": "Functions of plain text.",
}  # fmt: skip
