"""tools/site.py: links of pages as they are in the site."""

from __future__ import annotations

from pathlib import Path

import pytest

from offline_agent import catalog
from tools.site import REFERENCE, in_site, reference_pages

ROOT = Path(catalog.__file__).parent


@pytest.mark.parametrize(
    ("markdown", "folder", "rewritten"),
    [
        ("[a](docs/data.md#token-columns)", "", "[a](data.md#token-columns)"),
        ("![a](docs/figures/flow.svg)", "", "![a](figures/flow.svg)"),
        ("[a](../README.md)", "docs", "[a](readme.md)"),
        ("[a](CHANGELOG.md), [b](https://semver.org)", "", "[a](changelog.md), [b](https://semver.org)"),
        ("[a](../../../docs/data.md#b)", "environments/offline_agent_environments/sql", "[a](data.md#b)"),
        ("[a](../environments/offline_agent_environments/sql/README.md)", "docs", "[a](family_sql.md)"),
        ("[reach](../examples/reach.py) and [a](pairs.md)", "docs", "reach and [a](pairs.md)"),
        ("`'data.runs=[runs/x]'` and [the file](../examples/reach.py)", "docs", "`'data.runs=[runs/x]'` and the file"),
    ],
)
def test_links_lead_to_pages_of_the_site(markdown: str, folder: str, rewritten: str) -> None:
    assert in_site(markdown, folder) == rewritten


def test_every_module_of_the_reference_is_there() -> None:
    named = [module for modules in REFERENCE.values() for module in modules]
    assert [name for name in named if not (ROOT / f"{name.replace('.', '/')}.py").is_file()] == []
    assert len(reference_pages()) == len(REFERENCE)
