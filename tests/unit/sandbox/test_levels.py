"""Packages that are installed where programs have a folder of their own."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from offline_agent.sandbox import Folder, Sandbox, SandboxError, launch
from tests.helpers.sandboxes import sandbox_at


@pytest.fixture
def below_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        Path(folder, "there.py").write_text("WORD = 'imported'\n")
        monkeypatch.setattr(launch, "site_packages", lambda: [folder])
        yield Path(folder)


@pytest.mark.parametrize("level", ["bubblewrap", "namespaces", "limits"])
def test_programs_import_packages_that_are_installed_below_tmp(below_tmp: Path, level: str) -> None:
    """Alone catches a clone below /tmp, whose programs cannot import what is installed, or can change it."""
    look = f"import there; print(there.WORD, there.__file__.startswith({str(below_tmp)!r}))\n"
    sandbox = sandbox_at(level)
    try:
        with sandbox.session() as session:
            said = session.ask({"op": "cell", "code": look})
        assert said["stdout"].split() == ["imported", str(level == "limits")]
        if level == "limits":
            return
        env = {"PYTHONPATH": os.pathsep.join(launch.packages())}
        done = sandbox.run([os.path.realpath(sys.executable), "-c", look], env=env, folders={"/data": Folder()})
        assert done.stdout.split() == ["imported", "False"], done.stderr
        spoilt = sandbox.run(["sh", "-c", f"echo > {launch.MOVED}{below_tmp}/there.py"])
        assert spoilt.code != 0 and (below_tmp / "there.py").read_text()
    finally:
        sandbox.close()


def test_a_python_below_tmp_leaves_the_level_that_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone catches a stronger level in which programs have no interpreter."""
    monkeypatch.setattr(sys, "base_prefix", "/tmp/python")
    with pytest.raises(SandboxError, match="elsewhere"):
        assert Sandbox("namespaces").level
