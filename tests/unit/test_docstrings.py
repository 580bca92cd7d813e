"""Docstrings and pages name modules, functions and keys that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from offline_agent.config.evaluate import EvaluateConfig
from offline_agent.config.iterate import IterateConfig
from offline_agent.config.loading import keys
from offline_agent.config.refine_grpo import RefineGrpoConfig
from offline_agent.config.training import TrainDpoConfig, TrainSftConfig

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (ROOT / "offline_agent", ROOT / "environments" / "offline_agent_environments")
CONFIGS = (EvaluateConfig, IterateConfig, RefineGrpoConfig, TrainDpoConfig, TrainSftConfig)
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
NO_NAMES = {"offline_agent.environments", "offline_agent.pipelines.NAME"}  # a group of entry points, a place for names
FILES = ("html", "json", "jsonl", "md", "parquet", "txt", "yaml")


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@cache
def _names(tree: ast.AST) -> set[str]:
    """Return the names that a module, class or function defines or sets."""
    return {
        str(getattr(node, name)) for node in ast.walk(tree) for name in ("attr", "id", "name") if hasattr(node, name)
    }


def _exists(name: str, package: Path) -> bool:
    """Return whether a dotted name is a module of a package, or a name in one."""
    parts, place = name.split("."), package
    while parts and (place / parts[0]).is_dir():
        place /= parts.pop(0)
    if not parts:
        return True
    file = place / f"{parts[0]}.py"
    rest = parts[1:] if file.is_file() else parts
    file = file if file.is_file() else place / "__init__.py"
    return set(rest) <= _names(_tree(file)) if file.is_file() else False


def _told() -> Iterator[tuple[str, str]]:
    """Yield the dotted names in the docstrings that begin with a part of the package: file and name."""
    for file in sorted(file for package in PACKAGES for file in package.rglob("*.py")):
        for node in ast.walk(_tree(file)):
            if isinstance(node, DOCUMENTED):
                for name in re.findall(r"(?<!`)`([a-z_]+(?:\.\w+)+)(?:\(\))?`", ast.get_docstring(node) or ""):
                    first, last = name.split(".")[0], name.rpartition(".")[2]
                    ours = any((each / first).is_dir() or (each / f"{first}.py").is_file() for each in PACKAGES)
                    if last not in FILES and (ours or first in (each.name for each in PACKAGES)):
                        yield str(file.relative_to(ROOT)), re.sub(r"^offline_agent(_environments)?\.", "", name)
    for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("environments/*/*/README.md")]):
        for name in set(re.findall(r"\boffline_agent(?:_environments)?(?:\.\w+)+", page.read_text())) - NO_NAMES:
            if page.name != "CHANGELOG.md":
                yield str(page.relative_to(ROOT)), re.sub(r"^offline_agent(_environments)?\.", "", name)


def test_dotted_names_in_docstrings_and_pages_exist() -> None:
    paths = [entry.path for config in CONFIGS for entry in keys(config)]
    sections = {path[:end] for path in paths for end in [m.start() for m in re.finditer(r"\.", path)]}
    known = {*paths, *sections}
    told = list(_told())
    assert len(told) > 100
    unknown = [entry for entry in told if entry[1] not in known]
    assert [entry for entry in unknown if not any(_exists(entry[1], each) for each in PACKAGES)] == []


def test_classes_that_docstrings_name_are_in_their_modules() -> None:
    """Alone catches a class that moved to another module: a name that does not begin with a part of the package."""
    names: dict[str, set[str]] = {}
    docs = []
    for file in sorted(file for package in PACKAGES for file in package.rglob("*.py")):
        tree = _tree(file)
        names.setdefault(file.parent.name if file.stem == "__init__" else file.stem, set()).update(_names(tree))
        docs += [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, DOCUMENTED)]
    told = {found for text in docs for found in re.findall(r"`(?:[a-z_]+\.)*([a-z_]+)\.([A-Z][a-z]\w+)`", text)}
    assert len(told) > 20
    assert [one for one in sorted(told) if one[1] not in names.get(one[0], ()) and one[0] != "tokenizers"] == []
