"""The environment `repo`: embedded bugs, edits, rows of SWE-bench's format over a git repository made here."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offline_agent.envs.base import EnvSpec, ToolError
from offline_agent.errors import ConfigError
from offline_agent_environments.mutation import mutant, mutants
from offline_agent_environments.repo import Repo, bundles, rows
from offline_agent_environments.repo.checkout import Checkout, patch
from offline_agent_environments.repo.tests import repository
from tests.helpers import attacks

pytestmark = pytest.mark.slow

WRONG = repository.WRONG


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A repository with a bug, and a file with its row."""
    return repository.written(tmp_path_factory.mktemp("git"))


def ended(env: Repo, task: dict[str, Any], *edits: tuple[str, str, str]) -> float | None:
    env.reset(**task)
    for path, old, new in edits:
        env.edit(path, old, new)
    env.submit()
    return env.get_reward().score


def test_rows_are_judged_by_hidden_tests_on_a_clean_checkout(data: dict[str, str]) -> None:
    (task,) = Repo.tasks("test", **data)
    env = Repo(**data)
    first = env.reset(**task)
    assert "double(2) is 6." in first and "test_new" not in first  # the hidden tests are not there
    assert "1 of 1 tests passed" in env.run_tests()
    mend = ("pkg/core.py", "3 * x", "2 * x")
    assert ended(env, task, mend) == 1.0
    assert ended(env, task) == 0.0
    assert ended(env, task, ("pkg/core.py", "3 * x", "4 * x")) == 0.0
    assert ended(env, task, ("pkg/core.py", "3 * x", "4")) == 0.0  # breaks what worked


@pytest.mark.parametrize("attack", attacks.ON_THE_RUNNER)
def test_a_patch_that_mends_nothing_earns_nothing(
    attack: str, data: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 3.0 if attack == "sleeps" else 8.0
    monkeypatch.setattr(rows, "LIMITS", replace(rows.LIMITS, wall_seconds=seconds, disk_mb=8))
    (task,) = Repo.tasks("test", **data)
    files = attacks.ON_THE_RUNNER[attack]
    edits = [(path, "", text) if path else ("pkg/core.py", WRONG, text + WRONG) for path, text in files.items()]
    assert ended(Repo(**data), task, *edits) == 0.0


@pytest.mark.parametrize(
    "edits",
    [
        [("tests/test_new.py", "", "def test_double(): pass\ndef test_zero(): pass\n")],
        [("sitecustomize.py", "", "import os\nos._exit(0)\n")],
        [("pytest.ini", "", "[pytest]\naddopts = --co\n")],
        [("pkg/core.py", WRONG, "import _pytest.python as p\np.Function.runtest = lambda self: None\n"
          "def double(x): return 0\n")],
    ],
)  # fmt: skip
def test_attacks_on_the_tests_of_a_row(edits: list[tuple[str, str, str]], data: dict[str, str]) -> None:
    (task,) = Repo.tasks("test", **data)
    assert ended(Repo(**data), task, *edits) == 0.0


@pytest.mark.parametrize("attack", ["assertions of unittest agree", "another unittest"])
def test_a_run_whose_assertions_were_replaced_is_not_believed(attack: str) -> None:
    test = "import unittest\nimport core\nclass TestCore(unittest.TestCase):\n    def test_it(self):\n        "
    files = {"core.py": WRONG, "test_core.py": test + "self.assertEqual(core.double(2), 4)\n"}
    for path, text in attacks.ON_THE_RUNNER[attack].items():
        files[path or "core.py"] = text + files.get(path or "core.py", "")
    name = "test_core.py::TestCore::test_it"
    found = rows.results(Checkout({path: text.encode() for path, text in files.items()}), [name], "")
    assert not found.passed.get(name), found


def test_what_is_no_part_of_a_patch_does_not_spoil_one_that_mends(data: dict[str, str]) -> None:
    (task,) = Repo.tasks("test", **data)
    others = [(path, "", "import os\nos._exit(0)\n") for path in ("json.py", "pytest.py", "tests/test_new.py", "x.pth")]
    assert ended(Repo(**data), task, ("pkg/core.py", "3 * x", "2 * x"), *others) == 1.0


def test_what_counts_of_a_patch() -> None:
    clean = Checkout({"pkg/a.py": b"1", "setup.cfg": b"old", "test/t.py": b"x", "attr.py": b"own"})
    right = Checkout({**clean.files, "pkg/a.py": b"2", "setup.cfg": b"new", "test/t.py": b"mended"})
    counts = {"test/t.py": b"mine", "pkg/json.py": b"mine", "attr.py": b"mine"}
    others = dict.fromkeys(("setup.cfg", "test/u.py", "json.py", "src/pytest/__init__.py", "pkg/conftest.py"), b"mine")
    mine = Checkout({**clean.files, **counts, **others})
    found = rows.counted(mine, clean, right, Checkout({**clean.files, "test/n.py": b"hidden"}))
    assert found.files == {"pkg/a.py": b"1", "setup.cfg": b"new", "test/n.py": b"hidden", **counts}


def test_a_checkout_has_its_own_names_of_tests_and_its_own_options() -> None:
    ini = "[pytest]\npython_functions = check_*\npython_files = check_*.py\naddopts = -x\nfilterwarnings = error\n"
    text = "import pytest\n@pytest.mark.parametrize('x', ['a b', 'c'])\ndef check_it(x): assert x == 'a b'\n"
    files = {"pytest.ini": ini, "check_it.py": text}
    names = ["check_it.py::check_it[a b]", "check_it.py::check_it[c]"]
    found = rows.results(Checkout({path: text.encode() for path, text in files.items()}), names, "")
    assert found.passed == dict(zip(names, (True, False), strict=True)), found


def test_tests_that_cannot_run_with_the_right_patch_either_give_no_score(data: dict[str, str]) -> None:
    (task,) = Repo.tasks("test", **data)
    task["must_pass"] = ["tests/test_new.py::test_that_is_not_there"]
    env = Repo(**data)
    assert ended(env, task, ("pkg/core.py", "3 * x", "2 * x")) is None
    assert "with the right patch either" in str(env.get_reward().error)


def test_the_oracle_mends_a_row(data: dict[str, str]) -> None:
    from offline_agent.envs.play import ScriptedPlayer

    spec = EnvSpec.load("repo", data)
    (task,) = spec.tasks("test")
    verdict = ScriptedPlayer(spec, 10).expert(task).verdict
    assert verdict is not None and verdict.score == 1.0


def test_bad_rows_and_repositories_are_told_before_anything_runs(data: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"env.repositories: rows need"):
        Repo.tasks("test", test_path=data["test_path"])
    with pytest.raises(ConfigError, match="is no git repository and holds none of 'someone/pkg'"):
        list(Repo.tasks("test", test_path=data["test_path"], repositories=str(tmp_path)))
    row = json.loads(Path(data["test_path"]).read_text())
    del row["test_patch"]
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    with pytest.raises(ConfigError, match="it has no 'test_patch'"):
        list(Repo.tasks("test", test_path=str(tmp_path / "rows.jsonl"), repositories=data["repositories"]))
    (task,) = Repo.tasks("test", **data)
    task["source"]["commit"] = "0" * 40
    with pytest.raises(ConfigError, match="git archive"):
        Repo().reset(**task)


def test_a_sample_of_the_listed_bugs_fails_just_the_tests_that_are_named() -> None:
    for bug in random.Random(2).sample(bundles.bugs(), 4):
        right = bundles.package(bug["package"])[0][bug["path"]].splitlines()[bug["line"] - 1]
        assert right == bug["right"]
        found = bundles.hidden_results(bug["package"], bundles.broken(bug))
        every = bundles.hidden_results(bug["package"], bundles.package(bug["package"])[0])
        assert all(every.values())
        assert sorted(test for test in every if not found.get(test)) == bug["must_pass"], bug


@pytest.mark.parametrize(
    "edits",
    [
        [("hidden/test_hidden_ledger.py", "", "def test_x(): pass\n")],
        [("tests/test_money.py", "from ledger import money", "import os; os._exit(0)")],
        [("ledger/__init__.py", '"""Accounts in whole cents."""', "import os\nos._exit(0)\n")],
        [("ledger/__init__.py", '"""Accounts in whole cents."""',
          "import sys\nclass M:\n    def __getattr__(s, n): return M()\n    def __call__(s, *a, **k): return M()\n"
          "    def __eq__(s, o): return True\n    def __bool__(s): return True\n"
          "sys.modules['ledger.money'] = sys.modules['ledger.accounts'] = M()\n")],
        [("sitecustomize.py", "", "import builtins\nbuiltins.AssertionError = Exception\n"),
         ("json.py", "", "dumps = lambda *a, **k: '{}'\n")],
    ],
)  # fmt: skip
def test_attacks_on_the_tests_of_a_package(edits: list[tuple[str, str, str]]) -> None:
    task = next(task for task in Repo.tasks("train") if task["source"]["package"] == "ledger")
    assert ended(Repo(), task, *edits) == 0.0


def test_an_edit_must_be_of_one_place_inside_of_the_repository() -> None:
    task = next(iter(Repo.tasks("train")))
    env = Repo()
    env.reset(**task)
    for path in ("/etc/passwd", "../x", "a/../../x", ".git/config", ""):
        with pytest.raises(ValueError, match="inside of the repository"):
            env.edit(path, "", "x")
    with pytest.raises(ToolError, match="0 times"):
        env.edit("README.md", "not there", "x")
    with pytest.raises(ToolError, match="there is no file"):
        env.edit("none.py", "x", "y")
    assert env.search("zzz_nothing") == "Not found."


def test_a_patch_is_one_that_git_applies() -> None:
    before = Checkout({"a.py": b"one\ntwo\n", "gone.txt": b"x\n", "same": b"y", "end": b"no newline"})
    after = Checkout({"a.py": b"one\n2\n", "new/b.py": b"new\n", "same": b"y", "end": b"now\n"})
    applied = rows.apply(before, patch(before, after))
    assert applied is not None and dict(applied.files) == dict(after.files)
    assert rows.apply(before, "no patch at all\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-zzz\n+y\n") is None
    assert rows.apply(before, "--- a/a.py\n+++ b/../../evil\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n") is None


def test_each_mutant_differs_and_parses() -> None:
    source = (
        "def f(a, b):\n    # kept\n    if a < b and not a:\n        return a + 1\n"
        "    return b // 2 if a in (1, 2) else -b\n"
    )
    made = [mutant(source, number) for number in range(mutants(source))]
    assert len(set(made)) == len(made) == 11 and source not in made
    for text in made:
        compile(text, "m", "exec")
        assert "# kept" in text
    with pytest.raises(ValueError, match="11 mutants"):
        mutant(source, 11)
