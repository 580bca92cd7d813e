from __future__ import annotations

import ast
import tomllib
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import pytest

from offline_agent import catalog, parameters
from offline_agent.envs.base import environment_class
from offline_agent.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "environments" / "pyproject.toml").read_text())["project"]
POINTS = [value for group in PROJECT["entry-points"].values() for value in group.values()]


@pytest.mark.parametrize("path", [path for table in catalog.TABLES.values() for path in table.values()] + POINTS)
def test_every_entry_names_something_that_is_defined(path: str) -> None:
    """Read, not imported: what an entry needs may not be installed."""
    module, _, name = (path if ":" in path else f"{path}:adapt").partition(":")
    root = ROOT / "environments" if module.startswith("offline_agent_environments") else ROOT
    file = root / (module.replace(".", "/") + ".py")
    file = file if file.exists() else root / module.replace(".", "/") / "__init__.py"
    names: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    assert name in names


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [entry for entry in __import__("sys").path if entry])
    return tmp_path


def test_a_module_in_the_current_directory_is_found(here: Path) -> None:
    (here / "my_env_a.py").write_text("class Mine:\n    class Inner: pass\n")
    assert catalog.resolve("env", "my_env_a:Mine").__name__ == "Mine"
    assert catalog.resolve("env", "my_env_a:Mine.Inner").__name__ == "Inner"


def test_a_file_is_found(here: Path) -> None:
    (here / "sub").mkdir()
    (here / "sub" / "my_env_b.py").write_text("class Mine: pass\n")
    first = catalog.resolve("policy", "sub/my_env_b.py:Mine")
    assert first.__name__ == "Mine" and catalog.resolve("policy", "sub/my_env_b.py:Mine") is first


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        ("env", "shopp", "env: got 'shopp', allowed: countdown, math, shop, .*Did you mean 'shop'"),
        ("policy", "orcale", "policy: got 'orcale'.*Did you mean 'oracle'"),
        ("env", "nowhere_at_all:X", "there is no module 'nowhere_at_all'"),
        ("env", "my_bad.inner:X", "there is no module 'my_bad.inner'"),
        ("env", "my_good:Mien", "has no 'Mien'. Did you mean 'Mine'"),
        ("env", "my_raising:X", "importing 'my_raising' raised ZeroDivisionError"),
        ("env", "my_needy:X", "needs the module 'nowhere_to_be_found', which is not installed"),
        ("env", "my_broken:X", "importing 'my_broken' raised SyntaxError"),
        ("env", "none.py:X", "there is no file 'none.py'"),
        ("env", "my_raising.py:X", "running 'my_raising.py' raised ZeroDivisionError"),
        ("env", ":X", "write module:Class"),
        ("env", "my_good:", "write module:Class"),
    ],
)
def test_what_cannot_be_found_is_told_apart(here: Path, kind: catalog.Kind, name: str, says: str) -> None:
    (here / "my_bad.py").write_text("")
    (here / "my_good.py").write_text("class Mine: pass\n")
    (here / "my_raising.py").write_text("1 / 0\n")
    (here / "my_needy.py").write_text("import nowhere_to_be_found\n")
    (here / "my_broken.py").write_text("class\n")
    with pytest.raises(ConfigError, match=says):
        catalog.resolve(kind, name)


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return a function that installs entry points of environments, and no others: names and values."""

    def install(**points: str) -> None:
        found = [metadata.EntryPoint(name.rstrip("_"), value, catalog.GROUPS["env"]) for name, value in points.items()]
        monkeypatch.setattr(metadata, "entry_points", lambda group: [one for one in found if one.group == group])
        catalog.installed.cache_clear()

    yield install
    monkeypatch.undo()
    catalog.installed.cache_clear()


@pytest.mark.parametrize(("kind", "name"), [("env", "sql"), ("judge", "sql"), ("env", "gym:CartPole-v1")])
def test_a_name_of_the_package_that_is_not_installed_says_what_to_install(packages: Any, kind: Any, name: str) -> None:
    packages()
    for use in (catalog.check, catalog.resolve, *([lambda _, env: environment_class(env)] if kind == "env" else [])):
        with pytest.raises(ConfigError, match=f"{kind}: got '{name}'.* pip install offline-agent-environments"):
            use(kind, name)


def test_a_package_adds_names_and_replaces_none_of_the_core(packages: Any) -> None:
    packages(shop="nowhere:Shop", mine="nowhere:Mine", ladder="nowhere.adapter")
    assert catalog.resolve("env", "shop").__module__ == "offline_agent.envs.shop.env"
    assert catalog.entry_point("env", "mine") and catalog.entry_point("env", "ladder:3")
    assert catalog.entry_point("env", "ladder") is catalog.entry_point("env", "mine:Class") is None
    with pytest.raises(ConfigError, match="there is no module 'nowhere'"):
        catalog.resolve("env", "mine")


def test_a_name_that_two_packages_have_is_refused(packages: Any) -> None:
    packages(mine="one:Mine", mine_="two:Mine")
    with pytest.raises(ConfigError, match="two packages have 'mine': one:Mine .*, two:Mine .* Uninstall one"):
        catalog.check("env", "mine")


class Target:
    def __init__(self, size: int, colour: str = "red", *, seed: int = 0) -> None: ...


class Open:
    def __init__(self, **rest: object) -> None: ...


def test_arguments_are_checked_all_at_once() -> None:
    assert parameters.argument_faults("env", Target, {"size": 1}) == []
    assert parameters.argument_faults("env", Open, {"anything": 1}) == []
    faults = parameters.argument_faults("env", Target, {"color": "blue", "sied": 1}, skip=("seed",))
    assert faults == [
        "env.color: Target takes no such argument; allowed: size, colour. Did you mean 'colour'?",
        "env.sied: Target takes no such argument; allowed: size, colour. Did you mean 'size'?",
        "env.size: Target needs this; set env.size=...",
    ]


class Typed:
    def __init__(
        self,
        count: int = 1,
        share: float = 0.5,
        loud: bool = False,
        word: str = "",
        way: Literal["up", "down"] = "up",
        some: Sequence[str] | str | None = None,
        limits: tuple[float, ...] = (),
        more: dict[str, int] | None = None,
        own: Unknown | None = None,  # type: ignore[name-defined]  # noqa: F821
        path: Path | None = None,
        odd: float = None,  # type: ignore[assignment]
        free=3,
    ) -> None: ...


@pytest.mark.parametrize(
    "given",
    [
        {"count": 3}, {"share": 1}, {"share": 0.1}, {"loud": True}, {"word": "x"}, {"way": "down"}, {"some": None},
        {"some": "x"}, {"some": ["x", "y"]}, {"some": ("x",)}, {"limits": [1, 2.5]}, {"more": {"a": 1}}, {"own": 7},
        {"path": "x"}, {"odd": None}, {"free": "anything"},
    ],
)  # fmt: skip
def test_arguments_of_the_right_type_pass(given: dict[str, Any]) -> None:
    assert parameters.argument_faults("policy", Typed, given) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"count": "x"}, "policy.count: got 'x', allowed: integer; leave it out for 1."),
        ({"count": 1.5}, "policy.count: got 1.5, allowed: integer; leave it out for 1."),
        ({"count": True}, "policy.count: got True, allowed: integer; leave it out for 1."),
        ({"share": "x"}, "policy.share: got 'x', allowed: number; leave it out for 0.5."),
        ({"share": None}, "policy.share: got None, allowed: number; leave it out for 0.5."),
        ({"share": False}, "policy.share: got False, allowed: number; leave it out for 0.5."),
        ({"loud": "yes"}, "policy.loud: got 'yes', allowed: true | false; leave it out for False."),
        ({"word": 3}, "policy.word: got 3, allowed: text (in quotes where it looks like something else); leave it out"),
        ({"way": "left"}, "policy.way: got 'left', allowed: up | down; leave it out for 'up'."),
        ({"some": [1]}, "policy.some: got [1], allowed: list of text"),
        ({"some": 3}, "or null; leave it out for None."),
        ({"limits": ["x"]}, "policy.limits: got ['x'], allowed: list of number; leave it out for ()."),
        ({"more": [1]}, "policy.more: got [1], allowed: keys and values or null; leave it out for None."),
    ],
)
def test_arguments_of_another_type_are_faults_that_say_what_is_allowed(given: dict[str, Any], said: str) -> None:
    (fault,) = parameters.argument_faults("policy", Typed, given)
    assert said in fault
    assert parameters.argument_faults("env", Target, {"size": "x"}) == ["env.size: got 'x', allowed: integer."]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["policy=noisy", "policy.noise=x"], "policy.noise: got 'x', allowed: number; leave it out for 0.3."),
        (["policy=random", "policy.answer_probability=[1]"], "policy.answer_probability: got [1], allowed: number"),
        (["policy=server", "policy.url=http://h", "policy.patience=x"], "policy.patience: got 'x', allowed: number"),
        (["policy=server", "policy.url=http://h", "policy.concurrency=0.5"], "policy.concurrency: got 0.5, allowed"),
    ],
)
def test_a_wrong_type_for_a_policys_keyword_is_told_before_anything_begins(keys: list[str], said: str) -> None:
    from offline_agent.config.build_prefs import BuildPrefsConfig
    from offline_agent.config.loading import load
    from offline_agent.runner.components import make_parts

    with pytest.raises(ConfigError) as refused:
        make_parts(load(BuildPrefsConfig, None, ["env=shop", *keys, "tasks.n=1"]))
    assert len(refused.value.faults) == 1 and said in refused.value.faults[0]


def test_keywords_take_what_is_given_and_offer_the_rest() -> None:
    found = parameters.keywords("policy", Target, {"size": 2}, {"temperature": 0.7, "colour": "blue"}, {"seed": 5})
    assert found == {"size": 2, "colour": "blue", "seed": 5}
    assert parameters.keywords("policy", Target, {"size": 2, "seed": 1}, {}, {"seed": 5})["seed"] == 1
    with pytest.raises(ConfigError, match="policy.model: Target takes no such argument"):
        parameters.keywords("policy", Target, {"model": "x", "size": 1}, {})
