"""Repositories of the user: rows of SWE-bench's format over local git repositories, and a command that runs tests."""

from __future__ import annotations

import io
import json
import os
import re
import secrets
import shlex
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from offline_agent.envs.repo.checkout import Checkout
from offline_agent.envs.task_files import tasks_of
from offline_agent.errors import ConfigError
from offline_agent.sandbox import Limits, shared

FORMATS = (
    "SWE-bench (instance_id, repo, base_commit, patch, test_patch, problem_statement, FAIL_TO_PASS, PASS_TO_PASS)"
)
COMMAND = "python3 -m pytest -q -rA --no-header -p no:cacheprovider {tests}"
_RESULT = re.compile(r"^(PASSED|FAILED|ERROR) (\S+)", re.M)
_CONFIGURES = ("conftest.py", "pytest.ini", "tox.ini", "setup.cfg", "sitecustomize.py", "usercustomize.py")
LIMITS = Limits(cpu_seconds=60, wall_seconds=120.0, memory_mb=2048, disk_mb=512, output_kb=1024)


def read_file(path: str, key: str, repositories: str) -> list[dict[str, Any]]:
    """Return the tasks of a file of rows.

    Args:
        path, key: See `task_files.tasks_of`.
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


def results(tree: Checkout, tests: Sequence[str], command: str) -> tuple[dict[str, bool], str]:
    """Return which tests pass, by name, and what was printed.

    A test of a random name that must fail runs beside them. Where the run does not say that it failed, nothing that it
    says is believed: the program under test has patched the runner, or ended it.

    Args:
        tree: The files.
        tests: Names of tests or files, as the command takes them; none = all that it finds.
        command: With `{tests}` for them; it prints `PASSED name` and `FAILED name`, as pytest's -rA does.

    Raises:
        SandboxError: The sandbox does not work.
    """
    mark = f"test_{secrets.token_hex(8)}"
    files = {**tree.files, f"{mark}.py": f"def {mark}():\n    raise RuntimeError\n".encode()}
    parts, named = shlex.split(command), [*tests, f"{mark}.py"] if tests else []
    argv = [word for part in parts for word in (named if part == "{tests}" else [part])]
    done = shared().run(
        argv, files=files, modes=tree.modes, links=tree.links, env=_environment(), limits=LIMITS
    )
    found = {name: word == "PASSED" for word, name in _RESULT.findall(done.stdout)}
    printed = done.stdout.replace(mark, "test_that_must_fail") + done.stderr
    if found.pop(f"{mark}.py::{mark}", True):
        return {}, printed
    return found, printed


def _environment() -> dict[str, str]:
    from offline_agent.sandbox.launch import packages

    folder = os.path.dirname(os.path.realpath(sys.executable))
    return {"PATH": f"{folder}:/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": ":".join([".", *packages()])}


def is_test(path: str) -> bool:
    """Return whether a file is a test, or says how tests run: what a policy writes there is no part of its patch."""
    name = Path(path).name
    return (
        name in _CONFIGURES or name.endswith(".pth") or name.startswith("test_") or name.endswith("_test.py")
        or bool({"tests", "test"} & set(Path(path).parts[:-1]))
    )  # fmt: skip
