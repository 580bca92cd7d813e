"""Pages, and mentions of pages in code: links, paths, keys and commands that they name are there."""

from __future__ import annotations

import functools
import re
import shlex
from pathlib import Path

import pytest

from offline_agent.config.documentation import COMMANDS
from offline_agent.config.loading import keys, load
from tools.site import FAMILIES, navigation

ROOT = Path(__file__).parents[2]
TOP = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
PAGES = [*TOP, *sorted((ROOT / "docs").rglob("*.md")), *FAMILIES, *sorted(ROOT.glob("examples/*/README.md"))]
NOW = [page for page in PAGES if page.name != "CHANGELOG.md" and "examples" not in page.parts]
CODE = [*ROOT.glob("[bceot]*/**/*.py"), *ROOT.glob("[ce]*/**/*.yaml"), ROOT / "Makefile"]
FREE = ("env", "judge", "policy", "reward")  # sections whose keys are arguments of what is named
RETIRED = {"data.misranked", "search.rollout_proposals"}  # named by pages that say so


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_every_table_has_a_head(page: Path) -> None:
    """Alone catches a blank line in a table: what follows it is shown as text."""
    tables = re.findall(r"(?:^\|.*\n)+", text(page), re.MULTILINE)
    assert [table for table in tables if not re.match(r".*\n\|[ :|-]+\|\n", table)] == []


def test_pages_that_code_names_are_there() -> None:
    broken, named = [], 0
    for file in CODE:
        told = re.sub(r"\s+#?\s*", " ", file.read_text(encoding="utf-8"))
        for name, anchor, title in re.findall(
            r"(?<![\w/-])(docs/[a-z_/]+\.md)(?:#([\w-]+)|, \"([A-Z][^\"]+)\")?", told
        ):
            named += 1
            slug = anchor or title.lower().replace(" ", "-")
            if not (ROOT / name).is_file() or (slug and slug not in anchors(ROOT / name)):
                broken.append((file.name, name, slug))
    assert broken == [] and named > 50


@pytest.mark.parametrize("page", NOW, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_paths_and_keys_of_a_page_are_there(page: Path) -> None:
    blocks = re.findall(r"^```bash\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    told = " ".join([*blocks, *re.findall(r"`([^`\n]+)`", text(page))])
    paths = re.findall(r"(?<![\w/.])(?:benchmarks|configs|examples|offline_agent|tests|tools)/[\w./-]+\.\w+", told)
    assert [path for path in paths if not ((ROOT / path).is_file() or (page.parent / path).is_file())] == []
    known = {entry.path for config in COMMANDS.values() for entry in keys(config)} | RETIRED
    sections = {path.partition(".")[0] for path in known} - set(FREE)
    used = re.findall(r"(?<![\w./-])((?:[a-z_]+\.)+[a-z_]+)=", told)
    assert {key for key in used if key not in known and key.partition(".")[0] in sections} == set()


@pytest.mark.parametrize("page", NOW, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_commands_of_a_page_load(page: Path) -> None:
    whole = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for block in re.findall(r"^```bash\n(.*?)^```", whole, re.MULTILINE | re.DOTALL):
        for name, line in re.findall(r"(?:-m offline_agent\.pipelines\.|offline-agent )(\w+)(.*)", block):
            assert (ROOT / f"offline_agent/pipelines/{name}.py").is_file(), name
            given = shlex.split(re.sub(r"--config \S+|--\w+|\$\w+", "", line), comments=True)
            if name in COMMANDS:
                load(COMMANDS[name], None, [word for word in given if "=" in word])
