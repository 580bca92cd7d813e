"""The workspace that a task begins with: the steps of its Dockerfile, carried out in the sandbox."""

from __future__ import annotations

import time
from pathlib import PurePosixPath

from offline_agent.errors import ConfigError
from offline_agent.sandbox import Entry, Limits, shared
from offline_agent_environments.adapters.harbor.dockerfile import Image, Step
from offline_agent_environments.adapters.harbor.tasks import HarborTask, base_env
from offline_agent_environments.adapters.harbor.workspace import (
    BEGAN,
    HOME,
    Workspace,
    of_disk,
    split,
    tree,
    with_parents,
)

_FOLDER = Entry("folder", 0o755, BEGAN, None)


def built(task: HarborTask, limits: Limits) -> Workspace:
    """Return the workspace.

    Args:
        task: The task.
        limits: Of each command.

    Raises:
        ConfigError: A command of the Dockerfile fails in the sandbox, or a file to copy cannot be read.
        SandboxError: The sandbox does not work.
    """
    folders: dict[str, dict[str, Entry]] = {place: {} for place in sorted(task.image.places)}
    assert HOME in folders
    for step in task.image.steps:
        _make(folders, step.workdir)
        if step.run:
            folders = _run(task, folders, step, limits)
        elif step.target:
            try:
                _copy(folders, step)
            except OSError as error:
                told = f"{error.filename}: {error.strerror}"
                raise ConfigError(f"task {task.name}: environment/Dockerfile, line {step.line}: {told}") from error
    _make(folders, task.image.workdir)
    settled = {
        place: {name: e._replace(changed=BEGAN) for name, e in with_parents(entries).items()}
        for place, entries in folders.items()
    }
    return Workspace(settled)


def _run(
    task: HarborTask, folders: dict[str, dict[str, Entry]], step: Step, limits: Limits
) -> dict[str, dict[str, Entry]]:
    now = Workspace({place: with_parents(entries) for place, entries in folders.items()})
    env = {**base_env(Image()), **step.env}
    began = time.time_ns()
    done = shared().run(step.run, env=env, folders=now.kept(), cwd=step.workdir, limits=limits)
    if not done.ok:
        said = (done.stderr.strip() or done.stdout.strip() or "it printed nothing")[-300:]
        ended = f"exit status {done.code}" if done.status == "exited" else f"it was stopped ({done.status})"
        raise ConfigError(
            f"task {task.name}: environment/Dockerfile, line {step.line}: {step.said[:80]}: {ended} in the sandbox, "
            f"which has no network and can write {', '.join(sorted(folders))} alone: {said}"
        )
    return {place: dict(entries) for place, entries in now.after(done.folders, began).folders.items()}


def _copy(folders: dict[str, dict[str, Entry]], step: Step) -> None:
    place, target = split(step.target)
    for source in step.sources:
        if source.is_dir():
            copied = {"": _FOLDER, **tree(source)}
        else:
            inside = step.into or folders[place].get(target, Entry("file", 0, 0, b"")).kind == "folder" or not target
            copied = {source.name if inside else "": of_disk(source.resolve())}  # in environment/: checked before
        for name, entry in copied.items():
            path = str(PurePosixPath(target, name)) if target or name else ""
            if path not in ("", "."):
                mode = entry.mode if step.mode is None or entry.kind != "file" else step.mode
                folders[place][path] = entry._replace(mode=mode)


def _make(folders: dict[str, dict[str, Entry]], path: str) -> None:
    place, name = split(path)
    if name:
        folders[place].setdefault(name, _FOLDER)
