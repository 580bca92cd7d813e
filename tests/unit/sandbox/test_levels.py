"""Packages that are installed where programs have a folder of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from offline_agent.pipelines.entry import main
from offline_agent.sandbox import Folder, Sandbox, SandboxError, launch, trust
from offline_agent.store.manifest import read_manifest
from tests.helpers import tiny_pipeline
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


@pytest.mark.parametrize("level", ["bubblewrap", "namespaces", "limits"])
def test_programs_import_packages_of_a_linked_environment(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone catches a virtual environment that is a link, whose packages a program cannot find."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # what lies below /tmp is moved, link or not
        os.chmod(folder, 0o755)
        Path(folder, "real").mkdir()
        Path(folder, "real", "there.py").write_text("WORD = 'imported'\n")
        Path(folder, "link").symlink_to("real")
        monkeypatch.setattr(launch.sysconfig, "get_path", lambda name: f"{folder}/link")
        sandbox = sandbox_at(level)
        try:
            with sandbox.session() as session:
                said = session.ask({"op": "cell", "code": "import there; print(there.WORD)\n"})
            assert said["stdout"] == "imported\n"
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


def test_a_fall_to_a_weaker_level_is_told_and_binds_the_processes_that_are_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Alone catches a first start that fails for a moment, after which a run is less contained than it says."""
    sandbox_at("namespaces").close()
    monkeypatch.setattr(trust, "_shared", {})
    monkeypatch.setattr(trust, "_fall", {})
    monkeypatch.setattr(trust, "_report", None)  # of a command before, in the same process
    monkeypatch.setenv("OFFLINE_AGENT_SANDBOX_LEVEL", "")
    monkeypatch.setattr(launch.shutil, "which", lambda name: None)
    assert trust.shared().level == "namespaces"
    ask = "from offline_agent.sandbox import shared; print(shared().level)"
    started = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert started.stdout == "namespaces\n"
    assert main(tiny_pipeline.COMMAND, ["tracking.uri=null", f"run_dir={tmp_path / 'run'}"]) == 0
    why = "there is no bwrap on the PATH"
    assert capsys.readouterr().err.count(f"level namespaces, since stronger ones do not work: bubblewrap: {why}") == 1
    told = read_manifest(tmp_path / "run")["sandbox"]
    assert told == {"level": "namespaces", "refused": {"bubblewrap": why}}
    trust.shared().close()
