"""Operating-system tasks of AgentBench (Liu et al., ICLR 2024): `env=agentbench:os env.checkout=PATH`.

Descriptions, scripts and answers are those of the user's checkout (THUDM/AgentBench at 578c5e9f:
`data/os_interaction/`); the rules are those of `src/server/tasks/os_interaction/`, written anew. Commands run in the
sandbox, not in a container: a task is played where its files can be made there and its own reference solution passes
its own check.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from offline_agent.envs.base import SPLITS, Environment, ToolError, twin
from offline_agent.envs.task_files import divided
from offline_agent.errors import ConfigError, EnvironmentFault
from offline_agent.records import Message, Verdict, call_message
from offline_agent.sandbox import Limits, Result, SandboxError, shared
from offline_agent.sandbox.calls import place_fault
from offline_agent.store.files import read_text
from offline_agent_environments.adapters.harbor.dockerfile import SYSTEM, TOP
from offline_agent_environments.adapters.harbor.env import check_level, limits_of
from offline_agent_environments.adapters.harbor.workspace import HOME, Workspace
from offline_agent_environments.task_files import json_file

_ROOT = re.compile(r"(?<![\w.])/root(?![\w.-])")  # may hold the interpreter of the machine, so HOME takes its place
_ENV = {"PATH": SYSTEM, "HOME": HOME, "LANG": "C.UTF-8"}
_LIMITS = limits_of(15, 1024, 64)  # a container of AgentBench's has 1 GiB
_PATIENT = replace(_LIMITS, wall_seconds=60.0)  # a verdict must not depend on the load of the machine
_SHOWN = 800  # characters of an output
_RUN = {"bash": ("bash", "-c"), "python": ("python3", "-I", "-c")}
GOES_ON = "it needs a process, or a shell, that goes on between commands"
Script = tuple[str, ...]
"""The program that runs a script, its options and the script."""


@dataclass(frozen=True, eq=False)
class SystemTask:
    """A task as its file has it.

    Attributes:
        name: Its set, its file and its place there, from 0.
        description: Text for the agent.
        init: Scripts that make its files.
        goes_on: It has a script whose process, or variables, stay.
        match: The answer; None = scripts judge it.
        check: Scripts that judge: each gets the answer and the outputs of those before it.
        example: The reference solution; None = there is none.
        answers: What the reference solution prints is the answer.
    """

    name: str
    description: str
    init: tuple[Script, ...]
    goes_on: bool
    match: str | None
    check: tuple[Script, ...]
    example: Script | None
    answers: bool


def tasks_class(checkout: Path) -> type:
    """Return the class of a checkout's tasks; raises ConfigError where they cannot be read, or there is no sandbox."""
    check_level()
    data = checkout / "data" / "os_interaction" / "data"
    standard = [path for number in range(1, 8) for path in sorted((data / str(number)).glob("*.json"))]

    files = {"dev": [data / "dev.json"], "standard": standard}
    sets = {name: [task for path in paths for task in _tasks(path)] for name, paths in files.items()}
    found = {task.name: task for tasks in sets.values() for task in tasks}
    ids = {name: [{"task_id": task.name} for task in tasks] for name, tasks in sets.items()}
    splits = {split: divided(split, "dev", "standard", lambda name, _: ids[name]) or [] for split in SPLITS}
    version = hashlib.blake2b(repr(found).encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    return type("OS", (_OS,), {"_found": found, "_splits": splits, "version": version, "name": "agentbench_os"})


def _tasks(path: Path) -> list[SystemTask]:
    """Return the tasks of a file; raises ConfigError where it is none of AgentBench's."""
    folder = "dev" if path.stem == "dev" else path.parent.name
    scripts = path.parents[1 if folder == "dev" else 2] / "scripts" / folder

    def script(given: Any) -> Script:
        given = {"code": given} if isinstance(given, str) else given
        code = read_text(scripts / given["file"]) if "file" in given else given["code"]
        return (*_RUN[given.get("language", "bash")], _ROOT.sub(HOME, code))

    def listed(given: Any) -> list[Any]:
        return given if isinstance(given, list) else [given]

    def task(row: Mapping[str, Any], number: int) -> SystemTask:
        create, judged = row.get("create"), row["evaluation"]
        if not isinstance(judged.get("match"), str | None):
            raise ValueError(f"evaluation.match: got {judged['match']!r}, allowed: a text")
        check = listed(judged.get("check", []))
        example = script(judged["example"]) if check and "example" in judged else None
        return SystemTask(
            f"{folder}-{path.stem}-{number}",
            _ROOT.sub(HOME, row["description"]),
            # AgentBench takes nothing from a list
            tuple(script(one) for one in listed(create.get("init", []))) if isinstance(create, dict) else (),
            "start" in row,
            judged.get("match"),
            tuple(example if one is None and example else script(one) for one in check),
            example,
            None in check,
        )

    found = []
    for number, row in enumerate(listed(json_file(path, "env.checkout"))):
        try:
            found.append(task(row, number))
        except (LookupError, ValueError, TypeError, AttributeError, OSError) as error:
            told = f"env.checkout: {path}, task {number}: {error!r}; allowed: AgentBench's own files"
            raise ConfigError(told) from error
    return found


class _OS(Environment):
    """A shell as root, a question about the files or a change that is to be made; `tasks_class` makes the class.

    Args:
        checkout: The folder of a checkout of AgentBench.
    """

    system_prompt = (
        "You work in a shell on Linux to answer a question or to make a change. bash_action runs a script without"
        " input; each begins in /agent with a new shell, files stay. Call answer_action with the answer alone, such as"
        " one number, or finish_action once a change is made; either ends the task."
    )
    one_thread = False
    runs_code = True
    max_steps = 8
    hindsight = "another answer, or another change, has no wording"
    _answers_differ: ClassVar[bool] = False
    _found: ClassVar[Mapping[str, SystemTask]]
    _splits: ClassVar[Mapping[str, list[dict[str, Any]]]]

    def __init__(self, checkout: str) -> None:
        self._task: SystemTask | None = None
        self._now, self._answer = Workspace({}), ""

    @classmethod
    def tasks(cls, split: str) -> Iterator[dict[str, Any]]:
        """Yield the ids of the tasks that can be played: the numbered sets are the test split, `dev` is divided."""
        yield from (row for row in cls._splits[split] if fault(cls._found[row["task_id"]]) is None)

    def reset(self, task_id: str) -> str:
        """Make a task's files and return what is asked.

        Args:
            task_id: The id of the task: its set, its file and its place there, from 0.
        """
        task = self._found[task_id]
        begun = _begun(task)
        if isinstance(begun, str):
            raise EnvironmentFault(f"agentbench:os: task {task_id}: {begun}")
        self._task, self._now, self._answer, self.terminated = task, begun, "", False
        return task.description

    def bash_action(self, script: str) -> str:
        """Execute bash code to perform an operation in the Linux environment.

        Args:
            script: The bash script to be executed.
        """
        if "\0" in script:
            raise ToolError("script: allowed: text without null characters")
        self._now, done = _after(self._now, ("bash", "-c", 'exec bash -c "$1" 2>&1', "bash", script), _LIMITS)
        text = done.stdout + done.stderr
        if done.status not in ("exited", "signal"):
            text += f"\n[stopped: {done.status}]"
        if not text:
            return "The output of the OS is empty."
        shown = text if len(text) <= _SHOWN else f"{text[:780]}\n[truncated because the output is too long]"
        return f"The output of the OS:\n\n{shown}"

    def finish_action(self, thought: str) -> str:
        """Indicate that the task has been finished; this ends it.

        Args:
            thought: The thought or reason indicating the task is finished.
        """
        return self.answer_action(thought)

    def answer_action(self, answer: str) -> str:
        """Provide the answer to the question; this ends the task.

        Args:
            answer: The answer to the question.
        """
        self._answer, self.terminated = answer, True
        return "handed in"

    def get_reward(self) -> Verdict:
        """Return 1 where AgentBench's check passes, or the answer matches; nothing handed in earns 0."""
        assert self._task is not None
        success = self.terminated and _passes(self._task, self._now, self._answer)
        return Verdict(float(success), success, "agentbench.os", self.version, {"answer": self._answer})

    @property
    def fingerprint(self) -> str:
        """A hash of the task, the files and the answer."""
        state = (self._task and self._task.name, self._now.digest, self.terminated, self._answer)
        return hashlib.sha256(repr(state).encode("utf-8", "surrogatepass")).hexdigest()

    @classmethod
    def demonstrate(cls, task: Mapping[str, Any], messages: Sequence[Message], rng: Random, noise: float) -> Message:
        """Return the reference script, then its output as the answer; with noise half of it, or a wrong answer."""
        known, wrong = cls._found[task["task_id"]], rng.random() < noise
        tried = [message for message in messages if message["role"] == "tool"]
        if known.example and not tried:
            lines = known.example[-1].splitlines(keepends=True)
            return call_message("bash_action", {"script": "".join(lines[: len(lines) // 2] if wrong else lines)})
        if known.match is None and not known.answers:
            return call_message("finish_action", {"thought": "It is done."})
        answer = known.match if known.match is not None else str(tried[-1]["content"]).partition("\n\n")[2]
        return call_message("answer_action", {"answer": "0" if wrong else answer})

    def __deepcopy__(self, memo: dict[int, Any]) -> _OS:
        return twin(self)  # all of it is replaced, never changed


def _after(
    now: Workspace, argv: Sequence[str], limits: Limits = _PATIENT, settle: float = 0.0
) -> tuple[Workspace, Result]:
    """Return the files after a program, and how it ended; `settle`: see `Sandbox.run`."""
    began, now = time.time_ns(), now.with_folder(HOME)
    try:
        done = shared().run(list(argv), env=_ENV, folders=now.kept(), cwd=HOME, limits=limits, settle=settle)
    except SandboxError as error:
        raise EnvironmentFault(f"agentbench:os: {error}") from error
    return now.after(done.folders, began) if done.folders else now, done


@lru_cache(maxsize=1024)
def _begun(task: SystemTask) -> Workspace | str:
    """Return the files that a task begins with, or why it cannot be played."""
    if task.goes_on:
        return GOES_ON
    texts = [task.description, *(one[-1] for one in (*task.init, *task.check))]
    named = {f"/{top}" for text in texts for top in TOP.findall(text)} | {HOME, "/tmp", "/home", "/var"}
    places: list[str] = []
    for place in sorted(named):
        if place_fault(place, places) is None:
            places.append(place)
    now = Workspace({place: {} for place in places})
    now = now.with_folder("/var/log") if "/var" in places else now
    for script in task.init:
        now, done = _after(now, script, settle=0.1)
        _in_time(task, done)
        if done.left:
            return GOES_ON
        if done.code != 0:
            return f"its files cannot be made: {done.stderr[-200:].strip()} (exit status {done.code})"
    return now


@lru_cache(maxsize=1024)
def fault(task: SystemTask) -> str | None:
    """Return why a task cannot be played here; None where its own reference solution, if it has one, is accepted."""
    begun = _begun(task)
    if isinstance(begun, str):
        return begun
    if task.example:
        now, done = _after(begun, task.example)
        _in_time(task, done)
        if not _passes(task, now, done.stdout):
            return f"its check refuses its own reference solution, which printed {(done.stdout + done.stderr)[-200:]!r}"
    return None


def _in_time(task: SystemTask, done: Result) -> None:
    """Raise EnvironmentFault where a script of the task was stopped for its time: that tells nothing about the task."""
    if done.status == "wall":
        raise EnvironmentFault(
            f"agentbench:os: task {task.name}: its own script took more than {_PATIENT.wall_seconds:g} s; whether it "
            "can be played here is not known: start again when the machine has less to do"
        )


def _passes(task: SystemTask, now: Workspace, answer: str) -> bool:
    """Return whether an answer matches, or every script of the check ends with 0: each gets the outputs before it."""
    if task.match is not None:
        return answer.strip() == task.match
    given = [answer]
    for script in task.check:
        now, done = _after(now, (*script, *(["--"] if script[0] == "bash" else []), *given))
        if done.code != 0:
            return False
        given.append(done.stdout)
    return True
