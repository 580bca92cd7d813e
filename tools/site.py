"""The documentation site: navigation, pages that are not files of docs/, and a check that it loads nothing remote.

mkdocs reads this file as a hook (`mkdocs.yml`). The tables of `docs/index.md` are the navigation: a page that has a
line there is in the site. README, CONTRIBUTING, CHANGELOG and those of the environments' package are pages as well, and
the API reference is made from docstrings (mkdocstrings), one page for each entry of `REFERENCE`.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FAMILIES = sorted(ROOT.glob("environments/offline_agent_environments/*/README.md"))
OUTSIDE = {
    "README.md": "readme.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md",
    **{page.relative_to(ROOT).as_posix(): f"family_{page.parent.name}.md" for page in FAMILIES},
}  # fmt: skip
"""Pages that are not in docs/, by their paths: their names in the site."""
REFERENCE = {
    "Records and errors": ("records", "errors", "seeding"),
    "Environments": ("envs.base", "envs.tools.schema", "envs.play", "envs.conformance"),
    "Policies": ("policies.base", "policies.engines"),
    "Judges": (
        "judges.judge", "judges.verifiers", "judges.symbolic", "judges.code",
        "judges.composition", "judges.rewards",
    ),
    "Search": ("search.settings", "search.tree_search", "search.tree", "search.selection", "search.backup"),
    "Roll-outs": ("rollouts.episodes", "rollouts.attempts", "rollouts.demonstrations"),
    "Preferences": (
        "preferences.mining", "preferences.pairs.step", "preferences.pairs.trajectory", "preferences.pairs.hindsight",
        "preferences.pairs.minimal", "preferences.dataset.balance", "preferences.dataset.filters",
    ),
    "Rendering and masks": ("rendering.renderer", "rendering.certificate", "rendering.parsing"),
    "Training": (
        "training.data.rows", "training.offline.sft", "training.offline.dpo", "training.offline.losses",
        "training.online.objectives", "training.online.advantages", "training.prefix_sharing.log_probabilities",
        "training.collapse",
    ),
    "Evaluation": ("evaluation.statistics", "evaluation.gate", "evaluation.test_time"),
    "Files of a run": ("store.tables", "store.run_directory", "store.manifest"),
}  # fmt: skip
"""Modules of each page of the API reference, without `offline_agent.`."""

_LINK = re.compile(r"\[([^\[\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
_LOADED = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^"'>\s]+""")


def navigation(index: str) -> list[dict[str, list[str]]]:
    """Return the pages of `docs/index.md`, by its headings.

    Args:
        index: Its text: headings of the second level, and under each a table whose rows begin with a link.
    """
    sections: list[dict[str, list[str]]] = []
    for part in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        links = re.findall(r"^\| \[[^\]]+\]\(([^)#]+)\)", body, re.MULTILINE)
        sections.append({title.strip(): [OUTSIDE.get(link.removeprefix("../"), link) for link in links]})
    return sections


def reference_pages() -> dict[str, str]:
    """Return the Markdown of the pages of the API reference, by their paths."""
    pages = {}
    for title, modules in REFERENCE.items():
        body = "\n\n".join(f"::: offline_agent.{module}" for module in modules)
        pages[f"reference/{title.lower().replace(' ', '_')}.md"] = f"# {title}\n\n{body}\n"
    return pages


def in_site(markdown: str, folder: str) -> str:
    """Return a page with its links as they are in the site.

    Links to files that are no pages (examples, configurations) become plain text.

    Args:
        markdown: The page.
        folder: The folder that it stands in, from the root of the repository.
    """

    def rewritten(found: re.Match[str]) -> str:
        words, link, anchor = found[1], found[2], found[3] or ""
        if re.match(r"\w+:", link):
            return found[0]
        path = posixpath.normpath(posixpath.join(folder, link))
        if path.startswith("docs/"):
            return f"[{words}]({path.removeprefix('docs/')}{anchor})"
        return f"[{words}]({OUTSIDE[path]}{anchor})" if path in OUTSIDE else words

    return _LINK.sub(rewritten, markdown)


def on_config(config: Any) -> Any:
    """Set the navigation; called by mkdocs."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    config.nav = [{"Contents": "index.md"}, *navigation(index), {"API reference": list(reference_pages())}]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not in docs/; called by mkdocs."""
    from mkdocs.structure.files import File

    beside = {name: in_site((ROOT / page).read_text("utf-8"), str(Path(page).parent)) for page, name in OUTSIDE.items()}
    for path, content in {**beside, **reference_pages()}.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite the links of a page of docs/; called by mkdocs."""
    if page.file.generated_by or "/" in page.file.src_uri:  # pages of docs/results/ link to pages of docs/ alone
        return markdown
    return in_site(markdown, "docs")


def on_post_build(config: Any) -> None:
    """Check that no page loads anything from elsewhere; called by mkdocs.

    Raises:
        mkdocs.exceptions.PluginError: A page does.
    """
    from mkdocs.exceptions import PluginError

    for path in sorted(Path(config.site_dir).rglob("*.html")):
        if found := _LOADED.search(path.read_text(encoding="utf-8")):
            raise PluginError(f"{path}: loads {found[0]}; the site must be whole without a network")
