"""docs/environments.md: its example passes the conformance suite and is searched; its table names every check."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.conformance import check_environment
from offline_agent.records import Action, Context, ToolCall
from offline_agent.search.settings import SearchSettings
from tests.helpers.search import Guess, search, tasks

PAGE = (Path(__file__).parents[3] / "docs" / "environments.md").read_text(encoding="utf-8")


def test_the_example_of_the_page_is_an_environment(tmp_path: Path) -> None:
    (tmp_path / "my_env.py").write_text(_file("my_env.py"), encoding="utf-8")
    spec = EnvSpec.load(f"{tmp_path}/my_env.py:Ladder")
    report = check_environment(spec)
    assert report.passed, str(report)
    assert all(check.check_id in PAGE for check in report.findings)
    run = search(spec, _Climber(), SearchSettings(simulations=16), tasks(spec, 2))
    for one in run.searches.values():
        assert one.tree is not None and any(n.verdict and n.verdict.success for n in one.tree.nodes)


class _Climber(Guess):
    """Climbs two or three rungs."""

    def act(self, context: Context, seed: int, temperature: float | None) -> Action:
        rungs = random.Random(seed).choice((2, 3))
        return Action(f"climb {rungs}", call=ToolCall("climb", {"rungs": rungs}))


def test_the_gym_example_is_an_environment(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    (tmp_path / "frozen.py").write_text(_file("frozen.py"), encoding="utf-8")
    report = check_environment(EnvSpec.load(f"{tmp_path}/frozen.py:Frozen"))
    assert report.passed, str(report)


def _file(name: str) -> str:
    """Return the page's source of a file, whose first line is its name."""
    blocks: list[str] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (source,) = (block for block in blocks if block.startswith(f"# {name}"))
    return source
