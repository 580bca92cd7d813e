"""Environments of another interpreter: the same episodes, whatever it has, and clear errors where it cannot serve."""

from __future__ import annotations

import random
import stat
from pathlib import Path
from typing import Any

import pytest

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.config.loading import load
from offline_agent.envs.base import EnvSpec
from offline_agent.envs.conformance import check_environment
from offline_agent.errors import ConfigError
from offline_agent.records import Action, Task, ToolCall
from tests.helpers.interpreters import interpreter, site_packages

HOSTILE = "tests.helpers.hostile_environments:"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter without any package, with another `numpy`, `pydantic` and `torch` than this one's."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    python = interpreter(folder)
    for name in ("numpy", "pydantic", "omegaconf", "torch", "transformers"):
        (site_packages(folder) / f"{name}.py").write_text("VERSION = '0.1'\n")
    return python


def played(spec: EnvSpec) -> list[Any]:
    task = Task("goal-9", "train", {"goal": 9})
    episode = spec.open()
    shown: list[Any] = [episode.reset(task), episode.system_prompt, episode.tools.schemas]
    for arguments in ({"n": 2}, {"n": "x"}, {"m": 1}, {"n": 99}, {"n": 3}):
        action = Action("pick", call=ToolCall("pick", arguments))
        shown += [episode.step(action), episode.fingerprint(), episode.verdict(), episode.achieved_goal()]
    twin = episode.copy()
    return [*shown, twin.step(Action("pick", call=ToolCall("pick", {"n": 4}))), twin.verdict()]


def test_an_episode_elsewhere_shows_what_one_here_shows(bare: str) -> None:
    name = f"{HOSTILE}Honest"
    here, there = EnvSpec.load(name), EnvSpec.load(name, python=bare)
    assert played(there) == played(here)
    assert [list(there.tasks(split)) for split in ("train", "test")] == [list(here.tasks(s)) for s in ("train", "test")]
    assert there.identity == {**here.identity, "python": bare}


def test_an_interpreter_with_nothing_passes_the_conformance_suite(bare: str) -> None:
    report = check_environment(EnvSpec.load("examples.orders:Orders", python=bare), tasks=1)
    assert report.passed, report


def test_the_expert_elsewhere_draws_what_it_draws_here(bare: str) -> None:
    here, there = EnvSpec.load("examples.orders:Orders"), EnvSpec.load("examples.orders:Orders", python=bare)
    one, two = random.Random(5), random.Random(5)
    assert here.demonstrate is not None and there.demonstrate is not None
    for task in list(here.tasks("train"))[:5]:
        assert here.demonstrate(task.args, [], one, 0.5) == there.demonstrate(task.args, [], two, 0.5)
    assert one.random() == two.random()


def test_requirements_that_clash_with_ours_are_its_own_and_no_task_is_lost(bare: str) -> None:
    spec = EnvSpec.load("tests.helpers.remote_envs:Clashes", python=bare)
    tasks = list(spec.tasks("train"))
    assert [task.args["number"] for task in tasks] == list(range(250)) and tasks[7].args["has"] == "0.1"
    assert spec.open().reset(tasks[9]) == "9 0.1 0.1"


def test_errors_of_the_class_are_told_as_here(bare: str) -> None:
    from offline_agent.errors import EnvironmentFault

    for python in (None, bare):
        with pytest.raises(EnvironmentFault, match=r"Breaks: tasks\('train'\) raised ZeroDivisionError: no more"):
            list(EnvSpec.load("tests.helpers.remote_envs:Breaks", python=python).tasks("train"))


def test_one_that_runs_code_says_so_from_another_interpreter_and_needs_a_sandbox_there_too(
    bare: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from offline_agent import sandbox
    from offline_agent.runner.components import check_sandbox

    runs, plain = (EnvSpec.load(f"tests.helpers.remote_envs:{name}", python=bare) for name in ("RunsCode", "Breaks"))
    assert runs.sandbox == sandbox.shared().level and plain.sandbox is None
    assert runs.identity["sandbox"] == runs.sandbox and "sandbox" not in plain.identity
    asked: list[bool] = []
    monkeypatch.setattr("offline_agent.runner.components.check_trust", asked.append)
    check_sandbox(plain, trusted=False)
    check_sandbox(runs, trusted=False)
    assert asked == [False], "an untrusted policy is held against the sandbox"


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_what_is_no_interpreter_is_refused(tmp_path: Path, bare: str) -> None:
    folder = str(Path(bare).parents[1])
    for python, told in (
        ("/no/such/python", "which is no Python interpreter: .* No such file"),
        (folder, f"is a folder; name the interpreter in it, {folder}/bin/python"),
        (program(tmp_path / "old", "echo 3 8"), "is Python 3.8, allowed: 3.11 or newer"),
        (
            program(tmp_path / "silent", "exit 0"),
            "no Python interpreter that starts: asked for its version, it said ''",
        ),
        (program(tmp_path / "broken", "echo no libpython >&2; exit 127"), "that starts: no libpython"),
        (str(Path(__file__)), "Permission denied"),
    ):
        with pytest.raises(ConfigError, match=told):
            EnvSpec.load(f"{HOSTILE}Honest", python=python)


def test_what_it_cannot_load_is_refused_with_the_reason(tmp_path: Path, bare: str) -> None:
    dies = tmp_path / "dies.py"
    dies.write_text("import os\nos._exit(3)\n")
    for name, args, told in (
        ("gym:FrozenLake-v1", {}, "env.python=.*needs the module 'gymnasium', which is not installed"),
        ("no_such:Env", {}, "env.python=.*there is no module 'no_such'"),
        (f"{HOSTILE}Honst", {}, "has no 'Honst'. Did you mean 'Honest'"),
        (f"{HOSTILE}Honest", {"goal": 1}, "env.goal: Honest takes no such argument"),
        (f"{dies}:Env", {}, "cannot serve .*has ended"),
    ):
        with pytest.raises(ConfigError, match=told):
            EnvSpec.load(name, args, python=bare)


def test_it_cannot_be_kept_in_this_process() -> None:
    with pytest.raises(ConfigError, match="got none with env.python"):
        load(BuildPrefsConfig, overrides=["env.python=/usr/bin/python3", "env.isolate=none"])
