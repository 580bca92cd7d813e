"""docs/online.md names the watch's rules and the records' figures as they are."""

from __future__ import annotations

import re
from pathlib import Path

from offline_agent.training.collapse import FIGURES, RULE_NAMES, RULES, STOP
from offline_agent.training.online.trainer import _SUMMED

TEXT = (Path(__file__).parents[4] / "docs" / "online.md").read_text()


def table(title: str) -> list[list[str]]:
    """Return the cells of a section's table."""
    section = TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_rule_of_the_watch_is_there_with_its_limits() -> None:
    rows = table("The watch")
    assert [row[0].strip("`") for row in rows] == list(RULE_NAMES)
    assert {row[0].strip("`") for row in rows if row[3] == "yes"} == set(STOP)
    for row, rule in zip(rows, RULES, strict=True):
        assert tuple(map(float, re.findall(r"[\d.]+", row[2]))) == rule.limits, rule.name


def test_every_figure_that_is_followed_is_there() -> None:
    named = {name for row in table("What is written") for name in re.findall(r"`(\w+)`", row[0])}
    assert {*FIGURES, *_SUMMED, "tools", "env_steps"} <= named
