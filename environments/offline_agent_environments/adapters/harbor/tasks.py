"""Task folders of Harbor's format: reading and checking them, and their division into splits."""

from __future__ import annotations

import fnmatch
import os
import re
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from offline_agent.envs.base import SPLITS
from offline_agent.envs.task_files import divided
from offline_agent.errors import ConfigError
from offline_agent.sandbox import Entry
from offline_agent.sandbox.launch import packages
from offline_agent.store.files import read_text
from offline_agent_environments.adapters.harbor import dockerfile
from offline_agent_environments.adapters.harbor.dockerfile import Image
from offline_agent_environments.adapters.harbor.workspace import HOME, tree, with_parents

PATH = f"{os.path.dirname(os.path.realpath(sys.executable))}:{dockerfile.SYSTEM}"
_MARKS = ("task.toml", "instruction.md", "task.yaml")
_VERIFIER_SECONDS = 120.0
_LONGEST = 1e6  # seconds
_REFUSED = {
    ("steps",): "tasks of several steps",
    ("environment", "mcp_servers"): "MCP servers beside a task",
    ("environment", "gpus"): "GPUs",
    ("verifier", "environment"): "a verifier in a container of its own",
    ("verifier", "collect"): "hooks before the verifier",
}
_TEMPLATE = re.compile(r"\$\{")


@dataclass(frozen=True, eq=False)
class HarborTask:
    """A task as its folder has it.

    Attributes:
        folder: The folder.
        name: Its name.
        instruction: Text for the agent.
        image: What its Dockerfile makes.
        tests: What the folder `tests/` holds.
        solution: What the folder `solution/` holds; empty where there is none.
        seconds: Time of the verifier.
        verifier_env: Variables of the verifier.
    """

    folder: Path
    name: str
    instruction: str
    image: Image
    tests: Mapping[str, Entry]
    solution: Mapping[str, Entry]
    seconds: float
    verifier_env: Mapping[str, str]


def found(root: str) -> dict[str, tuple[Path, str | None]]:
    """Return the task folders below a folder, or the folder itself: name → (folder, split or None).

    Raises:
        ConfigError: There are none, or two of the same name.
    """
    folder = Path(root)
    if not folder.is_dir():
        raise ConfigError(f"env: harbor:{root}: there is no such folder")
    if _is_task(folder):
        return {folder.resolve().name: (folder, "train")}
    tasks: dict[str, tuple[Path, str | None]] = {}
    own = [name for name in SPLITS if (folder / name).is_dir() and not _is_task(folder / name)]
    places: list[tuple[str | None, Path]] = [(name, folder / name) for name in own]
    for split, above in places or [(None, folder)]:
        for path in sorted(above.iterdir()):
            if not (path.is_dir() and _is_task(path)):
                continue
            if path.name in tasks:
                raise ConfigError(f"env: harbor:{root}: two tasks are called {path.name!r}; rename one folder")
            tasks[path.name] = (path, split)
    if not tasks:
        raise ConfigError(
            f"env: harbor:{root} has no task; allowed: a folder with task.toml and instruction.md, a folder of such "
            f"folders, or one with subfolders {', '.join(SPLITS)} of them"
        )
    return tasks


def _is_task(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _MARKS)


def in_split(
    split: str, tasks: Mapping[str, tuple[Path, str | None]], splits: Mapping[str, Sequence[str]] | None
) -> list[str]:
    """Return the names of a split's tasks, in order of their names.

    By the mapping where one is given; else by the folders `train`, `validation`, `test`; else by a hash of the name,
    eight tenths train, one validation, one test.

    Args:
        split: `train`, `validation` or `test`.
        tasks: See `found`.
        splits: Split → patterns of names, as `fnmatch`.

    Raises:
        ConfigError: The mapping names no split, no task, or a task twice.
    """
    if splits is not None:
        return _mapped(tasks, splits).get(split, [])
    rows = [{"task_id": name} for name, (_, own) in sorted(tasks.items()) if own is None]
    hashed = divided(split, "", None, lambda path, key: rows) or []
    return sorted([name for name, (_, own) in tasks.items() if own == split] + [row["task_id"] for row in hashed])


def _mapped(tasks: Collection[str], splits: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    chosen: dict[str, list[str]] = {}
    where: dict[str, str] = {}
    for split, patterns in splits.items():
        if split not in SPLITS or isinstance(patterns, str):
            raise ConfigError(f"env.splits: got {split}: {patterns!r}, allowed: lists of names for {', '.join(SPLITS)}")
        names = set()
        for pattern in patterns:
            fit = fnmatch.filter(tasks, pattern)
            if not fit:
                known = _few(sorted(tasks))
                raise ConfigError(f"env.splits.{split}: no task is called {pattern!r}; there are: {known}")
            names |= set(fit)
        for name in sorted(names):
            if where.setdefault(name, split) != split:
                raise ConfigError(f"env.splits: the task {name!r} is in {where[name]} and in {split}; name it once")
        chosen[split] = sorted(names)
    return chosen


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


@lru_cache(maxsize=512)
def read(folder: Path, images: frozenset[str]) -> HarborTask:
    """Return a task of its folder.

    Args:
        folder: The task's folder.
        images: See `dockerfile.read`.

    Raises:
        ConfigError: It is of another format, or cannot be carried out here: every reason, each with the task's name.
    """
    name = folder.resolve().name
    faults: list[str] = []
    told = _settings(folder, faults)
    instruction = _text(folder / "instruction.md", faults)
    script = _text(folder / "tests" / "test.sh", faults)
    for line, program, need in dockerfile.network_words(script):
        faults.append(f"tests/test.sh, line {line}: {program} needs {need}, which the sandbox does not have")
    image = _image(folder / "environment", told.get("environment", {}), images, faults)
    env = {**_env(told, "environment", faults), **_env(told, "verifier", faults)}
    seconds = told.get("verifier", {}).get("timeout_sec", _VERIFIER_SECONDS)
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds <= _LONGEST:
        faults.append(f"task.toml: verifier.timeout_sec: got {seconds!r:.40}, allowed: seconds, above 0, {_LONGEST:g} "
                      "at most")  # fmt: skip
    tests, solution = (_tree(folder / part, faults) for part in ("tests", "solution"))
    faults += [f"solution/{part} is a link, which is not carried out; put the file itself there"
               for part, entry in solution.items() if entry.kind == "link"]  # fmt: skip
    if faults:
        raise ConfigError([f"task {name}: {fault}" for fault in faults])
    image.env = {**image.env, **_env(told, "environment", [])}
    return HarborTask(folder.resolve(), name, instruction, image, tests, solution, float(seconds), env)


def _tree(folder: Path, faults: list[str]) -> dict[str, Entry]:
    try:
        return with_parents(tree(folder)) if folder.is_dir() else {}
    except OSError as error:
        faults.append(f"{error.filename}: {error.strerror}")
        return {}


def _settings(folder: Path, faults: list[str]) -> dict[str, Any]:
    path = folder / "task.toml"
    if not path.is_file() and (folder / "task.yaml").is_file():
        faults.append("it is of Terminal-Bench's first format (task.yaml); allowed: Harbor's, with task.toml")
        return {}
    try:
        told = tomllib.loads(read_text(path))
    except (OSError, UnicodeError, tomllib.TOMLDecodeError) as error:
        faults.append(f"task.toml cannot be read: {error}")
        return {}
    for section in ("environment", "verifier", "agent"):
        if not isinstance(told.get(section, {}), dict):
            faults.append(f"task.toml: {section}: got {told[section]!r}, allowed: a table")
            told[section] = {}
    for keys, what in _REFUSED.items():
        value: Any = told
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if value:
            faults.append(f"task.toml: {'.'.join(keys)}: {what} are not carried out")
    if told.get("environment", {}).get("os", "linux") != "linux":
        faults.append(f"task.toml: environment.os: got {told['environment']['os']!r}, allowed: linux")
    if told.get("verifier", {}).get("environment_mode", "shared") != "shared":
        faults.append("task.toml: verifier.environment_mode: a verifier in a container of its own is not carried out")
    return told


def _text(path: Path, faults: list[str]) -> str:
    try:
        text = read_text(path)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        faults.append(f"{path.parent.name + '/' if path.name == 'test.sh' else ''}{path.name} cannot be read: {reason}")
        return ""
    if not text.strip():
        faults.append(f"{path.name} is empty")
    return text


def _image(folder: Path, told: Mapping[str, Any], images: frozenset[str], faults: list[str]) -> Image:
    for path in sorted(folder.glob("*compose*.y*ml")):
        faults.append(f"environment/{path.name}: containers are not started, so compose files are not carried out")
    if (folder / "Dockerfile").is_file():
        image = dockerfile.read(folder, PATH, images)
    elif isinstance(told.get("docker_image"), str):
        fault = dockerfile.image_fault(told["docker_image"], images)
        image = Image(told["docker_image"], faults=[fault] if fault else [])
    else:
        image = Image(faults=["Dockerfile: there is none, and task.toml names no environment.docker_image"])
    faults += [f"environment/{fault}" for fault in image.faults]
    return image


def _env(told: Mapping[str, Any], section: str, faults: list[str]) -> dict[str, str]:
    given = told.get(section, {}).get("env", {})
    if not isinstance(given, dict):
        faults.append(f"task.toml: {section}.env: got {given!r}, allowed: a table")
        return {}
    for name, value in given.items():
        if _TEMPLATE.search(str(value)):
            faults.append(f"task.toml: {section}.env.{name}: variables of this machine are not passed on")
        if name in dockerfile.LOADERS:
            faults.append(f"task.toml: {section}.env.{name}: it would change how the verifier's programs are loaded")
    return {str(name): str(value) for name, value in given.items()}


def base_env(image: Image) -> dict[str, str]:
    """Return the variables of a command in a task's workspace."""
    return {
        "PATH": PATH, "HOME": HOME, "USER": "agent", "LOGNAME": "agent", "TERM": "dumb",
        "PYTHONPATH": ":".join(packages()), **image.env,
    }  # fmt: skip


def unplayable(
    names: Collection[str], tasks: Mapping[str, tuple[Path, str | None]], images: frozenset[str]
) -> Iterator[tuple[str, list[str]]]:
    """Yield the tasks that cannot be played here, with the reasons."""
    for name in names:
        try:
            read(tasks[name][0], images)
        except ConfigError as error:
            yield name, list(error.faults)
