"""examples/environment_package, an environment written outside the repository, works once it is installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.interpreters import interpreter

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
SMALL = ("tasks.n=2", "search.simulations=4", "search.max_steps=6", "tracking.uri=null", "policy=random")
PACKAGE = ROOT / "examples" / "environment_package"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder into which the package was installed, without an index."""
    folder, site = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("site")
    shutil.copytree(PACKAGE, folder, dirs_exist_ok=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(site), str(folder)], check=True, cwd=folder)
    return site


def test_the_page_shows_its_files() -> None:
    blocks = dict(re.findall(r"```(?:python|toml)\n# ([\w.]+)\n(.*?)```", PAGE, re.DOTALL))
    assert blocks["my_env.py"] in (PACKAGE / "my_ladder" / "__init__.py").read_text()
    assert blocks["pyproject.toml"] == (PACKAGE / "pyproject.toml").read_text()


def ran(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), str(site)])}
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def test_its_name_is_listed_checked_and_searched_and_its_package_is_noted(site: Path, tmp_path: Path) -> None:
    for kind, name in (("env", "ladder"), ("judge", "rungs")):
        told = ran(site, tmp_path, "offline_agent.pipelines.build_prefs", "--help", kind).stdout
        assert f"{kind}= of my-ladder 1.0: {name}\n" in told
    ran(site, tmp_path, "pytest", str(PACKAGE / "tests"), "-p", "no:cacheprovider", "--rootdir", str(tmp_path))
    ran(site, tmp_path, "offline_agent.pipelines.audit", "env=ladder", "tracking.uri=null", "run_dir=audited")
    assert json.loads((tmp_path / "audited" / "audit.json").read_text())["verdict"] == "warn"  # it has no expert
    trees = []
    bare = interpreter(tmp_path / "bare")
    for name, more in (("here", ()), ("apart", ("env.isolate=process",)), ("there", (f"env.python={bare}",))):
        keys = ("env=ladder", "judge=rungs", *SMALL, *more, f"run_dir={tmp_path / name}")
        ran(site, tmp_path, "offline_agent.pipelines.build_prefs", *keys)
        trees.append({path.name: path.read_bytes() for path in (tmp_path / name / "trees").iterdir()})
    assert trees[0] and trees[0] == trees[1] == trees[2]
    manifest = json.loads((tmp_path / "here" / "manifest.json").read_text())
    assert manifest["env"]["distribution"] == "my-ladder 1.0"
    versions = {name: files["my-ladder"] for name, files in manifest["sources"].items()}
    assert versions == {"ladder": "1.0", "rungs": "1.0"}
