"""docs/environments.md: its example passes the conformance suite and is searched; its table names every check."""

from __future__ import annotations

import re
from pathlib import Path

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.conformance import check_environment
from offline_agent.search.settings import SearchSettings
from tests.helpers.search import search, tasks

PAGE = (Path(__file__).parents[3] / "docs" / "environments.md").read_text(encoding="utf-8")


def test_the_example_of_the_page_is_an_environment(tmp_path: Path) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "my_env.py").write_text(source, encoding="utf-8")
    spec = EnvSpec.load(f"{tmp_path}/my_env.py:Ladder")
    report = check_environment(spec)
    assert report.passed, str(report)
    assert all(check.name in PAGE for check in report.checks)
    run = search(spec, _climber(), SearchSettings(simulations=16), tasks(spec, 2))
    assert any(node.verdict and node.verdict.success for one in run.searches.values() for node in one.tree.nodes)  # type: ignore[union-attr]


def _climber() -> object:
    """Return a policy that climbs, and answers once it may have arrived."""
    import random

    from offline_agent.records import Action, ToolCall
    from tests.helpers.search import Guess

    class Climber(Guess):
        def act(self, context: object, seed: int, temperature: float | None) -> Action:
            said = re.findall(r"rung (\d+)", " ".join(str(m["content"]) for m in context.messages()))  # type: ignore[attr-defined]
            if len(said) > 1 and said[-1] == said[0]:
                return Action("I am there.")
            rungs = random.Random(seed).choice((2, 3))
            return Action(f"climb {rungs}", call=ToolCall("climb", {"rungs": rungs}))

    return Climber()
