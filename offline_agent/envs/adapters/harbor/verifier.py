"""The verifier of a task: its tests run on a copy of the workspace after the agent ended, and write the reward.

The tests lie in the sandbox for this call alone, read-only, and /logs/verifier is made for it. It starts with no
process of the agent, a PATH whose folders of the workspace come last, and the home folder that the task began with.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from offline_agent.envs.adapters.harbor.tasks import HarborTask, base_env
from offline_agent.envs.adapters.harbor.workspace import HOME, Workspace, split
from offline_agent.records import Verdict
from offline_agent.sandbox import Entry, Folder, Limits, Result, shared

_NAME, _VERSION = "harbor_tests", "1"
_CONFIGURES = frozenset(
    ("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "sitecustomize.py", "usercustomize.py")
)
_METADATA = (".pth", ".dist-info", ".egg-info", ".egg-link")  # they may name code to load at each start
_NO_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # whose modules the agent may put into its folders
_RUNNERS = frozenset(
    ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "py", "pygments", "coverage", "numpy", "pandas", "org")
)  # org: pickle and copy look for org.python.core, which is Jython's
_SETTLE = 0.5  # seconds that processes of the verifier get to end
_LONGEST = 2000  # characters of the verifier's output that are kept


def verdict(task: HarborTask, start: Workspace, now: Workspace, limits: Limits) -> Verdict:
    """Return the verdict on a workspace.

    Args:
        task: The task.
        start: The workspace that it began with.
        now: The workspace that the agent left.
        limits: Of the verifier.

    Raises:
        SandboxError: The sandbox does not work.
    """
    now = now.with_folder(task.image.workdir)
    env = _environment(task, now)
    if moved := sorted(_moved(task, start, now, env)):
        told = ", ".join(moved[:5])
        return _unscored(f"{told}: the verifier works there or imports from there, and it is no longer that folder", {})
    if shadows := sorted(_shadows(task, start, now, env)):
        return _unscored(f"{', '.join(shadows[:5])} would be imported in place of modules of the verifier", {})
    folders = {place: Folder(entries) for place, entries in _without_configuration(start, now).items()}
    folders[HOME] = Folder(start.folders[HOME])
    folders["/tests"] = Folder(task.tests, writable=False)
    folders["/logs/agent"] = Folder()
    folders["/logs/verifier"] = Folder(kept=True)
    argv = ["bash", "-c", "umask 022; exec bash /tests/test.sh"]
    done = shared().run(argv, env=env, folders=folders, cwd=task.image.workdir, settle=_SETTLE,
                        limits=limits)  # fmt: skip
    evidence = {"exit_status": done.code, "output": _end(done.stdout + done.stderr)}
    if done.status != "exited":
        return _unscored(f"the verifier was stopped: {_REASONS.get(done.status, done.status)}", evidence)
    reward, error = _reward(done.folders.get("/logs/verifier", {}))
    if reward is None:
        return _unscored(f"{error}; test.sh ended with status {done.code}", evidence)
    if done.left and reward > 0:
        return _unscored(
            f"{done.left} processes that the verifier started were still running when test.sh ended, and may have "
            "written the reward; test.sh must end what it starts", evidence,
        )  # fmt: skip
    return Verdict(reward, reward >= 1.0, _NAME, _VERSION, {"reward": reward, **evidence})


_REASONS = {
    "wall": "it was not done in its time (task.toml, verifier.timeout_sec)",
    "memory": "it used more memory than it may (env.memory_mb)",
    "output": "it printed more than it may",
    "disk": "it wrote more than it may (env.disk_mb)",
    "cpu": "it used more processor time than it may",
    "signal": "a signal ended it",
}


def ended(done: Result, seconds: float, disk_mb: int) -> str:
    """Return how an agent's command ended, in words."""
    if done.status == "exited":
        return f"exit status {done.code}"
    told = {
        "wall": f"stopped after {seconds:g} s", "memory": "stopped: it used too much memory",
        "output": "stopped: it printed too much", "cpu": f"stopped: it used more than {seconds:g} s of processor time",
        "disk": f"nothing that it changed was kept: its files are larger than {disk_mb} MB together",
        "signal": f"ended by signal {done.code}",
    }  # fmt: skip
    return told.get(done.status, done.status)


def _unscored(error: str, evidence: Mapping[str, Any]) -> Verdict:
    return Verdict(None, None, _NAME, _VERSION, evidence, error=error)


def _end(text: str) -> str:
    return text if len(text) <= _LONGEST else f"[{len(text) - _LONGEST} characters left out]\n{text[-_LONGEST:]}"


def _environment(task: HarborTask, now: Workspace) -> dict[str, str]:
    """Return the verifier's variables: folders that the agent could write come last on its PATH."""
    env = {**base_env(task.image), **_NO_PLUGINS, **task.verifier_env}
    parts = env["PATH"].split(":")
    own = [part for part in parts if not part.startswith("/") or split(part)[0] in now.folders]
    env["PATH"] = ":".join([part for part in parts if part not in own] + own)
    return env


def _without_configuration(start: Workspace, now: Workspace) -> dict[str, dict[str, Entry]]:
    """Return the folders with what configures test runners and interpreters as it was at the start."""
    found = {}
    for place, entries in now.folders.items():
        before = start.folders.get(place, {})
        kept = {name: entry for name, entry in entries.items() if not _configures(name)}
        restored = {name: entry for name, entry in before.items() if _configures(name) and _has_folder(name, kept)}
        found[place] = {**kept, **restored}
    return found


def _configures(name: str) -> bool:
    """Return whether a file, or a folder above it, is one that test runners or interpreters read by its name."""
    parts = PurePosixPath(name).parts
    return any(part in _CONFIGURES or part.lower().endswith(_METADATA) for part in parts)


def _has_folder(name: str, kept: Mapping[str, Entry]) -> bool:
    above = str(PurePosixPath(name).parent)
    return above == "." or (above in kept and kept[above].kind == "folder")


def _imported(task: HarborTask, env: Mapping[str, str]) -> set[str]:
    """Return the absolute paths of the folders that Python imports from, which may be the agent's."""
    workdir = task.image.workdir
    return {workdir, *(os.path.join(workdir, path) for path in env.get("PYTHONPATH", "").split(":"))}


def _moved(task: HarborTask, start: Workspace, now: Workspace, env: Mapping[str, str]) -> Iterator[str]:
    """Yield the folders that Python imports from in whose place there is now a link, or a file, such as an archive."""
    for path in _imported(task, env):
        place, name = now.resolved(path)
        before = start.resolved(path)
        kind = now.folders.get(place, {}).get(name)
        was = start.folders.get(before[0], {}).get(before[1])
        if (place, name) != before or (kind is not None and kind.kind == "file" and kind != was):
            yield path


def _shadows(task: HarborTask, start: Workspace, now: Workspace, env: Mapping[str, str]) -> Iterator[str]:
    """Yield new or changed modules that Python would import in place of its own, or of a test runner's."""
    for path in _imported(task, env):
        place, folder = now.resolved(path)
        entries, before = now.folders.get(place, {}), start.folders.get(place, {})
        for name, entry in entries.items():
            above, _, last = name.rpartition("/")
            module = last.partition(".")[0]
            if above != folder or (module not in sys.stdlib_module_names and module not in _RUNNERS):
                continue
            code = entry.kind == "link" or last.endswith((".py", ".pyc", ".so"))
            begins = (f"{name}/__init__.", f"{name}/python/", f"{name}/python.")[: 3 if module == "org" else 1]
            inside = [one for one in entries if one.startswith(begins)] if entry.kind == "folder" else []
            looked = [name, *inside] if code or inside else []
            if any(before.get(one) != entries[one] for one in looked):
                yield f"{place}/{name}"


def _reward(written: Mapping[str, Entry]) -> tuple[float | None, str]:
    """Return the reward that a verifier wrote, or why there is none."""
    values: dict[str, float] = {}
    for name, parse in (("reward.txt", _of_text), ("reward.json", _of_json)):
        if name not in written:
            continue
        data = written[name].data
        if not isinstance(data, bytes):
            return None, f"/logs/verifier/{name} is no file"
        if not written[name].mode & 0o200:
            return None, f"/logs/verifier/{name} was made read-only, so test.sh may not have written it"
        try:
            value = parse(data.decode("utf-8"))
        except (ValueError, OverflowError, RecursionError) as error:
            return None, f"/logs/verifier/{name}: {error}"
        if not 0.0 <= value <= 1.0:
            return None, f"/logs/verifier/{name}: got {value:g}, allowed: a reward in [0, 1]"
        values[name] = value
    if not values:
        return None, "the verifier wrote neither /logs/verifier/reward.txt nor reward.json"
    if len(set(values.values())) > 1:
        told = ", ".join(f"{name} {value:g}" for name, value in values.items())
        return None, f"the verifier wrote two rewards in /logs/verifier: {told}"
    return next(iter(values.values())), ""


def _of_text(text: str) -> float:
    try:
        value = float(text.strip())
    except ValueError:
        raise ValueError(f"got {text.strip()[:40]!r}, allowed: a number") from None
    return _finite(value)


def _of_json(text: str) -> float:
    told = json.loads(text)
    if isinstance(told, dict):
        if "reward" not in told and len(told) != 1:
            names = ", ".join(map(str, list(told)[:8])) or "none"
            raise ValueError(f"got the numbers {names}, allowed: one number, or one that is called reward")
        told = told["reward"] if "reward" in told else next(iter(told.values()))
    if isinstance(told, bool) or not isinstance(told, int | float):
        raise ValueError(f"got {told!r:.40}, allowed: a number")
    return _finite(float(told))


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"got {value}, allowed: a number")
    return value
