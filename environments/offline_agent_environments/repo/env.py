"""The environment: look around in a repository, mend it, submit; hidden tests judge the patch on a clean checkout."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

from offline_agent.envs.base import Environment, ToolError, twin
from offline_agent.envs.task_files import divided
from offline_agent.errors import ConfigError, EnvironmentFault
from offline_agent.judges.code import TestRun
from offline_agent.judges.verifiers import Unscorable
from offline_agent.records import Message, Verdict
from offline_agent.sandbox import SandboxError
from offline_agent_environments.repo import bundles, rows
from offline_agent_environments.repo import demonstrate as expert
from offline_agent_environments.repo.checkout import Checkout, checked_path, patch
from offline_agent_environments.repo.judge import repository_tests

_TENTHS = {"train": range(8), "validation": range(8, 9), "test": range(9, 10)}
_LINES, _HITS, _LONGEST = 300, 50, 200_000


class Repo(Environment):
    """Repositories with a bug. Files are kept in memory; tests run in the sandbox.

    Args:
        path: A file of SWE-bench's rows, divided into splits; None = the embedded packages with bugs by mutation.
        test_path: Such a file that is the whole test split.
        repositories: The git repository of the rows, or a folder of repositories.
        test_options: Further options of pytest for the tests of rows.
    """

    name = "repo"
    system_prompt = (
        "Mend the bug in the repository. list_files, read_file and search look around, edit replaces a piece of text,"
        " run_tests runs the tests that are there, submit hands the changes in for good: hidden tests then judge them."
        " Changes to tests do not count."
    )
    one_thread: ClassVar[bool] = False
    runs_code: ClassVar[bool] = True
    _answers_differ: ClassVar[bool] = False

    def __init__(
        self,
        path: str | None = None,
        test_path: str | None = None,
        repositories: str | None = None,
        test_options: str = "",
    ) -> None:
        self._options = test_options
        self._source: dict[str, Any] = {}
        self._clean = self._now = Checkout({})
        self._must: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._submitted = False

    @classmethod
    def tasks(
        cls, split: str, path: str | None = None, test_path: str | None = None, repositories: str | None = None
    ) -> Iterable[dict[str, Any]]:
        """Yield the tasks of a split.

        Raises:
            ConfigError: A file or a repository cannot be read, or a row is of another format.
        """
        if (path or test_path) and not repositories:
            raise ConfigError("env.repositories: rows need the git repositories that they are of; name their folder")
        of_file = divided(split, path, test_path, lambda name, key: rows.read_file(name, key, str(repositories)))
        if of_file is not None:
            return of_file
        return (_of_bug(bug) for number, bug in enumerate(bundles.bugs()) if number % 10 in _TENTHS[split])

    def reset(
        self,
        request: str,
        source: Mapping[str, Any],
        must_pass: Sequence[str],
        must_stay: Sequence[str] = (),
        **columns: Any,
    ) -> str:
        """Begin with a clean checkout.

        Args:
            request: What is wrong; the first observation.
            source: An embedded bug, or `repository`, `commit`, `patch` and `test_patch` of a row.
            must_pass: Hidden tests that fail now and must pass.
            must_stay: Hidden tests that pass now and must go on passing.
            **columns: Other columns of a data set. Not used.
        """
        self._source = dict(source)
        self._clean = self._now = _begun(self._source)
        self._must = (tuple(must_pass), tuple(must_stay))
        self._submitted, self.terminated = False, False
        return f"{request}\n\nFiles: {self._listing()}"

    def list_files(self) -> str:
        """List the files of the repository."""
        self._check_open()
        return self._listing()

    def read_file(self, path: str, start: int = 1) -> str:
        """Read a file, up to 300 lines, each with its number.

        Args:
            path: Its path, such as README.md.
            start: The first line.
        """
        self._check_open()
        lines = self._now.text(checked_path(path)).splitlines()
        if start < 1:
            raise ToolError(f"start: got {start}, allowed: 1 to {max(1, len(lines))}.")
        shown = [f"{number}: {line}" for number, line in enumerate(lines, 1)][start - 1 : start - 1 + _LINES]
        more = len(lines) - (start - 1 + len(shown))
        return "\n".join(shown + ([f"({more} more lines)"] if more > 0 else [])) or "(no lines)"

    def search(self, text: str) -> str:
        """Search the files for a text.

        Args:
            text: What to look for, such as def.
        """
        self._check_open()
        if not text:
            raise ToolError("text: got nothing, allowed: a text that is looked for in each line.")
        found = []
        for path, data in sorted(self._now.files.items()):
            if text.encode("utf-8", "replace") in data:
                lines = data.decode("utf-8", "replace").splitlines()
                found += [f"{path}:{number}: {line}" for number, line in enumerate(lines, 1) if text in line]
        more = [f"({len(found) - _HITS} more lines)"] if len(found) > _HITS else []
        return "\n".join([*found[:_HITS], *more]) or "Not found."

    def edit(self, path: str, old: str, new: str) -> str:
        """Replace a text that stands exactly once in a file; an empty old text makes a new file.

        Args:
            path: The file, such as README.md.
            old: The text to replace, with its indentation.
            new: The text in its place.
        """
        self._check_open()
        path = checked_path(path)
        if path in self._now.links or any(str(parent) in self._now.links for parent in Path(path).parents):
            raise ToolError(f"path: {path} is a link, or lies behind one; edit the file itself.")
        if len(new) > _LONGEST:
            raise ToolError(f"new: got {len(new)} characters, allowed: at most {_LONGEST}.")
        after = expert.edited(self._now, {"path": path, "old": old, "new": new})
        if after is None:
            if path not in self._now.files:
                raise ToolError(f"there is no file {path!r}; give an empty old text to make it.")
            times = self._now.text(path).count(old) if old else 0
            raise ToolError(f"old: it stands {times} times in {path}, allowed: exactly once.")
        self._now = after
        return f"Changed {path}."

    def run_tests(self) -> str:
        """Run the tests that are in the repository."""
        self._check_open()
        try:
            return _shown_tests(self._source.get("package"), _Files(self._now), self._options)
        except SandboxError as error:
            raise EnvironmentFault(f"repo: {error}") from error

    def submit(self) -> str:
        """Hand the changes in; the hidden tests judge them."""
        self._check_open()
        self._submitted = self.terminated = True
        return "Submitted."

    def get_reward(self) -> Verdict:
        """Return the verdict on the submitted changes; 0 where none were submitted."""
        version = str(repository_tests.version)  # type: ignore[attr-defined]
        if not self._submitted:
            return Verdict(0.0, False, "repository_tests", version, {"submitted": False})
        changed = patch(self._clean, self._now)
        if not changed.strip():
            return Verdict(0.0, False, "repository_tests", version, {"submitted": True, "patch": ""})
        return repository_tests(changed, self._hidden, self._must[0], self._must[1])

    @property
    def fingerprint(self) -> str:
        """Hash of the files and of whether they were submitted."""
        return hashlib.sha256(f"{self._now.digest} {self._submitted} {self._source}".encode()).hexdigest()

    @classmethod
    def demonstrate(
        cls, task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float
    ) -> Message:
        """Return the next call of a developer who knows the patch, or with `noise` one that errs."""
        source = dict(task["source"])
        return expert.next_turn(_begun(source), _right(source), messages, rng, noise)

    def __deepcopy__(self, memo: dict[int, Any]) -> Repo:
        return twin(self)  # all of it is replaced, never changed

    def _hidden(self, changed: str) -> Mapping[str, bool]:
        """Run the hidden tests on a clean checkout with what counts of the changes."""
        source, clean, right = self._source, self._clean, _right(self._source)
        if "package" in source:
            return _hidden_of_package(source["package"], _Files(rows.counted(self._now, clean, right, clean)))
        tested = rows.checkout(source["repository"], source["commit"], source["test_patch"])
        names = (*self._must[0], *self._must[1])
        found, gold = (
            partial(_of_row, _Files(rows.counted(mine, clean, right, tested)), names, self._options)
            for mine in (self._now, right)
        )
        if found().fault and gold().fault:
            told = f"{gold().fault}: {gold().printed.strip()[-300:]}"
            raise Unscorable(f"the tests cannot be run with the right patch either: {told}")
        return found().passed

    def _listing(self) -> str:
        names = sorted([*self._now.files, *self._now.links])
        more = f" and {len(names) - 200} more" if len(names) > 200 else ""
        return ", ".join(names[:200]) + more

    def _check_open(self) -> None:
        if self.terminated:
            raise ToolError("the changes were submitted; the episode is over.")


class _Files:
    """A checkout as a key of a cache, by its contents."""

    def __init__(self, tree: Checkout) -> None:
        self.tree, self._digest = tree, tree.digest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Files) and other._digest == self._digest

    def __hash__(self) -> int:
        return hash(self._digest)


def _of_bug(bug: Mapping[str, Any]) -> dict[str, Any]:
    names = ", ".join(test.partition("::")[2] for test in bug["must_pass"])
    task_id = f"{bug['path']}-{bug['line']}-{hashlib.sha256(bug['wrong'].encode()).hexdigest()[:6]}"
    source = {name: bug[name] for name in ("package", "path", "line", "right", "wrong")}
    every = _hidden_names(bug["package"])
    return {
        "task_id": task_id, "source": source, "must_pass": bug["must_pass"],
        "must_stay": [test for test in every if test not in bug["must_pass"]],
        "request": f"The package {bug['package']} has a bug. Hidden tests fail by it: {names}. Mend it.",
    }  # fmt: skip


def _hidden_names(name: str) -> list[str]:
    found = []
    for path, text in bundles.package(name)[1].items():
        lines = [line for line in text.splitlines() if line.startswith("def test_")]
        found += [f"{Path(path).stem}::{line[4:].partition('(')[0]}" for line in lines]
    return found


def _begun(source: dict[str, Any]) -> Checkout:
    if "package" in source:
        return Checkout({path: text.encode() for path, text in bundles.broken(source).items()})
    return rows.checkout(source["repository"], source["commit"])


def _right(source: dict[str, Any]) -> Checkout:
    if "package" in source:
        return Checkout({path: text.encode() for path, text in bundles.package(source["package"])[0].items()})
    return rows.checkout(source["repository"], source["commit"], source["patch"])


@lru_cache(maxsize=2048)
def _of_row(files: _Files, tests: tuple[str, ...], options: str) -> rows.TestResults:
    return rows.results(files.tree, tests, options)


@lru_cache(maxsize=2048)
def _hidden_of_package(name: str, files: _Files) -> dict[str, bool]:
    texts = {path: data.decode("utf-8", "replace") for path, data in files.tree.files.items()}
    return bundles.hidden_results(name, texts)


@lru_cache(maxsize=2048)
def _shown_tests(package: str | None, files: _Files, options: str) -> str:
    tree = files.tree
    if package is None:
        found = rows.results(tree, [], options)
        told = found.fault or f"{sum(found.passed.values())} of {len(found.passed)} tests passed."
        return f"{told}\n{found.printed[-3000:]}"
    modules = {
        Path(path).stem: data.decode("utf-8", "replace") for path, data in sorted(tree.files.items())
        if path.startswith("tests/") and path.endswith(".py")
    }  # fmt: skip
    with TestRun(None, dict(tree.files)) as run:
        outcomes = run.grade_files(modules, [package])
    lines = [f"{o.test}: {o.error or o.unscorable}" for o in outcomes if not o.passed]
    return "\n".join([f"{len(outcomes) - len(lines)} of {len(outcomes)} tests passed.", *lines])
