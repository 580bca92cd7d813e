"""Links of README, CONTRIBUTING, CHANGELOG and docs/*.md: they lead to files and headings that are there."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from tools.site import FAMILIES, navigation

ROOT = Path(__file__).parents[2]
TOP = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
PAGES = [*TOP, *sorted((ROOT / "docs").glob("*.md")), *FAMILIES]


def text(page: Path) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@functools.cache
def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    out: set[str] = set()
    seen: dict[str, int] = {}
    for heading in re.findall(r"^#+ (.*)$", text(page), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        out.add(f"{slug}-{seen[slug]}" if slug in seen else slug)
        seen[slug] = seen.get(slug, 0) + 1
    return out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_every_link_inside_the_repository_leads_somewhere(page: Path) -> None:
    broken = []
    body = re.sub(r"`[^`\n]+`", "", text(page))
    for link in re.findall(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)", body) + re.findall(r"\bsrc=\"([^\"]+)\"", body):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_every_page_has_its_line_in_the_contents() -> None:
    """Alone catches a page that is in no navigation."""
    listed = [name for section in navigation((ROOT / "docs" / "index.md").read_text()) for name in section.popitem()[1]]
    assert len(listed) == len(set(listed))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"} <= set(listed)
    assert {f"family_{page.parent.name}.md" for page in FAMILIES} <= set(listed)
