"""The text of `--help`, and that docs/configuration.md is what the keys say."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.config.documentation import COMMANDS, key_help, page, topic_help
from offline_agent.config.iterate import IterateConfig
from offline_agent.config.loading import keys, load
from offline_agent.errors import ConfigError

PAGE = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run make docs"


def test_help_names_every_key_by_itself_or_by_its_section() -> None:
    text = key_help("build_prefs", BuildPrefsConfig)
    assert max(map(len, text.partition("\nkey ")[2].splitlines())) <= 120
    sections: dict[str, int] = {}
    for entry in keys(BuildPrefsConfig):
        top, dot, _ = entry.path.partition(".")
        assert f"\n{top} " in text and entry.about, entry
        assert f"\n{entry.path} " in topic_help(BuildPrefsConfig, top)
        sections[top] = sections.get(top, 0) + bool(dot or top in sections)
    assert f"section, {sections['search']} keys" in next(row for row in text.splitlines() if row.startswith("search "))
    assert {"run_dir", "seed", "env", "tasks", "policy", "search", "pairs", "tracking", "launcher"} <= sections.keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_examples_that_load(name: str) -> None:
    config = COMMANDS[name]
    assert config.about and len(config.examples) >= 3
    text = key_help(name, config)
    for arguments, about in config.examples:
        load(config, None, shlex.split(arguments))
        assert about in text


def test_help_of_a_section_and_of_a_key() -> None:
    text = topic_help(IterateConfig, "search")
    assert "search.simulations " in text and "search.budget.tokens " in text and "pairs." not in text
    assert len(topic_help(IterateConfig, "gate.margin").splitlines()) == 2
    with pytest.raises(ConfigError, match="there is no section or key 'serch'.* Did you mean 'search'"):
        topic_help(IterateConfig, "serch")
