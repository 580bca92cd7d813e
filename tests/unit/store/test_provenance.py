from __future__ import annotations

from pathlib import Path

import pytest

from offline_agent.store.provenance import changed_sources, sources

FILES = {"my_env.py": "", "pkg/__init__.py": "", "pkg/inner.py": "", "pkg/deep/lazy.py": "", "other.py": ""}
PACKAGE = {"pkg/__init__.py", "pkg/inner.py", "pkg/deep/lazy.py"}


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("my_env:Env", {"my_env.py"}), ("./my_env.py:Env", {"my_env.py"}),
        ("mcp:python my_env.py --fast", {"my_env.py"}), ("pkg.inner:f", PACKAGE), ("other:Env.inner", {"other.py"}),
        ("shop", set()),
        ("json:loads", set()), ("numpy:array", set()), ("offline_agent.envs.shop:Shop", set()),
        ("http://localhost:8000/v1", set()), ("gym:CartPole-v1", set()), ("nowhere:Env", set()),
    ],
)  # fmt: skip
def test_the_source_of_own_code_is_its_module_or_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, files: set[str]
) -> None:
    for file, text in FILES.items():
        (tmp_path / file).parent.mkdir(exist_ok=True, parents=True)
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
