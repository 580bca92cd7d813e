from __future__ import annotations

from pathlib import Path

import pytest

from offline_agent.store.provenance import changed_sources, sources

FILES = {
    "my_env.py": "import json, rules\nfrom pkg import inner\nimport numpy\nfrom offline_agent.records import Task\n",
    "rules.py": "",
    "pkg/__init__.py": "",
    "pkg/inner.py": "def f():\n    from . import lazy\n",
    "pkg/lazy.py": "from ..rules import nothing\n",
    "other.py": "",
}
ALL = {"my_env.py", "rules.py", "pkg/__init__.py", "pkg/inner.py", "pkg/lazy.py"}


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("my_env:Env", ALL), ("./my_env.py:Env", ALL), ("mcp:python my_env.py --fast", ALL),
        ("pkg.inner:f", ALL - {"my_env.py"}), ("other:Env.inner", {"other.py"}), ("shop", set()),
        ("json:loads", set()), ("numpy:array", set()), ("offline_agent.envs.shop:Shop", set()),
        ("http://localhost:8000/v1", set()), ("gym:CartPole-v1", set()), ("nowhere:Env", set()),
    ],
)  # fmt: skip
def test_the_source_of_own_code_is_what_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, files: set[str]
) -> None:
    for file, text in FILES.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    monkeypatch.chdir(tmp_path)
    config = {"judge": {"judges": ["f1", name]}}
    found = sources(config)
    assert {file for one in found.values() for file in one} == files
    for file in sorted(files):
        (tmp_path / file).write_text(FILES[file] + "# changed")
        assert list(changed_sources(found, sources(config))) == [f"the source of {name} changed ({file})"]
        (tmp_path / file).write_text(FILES[file])
    assert not list(changed_sources(found, sources(config)))
