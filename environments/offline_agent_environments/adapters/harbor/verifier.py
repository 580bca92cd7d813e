"""The verifier of a task: its tests run on a copy of the workspace after the agent ended, and write the reward.

The tests lie in the sandbox for this call alone, read-only, and /logs/verifier is made for it. It starts with no
process of the agent, a PATH whose folders of the workspace come last, and the home folder that the task began with.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from offline_agent.records import Verdict
from offline_agent.sandbox import Entry, Folder, Limits, Result, shared
from offline_agent_environments.adapters.harbor.tasks import HarborTask, base_env
from offline_agent_environments.adapters.harbor.workspace import HOME, Workspace, split
from offline_agent_environments.runner_files import configures, shadows

_NAME, _VERSION = "harbor_tests", "2"
_NO_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # whose modules the agent may put into its folders
_SETTLE = 0.5  # seconds that processes of the verifier get to end
_LONGEST = 2000  # characters of the verifier's output that are kept


def verdict(task: HarborTask, start: Workspace, now: Workspace, limits: Limits) -> Verdict:
    """Return the verdict on a workspace; 0 where the tests give no reward, but do for the files of the start.

    Args:
        task: The task.
        start: The workspace that it began with.
        now: The workspace that the agent left.
        limits: Of the verifier.

    Raises:
        SandboxError: The sandbox does not work.
    """
    found = _of(task, start, now, limits)
    if found.score is not None or _of(task, start, start, limits).score is None:
        return found
    return Verdict(0.0, False, _NAME, _VERSION, {**found.evidence, "fault": found.error})


def _of(task: HarborTask, start: Workspace, now: Workspace, limits: Limits) -> Verdict:
    now = now.with_folder(task.image.workdir)
    env = _environment(task, now)
    if moved := sorted(_moved(task, start, now, env)):
        told = ", ".join(moved[:5])
        return _unscored(f"{told}: the verifier works there or imports from there, and it is no longer that folder", {})
    folders = {place: Folder(entries) for place, entries in _counted(task, start, now, env).items()}
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


def _counted(
    task: HarborTask, start: Workspace, now: Workspace, env: Mapping[str, str]
) -> dict[str, dict[str, Entry]]:
    """Return the folders with what configures test runners and Python, or shadows modules, as it was at the start."""
    found = {}
    imported = [now.resolved(path) for path in _imported(task, env)]
    for place, entries in now.folders.items():
        before = start.folders.get(place, {})
        links = {name for name, entry in entries.items() if entry.kind == "link"}
        names = [name for name, entry in entries.items() if entry.kind != "folder"]
        tops = {top for other, folder in imported if other == place for top in shadows(names, folder, links)}

        def own(name: str, tops: set[str] = tops) -> bool:
            return configures(name) or not tops.isdisjoint({name, *map(str, PurePosixPath(name).parents)})

        kept = {name: entry for name, entry in entries.items() if not own(name)}
        restored: dict[str, Entry] = {}
        for name in sorted(before):
            if own(name) and _has_folder(name, {**kept, **restored}):
                restored[name] = before[name]
        found[place] = {**kept, **restored}
    return found


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
