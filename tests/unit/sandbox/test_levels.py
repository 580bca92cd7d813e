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


@pytest.mark.parametrize("level", ["bubblewrap", "namespaces"])
def test_calls_go_on_when_the_host_replaces_what_they_are_shown(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone catches an installation of packages on the host that ends all work of the sandbox."""
    tmp_path.chmod(0o755)
    file, folder = tmp_path / "ld.so.cache", tmp_path / "packages"
    shown = [(str(file), "/etc/ld.so.cache"), (str(folder), "/packages/mine")]
    before = [pair for pair in launch.binds() if pair[1] != "/etc/ld.so.cache"]
    monkeypatch.setattr(launch, "binds", lambda: iter([*before, *shown]))
    folder.mkdir()
    file.write_text("1")
    sandbox = sandbox_at(level)
    try:
        with sandbox.session() as session:
            for number in range(3):
                (tmp_path / "new").write_text(str(number))
                (tmp_path / "new").rename(file)
                assert sandbox.run(["cat", "/etc/ld.so.cache"], folders={"/app": Folder()}).ok
            folder.rmdir()
            folder.mkdir()
            assert sandbox.run(["ls", "/packages/mine"], folders={"/app": Folder()}).ok
            assert session.ask({"op": "cell", "code": "1 + 1"})["stdout"] == "2\n"
    finally:
        sandbox.close()


def test_no_folder_stays_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sandbox_at("namespaces").run_program("print(1)")
    assert list(tmp_path.iterdir()) == []


def test_a_python_below_tmp_leaves_the_level_that_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone catches a stronger level in which programs have no interpreter."""
    monkeypatch.setattr(sys, "base_prefix", "/tmp/python")
    with pytest.raises(SandboxError, match="elsewhere"):
        assert Sandbox("namespaces").level
