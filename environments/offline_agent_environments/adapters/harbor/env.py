"""The environment: a shell in a workspace of a task's files; its own tests judge what the agent leaves."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from offline_agent.envs.base import Environment, ToolError, twin
from offline_agent.errors import ConfigError, EnvironmentFault
from offline_agent.records import Message, Verdict
from offline_agent.sandbox import Limits, SandboxError, shared
from offline_agent.sandbox.trust import STRENGTH
from offline_agent_environments.adapters.harbor import expert, start, verifier
from offline_agent_environments.adapters.harbor import tasks as folders
from offline_agent_environments.adapters.harbor.workspace import Workspace

_SHOWN = 3000  # characters of the beginning and of the end of an output
_LONGEST = 100_000


class HarborEnvironment(Environment):
    """Tasks of a folder; `harbor.adapt` makes the classes.

    Args:
        splits: Split → names of tasks, or patterns; None = folders `train`, `validation`, `test`, else a hash.
        images: Names of Docker images whose programs are all on this machine.
        unplayable: What becomes of a folder where some tasks cannot be played here: `refuse` or `leave_out` them.
        seconds: Longest time of a command, whatever it asks for.
        memory_mb: Memory of a command and of the verifier.
        disk_mb: Size of each folder that a command may write, and of all that is kept.
        demonstrate: See `envs.base.environment_class`.
    """

    system_prompt = (
        "You work in a shell on Linux, without network. run carries out a command with bash; each command begins in the"
        " working folder with a new shell, files stay. submit ends the task: hidden tests then judge the files."
    )
    one_thread: ClassVar[bool] = False
    runs_code: ClassVar[bool] = True
    _answers_differ: ClassVar[bool] = False
    _found: ClassVar[Mapping[str, tuple[Path, str | None]]]
    _images: ClassVar[frozenset[str]]
    _splits: ClassVar[Mapping[str, Sequence[str]] | None]

    def __init__(
        self,
        splits: dict[str, list[str]] | None = None,
        images: list[str] | None = None,
        unplayable: Literal["refuse", "leave_out"] = "refuse",
        seconds: int = 60,
        memory_mb: int = 2048,
        disk_mb: int = 128,
        demonstrate: str | None = None,
    ) -> None:
        for name, value in (("seconds", seconds), ("memory_mb", memory_mb), ("disk_mb", disk_mb)):
            if value < 1:
                raise ConfigError(f"env.{name}: got {value}, allowed: at least 1")
        check_level()
        self._seconds, self._memory, self._disk = seconds, memory_mb, disk_mb
        self._task: folders.HarborTask | None = None
        self._begun = self._now = Workspace({})

    @classmethod
    def tasks(cls, split: str, memory_mb: int = 2048, disk_mb: int = 128) -> Iterator[dict[str, Any]]:
        """Yield the tasks of a split.

        Raises:
            ConfigError: A command of a Dockerfile fails in the sandbox, or the split has no task.
        """
        names = folders.in_split(split, cls._found, cls._splits)
        if not names:
            raise ConfigError(
                f"env: none of the {len(cls._found)} tasks is in the split {split!r} (by a hash of the name, where no "
                f"folder says so); name them: env.splits={{{split}: [NAME]}}"
            )
        for name in names:
            _begin(cls._found[name][0], cls._images, memory_mb, disk_mb)
            yield {"task_id": name}

    def reset(self, task_id: str) -> str:
        """Begin with the files that the Dockerfile makes.

        Args:
            task_id: Name of the task's folder.
        """
        if task_id not in self._found:
            raise EnvironmentFault(f"harbor: the folder has no task {task_id!r}")
        try:
            self._task, self._begun = _begin(self._found[task_id][0], self._images, self._memory, self._disk)
        except ConfigError as error:
            raise EnvironmentFault(f"harbor: {error}") from error
        self._now, self.terminated = self._begun, False
        return f"{self._task.instruction.strip()}\n\nThe working folder is {self._task.image.workdir}."

    def run(self, command: str, timeout: int = 30) -> str:
        """Carry out a command with bash in the working folder. Processes that it leaves behind are ended.

        Args:
            command: The command; it may have several lines
            timeout: Seconds that it may take; there is a longest time
        """
        if self.terminated or self._task is None:
            raise ToolError("the task was submitted; the episode is over.")
        if timeout < 1:
            raise ToolError(f"timeout: got {timeout}, allowed: 1 to {self._seconds} seconds.")
        timeout = min(timeout, self._seconds)
        if "\0" in command or len(command) > _LONGEST:
            raise ToolError(f"command: allowed: text of at most {_LONGEST} characters, without null characters.")
        argv = ["bash", "-c", 'umask 022; exec bash -c "$1" 2>&1', "bash", command]
        began = time.time_ns()
        now = self._now.with_folder(self._task.image.workdir)  # a command may have removed it
        try:
            done = shared().run(
                argv, env=folders.base_env(self._task.image), folders=now.kept(), cwd=self._task.image.workdir,
                limits=limits_of(timeout, self._memory, self._disk),
            )  # fmt: skip
        except SandboxError as error:
            raise EnvironmentFault(f"harbor: {error}") from error
        if done.folders:
            self._now = self._now.after(done.folders, began)
        text = _shortened(done.stdout + done.stderr)
        return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}[{_ended(done, timeout, self._disk)}]"

    def submit(self) -> str:
        """End the task; the tests judge the files as they are."""
        if self.terminated:
            raise ToolError("the task was submitted; the episode is over.")
        self.terminated = True
        return "Submitted."

    def get_reward(self) -> Verdict:
        """Return the verdict of the task's tests on the files as they are."""
        assert self._task is not None
        try:
            return _verdict(self._task, self._begun, self._now, self._memory, self._disk)
        except SandboxError as error:
            raise EnvironmentFault(f"harbor: {error}") from error

    @property
    def fingerprint(self) -> str:
        """Hash of the task, the files and of whether they were submitted."""
        name = self._task.name if self._task else ""
        return hashlib.sha256(f"{name} {self._now.digest} {self.terminated}".encode()).hexdigest()

    @classmethod
    def demonstrate(
        cls, task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float
    ) -> Message:
        """Return the next call of an agent that knows the solution, or with `noise` one that errs."""
        return expert.next_turn(folders.read(cls._found[task["task_id"]][0], cls._images), messages, rng, noise)

    def __deepcopy__(self, memo: dict[int, Any]) -> HarborEnvironment:
        return twin(self)  # all of it is replaced, never changed


_ended = verifier.ended


def check_level() -> None:
    """Raise ConfigError where the sandbox cannot show a folder at a place of its own."""
    try:
        level, refusals = shared().level, shared().refusals
    except SandboxError as error:
        raise ConfigError(f"env: {error}") from error
    if level == "command" or STRENGTH[level] < STRENGTH["namespaces"]:
        told = "; ".join(f"{name}: {why}" for name, why in refusals.items())
        raise ConfigError(
            f"env: its tasks need a sandbox of level bubblewrap or namespaces, for folders such as /app and /tests; "
            f"here it is {level!r}{f' ({told})' if told else ''}. Install bubblewrap, or leave out sandbox.command"
        )


def limits_of(seconds: float, memory_mb: int, disk_mb: int) -> Limits:
    """Return the limits of a command."""
    return Limits(
        cpu_seconds=max(1, int(seconds)), wall_seconds=float(seconds), memory_mb=memory_mb, processes=128, files=512,
        output_kb=1024, disk_mb=disk_mb,
    )  # fmt: skip


def _shortened(text: str) -> str:
    if len(text) <= 2 * _SHOWN:
        return text
    left = len(text) - 2 * _SHOWN
    return f"{text[:_SHOWN]}\n[{left} characters left out]\n{text[-_SHOWN:]}"


@lru_cache(maxsize=256)
def _begin(folder: Path, images: frozenset[str], memory_mb: int, disk_mb: int) -> tuple[folders.HarborTask, Workspace]:
    """Return a task and the workspace that it begins with."""
    task = folders.read(folder, images)
    return task, start.built(task, limits_of(_BUILD_SECONDS, memory_mb, disk_mb))


_BUILD_SECONDS = 120.0


_verdicts: dict[tuple[str, ...], Verdict] = {}
_MOST = 20_000


def _verdict(task: folders.HarborTask, begun: Workspace, now: Workspace, memory_mb: int, disk_mb: int) -> Verdict:
    """Return the verdict; that of the same files is asked for once, where it has a score."""
    key = (str(task.folder), begun.digest, now.digest, f"{memory_mb} {disk_mb}")
    found = _verdicts.get(key)
    if found is None:
        limits = limits_of(task.seconds, memory_mb, disk_mb)
        # a program that computes for ever fails its test, and the verifier goes on
        half = replace(limits, cpu_seconds=max(1, int(task.seconds / 2)))
        found = verifier.verdict(task, begun, now, half)
        if found.score is not None:
            if len(_verdicts) >= _MOST:
                _verdicts.clear()
            _verdicts[key] = found
    return found
