"""Repositories of the user: rows of SWE-bench's format over local git repositories, and the run of their tests."""

from __future__ import annotations

import io
import json
import os
import re
import secrets
import shlex
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any

from offline_agent.envs.task_files import tasks_of
from offline_agent.errors import ConfigError
from offline_agent.sandbox import Entry, Limits, shared
from offline_agent.sandbox.launch import python_environment
from offline_agent_environments.repo import probes
from offline_agent_environments.repo.checkout import Checkout
from offline_agent_environments.runner_files import configures, shadows

FORMATS = (
    "SWE-bench (instance_id, repo, base_commit, patch, test_patch, problem_statement, FAIL_TO_PASS, PASS_TO_PASS)"
)
_PROJECT = frozenset(("pyproject.toml", "tox.ini", "setup.cfg"))  # they configure pytest besides
LIMITS = Limits(cpu_seconds=60, wall_seconds=120.0, memory_mb=2048, disk_mb=512, output_kb=1024)


def read_file(path: str, key: str, repositories: str) -> list[dict[str, Any]]:
    """Return the tasks of a file of rows.

    Args:
        path, key: See `envs.task_files.tasks_of`.
        repositories: A git repository, or a folder that holds one for each `repo`, as `owner__name` or `name`.

    Raises:
        ConfigError: The file or a repository is not there, or a row is of another format.
    """

    def task(row: Mapping[str, Any], number: str) -> dict[str, Any]:
        folder = _repository(Path(repositories), str(row["repo"]))
        return {
            "task_id": str(row["instance_id"]), "request": str(row["problem_statement"]),
            "source": {
                "repository": str(folder), "commit": str(row["base_commit"]), "patch": str(row["patch"]),
                "test_patch": str(row["test_patch"]),
            },
            "must_pass": _names(row["FAIL_TO_PASS"]), "must_stay": _names(row["PASS_TO_PASS"]),
        }  # fmt: skip

    return tasks_of(path, key, task, FORMATS)


def _names(value: Any) -> list[str]:
    found = json.loads(value) if isinstance(value, str) else value
    if not isinstance(found, list):
        raise ValueError(f"FAIL_TO_PASS and PASS_TO_PASS: got {value!r:.60}, must be lists of test names")
    return [str(name) for name in found]


def _repository(root: Path, name: str) -> Path:
    for folder in (root / name.replace("/", "__"), root / name.rpartition("/")[2], root):
        if (folder / ".git").exists() or (folder / "HEAD").is_file():
            return folder.resolve()
    raise ConfigError(f"env.repositories: {root} is no git repository and holds none of {name!r}; clone it there")


@lru_cache(maxsize=32)
def checkout(repository: str, commit: str, *patches: str) -> Checkout:
    """Return the files of a commit, with patches applied one after another.

    Raises:
        ConfigError: There is no git, no such commit, or a patch of the row does not apply.
    """
    data = _git(repository, "archive", "--format=tar", commit)
    found = _unpacked(data)
    for patch in patches:
        applied = apply(found, patch)
        if applied is None:
            raise ConfigError(f"a patch of the row does not apply to {commit} of {repository}")
        found = applied
    return found


def _git(repository: str, *arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", "-C", repository, *arguments], capture_output=True, check=False, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"git {arguments[0]} in {repository}: {error}; install git") from error
    if done.returncode != 0:
        raise ConfigError(f"git {arguments[0]} in {repository}: {done.stderr.decode('utf-8', 'replace').strip()}")
    return done.stdout


def _unpacked(data: bytes) -> Checkout:
    files: dict[str, bytes] = {}
    modes: dict[str, int] = {}
    links: dict[str, str] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            if member.isfile():
                stream = tar.extractfile(member)
                files[member.name] = b"" if stream is None else stream.read()
                if member.mode & 0o100:
                    modes[member.name] = 0o700
            elif member.issym():
                links[member.name] = member.linkname
    return Checkout(files, modes, links)


def apply(clean: Checkout, patch: str) -> Checkout | None:
    """Return a checkout with a patch applied by git; None where it does not apply.

    Only the files that it names are written to a folder of their own, so links lead nowhere.
    """
    if not patch.strip():
        return clean
    names = {name for name in re.findall(r"^(?:---|\+\+\+) [ab]/(.+?)\t?$", patch, re.M)}
    with tempfile.TemporaryDirectory(prefix="patch-") as folder:
        for name in names & clean.files.keys():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(clean.files[name])
        done = subprocess.run(
            ["git", "apply", "--whitespace=nowarn", "-"], input=patch.encode(), cwd=folder, capture_output=True,
            check=False, timeout=60, env={**os.environ, "GIT_CEILING_DIRECTORIES": str(Path(folder).parent)},
        )  # fmt: skip
        if done.returncode != 0:
            return None
        files = dict(clean.files)
        for name in names:
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                files[name] = path.read_bytes()
            else:
                files.pop(name, None)
    return Checkout(files, clean.modes, clean.links)


@dataclass(frozen=True)
class TestResults:
    """Outcomes of a repository's tests.

    Attributes:
        passed: Name of a test → whether it passed.
        printed: What was printed.
        fault: Why nothing of the run is believed; "" where it is.
    """

    __test__ = False  # not a test class, whatever pytest makes of its name

    passed: Mapping[str, bool]
    printed: str
    fault: str = ""


def results(tree: Checkout, tests: Sequence[str], options: str) -> TestResults:
    """Return which tests pass.

    What is printed is not read: `runner` reports on a descriptor of its own. Beside named tests run some of random
    names that must fail, each by another way to assert, and one that must pass.

    Args:
        tree: The files.
        tests: Names of tests, as pytest takes them; none = all that it finds.
        options: Further options of pytest.

    Raises:
        SandboxError: The sandbox does not work.
    """
    mark, plan = secrets.token_hex(16), secrets.token_hex(16)
    probe, text, wanted = probes.made(tree, tests) if tests else ("", "", {})
    task = {"mark": mark, "tests": probes.mixed(tests, list(wanted)), "options": shlex.split(options)}
    task["functions"] = [name.rpartition("::")[2] for name in wanted]
    files: dict[str, bytes | Entry] = {**tree.files, plan: json.dumps(task).encode()}
    files |= {probe: text.encode()} if probe else {}
    files |= {name: Entry("file", mode, 0, tree.files[name]) for name, mode in tree.modes.items() if name in tree.files}
    files |= {name: Entry("link", 0, 0, target) for name, target in tree.links.items()}
    source = (resources.files(__package__) / "runner.py").read_text(encoding="utf-8")
    done = shared().run(
        ["python3", "-P", "-s", "-c", source, plan], files=files, env=python_environment(), limits=LIMITS
    )
    told, fault = _told(done.stdout, mark)
    ends = [one[0] for one in told if len(one) == 1]
    phases: dict[str, dict[str, set[str]]] = {}
    for name, phase, outcome in (one for one in told if len(one) == 3):
        phases.setdefault(name, {}).setdefault(phase, set()).add(outcome)
    passed = {name: one == _PASSED for name, one in phases.items()}
    if not done.ok or len(ends) != 1:
        fault = fault or f"the run did not end by itself ({done.status} {done.code})"
    elif tests and (ends[0] != 1 or any(passed.pop(name, None) is not wish for name, wish in wanted.items())):
        fault = fault or "tests that must fail did not fail, or the one that must pass did not pass"
    elif missing := [test for test in tests if test not in passed]:
        fault = fault or f"no outcome of {', '.join(missing[:3])}"
    return TestResults({} if fault else passed, done.stderr, fault)


_PASSED = {phase: {"passed"} for phase in ("setup", "call", "teardown")}


def _told(text: str, mark: str) -> tuple[list[list[Any]], str]:
    """Return the reports of the runner, and what is wrong with them: a line without the mark is not its own."""
    told: list[list[Any]] = []
    for line in text.splitlines():
        try:
            one = json.loads(line.removeprefix(mark)) if line.startswith(mark) else None
        except (ValueError, RecursionError):
            one = None
        if not isinstance(one, list) or [type(part) for part in one] not in ([int], [str] * 3):
            return told, "something else than the runner wrote reports"
        told.append(one)
    return told, ""


def counted(mine: Checkout, clean: Checkout, right: Checkout, tested: Checkout) -> Checkout:
    """Return the files that are judged: those of a policy, except where they are tests or say how tests run.

    Args:
        mine: The files of the policy.
        clean: The files of the commit.
        right: The same with the right patch, whose changes to what configures the runner hold.
        tested: The files of the commit with the hidden tests.
    """
    def changed(one: Checkout) -> set[str]:
        return {path for path in one.files.keys() | clean.files.keys() if one.files.get(path) != clean.files.get(path)}

    tops = {top for folder in ("", "src") for top in shadows(mine.files, folder) - shadows(clean.files, folder)}
    files: dict[str, bytes] = dict(mine.files)
    mended = changed(right)
    sources = {}
    for path in changed(mine) | mended:
        above = {path, *map(str, PurePosixPath(path).parents)}
        if configures(path) or Path(path).name in _PROJECT:
            sources[path] = right
        elif path not in mended and (is_test(path) or tops & above):
            sources[path] = clean
    sources |= dict.fromkeys(changed(tested), tested)
    for path, source in sources.items():
        files.pop(path, None)
        if path in source.files:
            files[path] = source.files[path]
    return Checkout(files, clean.modes, clean.links)


def is_test(path: str) -> bool:
    """Return whether a file is a test: what a policy writes there is no part of its patch."""
    name = Path(path).name
    return (
        name.startswith("test_") or name.endswith("_test.py") or bool({"tests", "test"} & set(Path(path).parts[:-1]))
    )
