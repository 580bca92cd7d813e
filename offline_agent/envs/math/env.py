"""The environment: an interpreter whose variables last within an episode, and one answer; and its scripted solver."""

from __future__ import annotations

import copy
import hashlib
import os
import random
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from offline_agent.envs.base import Environment, ToolError, twin
from offline_agent.envs.math.problems import problems, read_file
from offline_agent.envs.task_files import divided
from offline_agent.errors import EnvironmentFault
from offline_agent.judges.verifiers import symbolic
from offline_agent.records import Message, Verdict, call_message
from offline_agent.sandbox import Limits, SandboxError, Session, shared

LIMITS = Limits(cpu_seconds=5, wall_seconds=20.0, output_kb=64)
_ALIVE = 24
_SHOWN = 2000


class Notebook:
    """An interpreter; for one thread at a time. `copy.deepcopy` copies its state.

    Attributes:
        cells: The cells that made its state, with a hash of what each printed.
    """

    def __init__(self) -> None:
        self.cells: tuple[tuple[str, str], ...] = ()
        self._session: Session | None = None
        self._process = os.getpid()
        self._lock = threading.Lock()

    def run(self, code: str) -> str:
        """Run a cell; return what it printed, the value of its last expression, and its error.

        Raises:
            EnvironmentFault: The sandbox does not work, or earlier cells did not repeat in a new process.
        """
        with self._lock:
            try:
                session = self._running()
                printed, lives = _reply_text(session.ask({"op": "cell", "code": code}))
            except SandboxError as error:
                self._end()
                raise EnvironmentFault(f"math: {error}") from error
            if lives:
                self.cells = (*self.cells, (code, _hash(printed)))
                _used(self)
            else:
                self._end()
                self.cells = ()
                printed += "\nIts variables are lost."
        return printed

    def close(self) -> None:
        """End its process; the state stays."""
        with self._lock:
            self._end()

    def close_unless_busy(self) -> bool:
        """End its process, unless it is running a cell; return whether it was ended."""
        if free := self._lock.acquire(blocking=False):
            self._end()
            self._lock.release()
        return free

    def __deepcopy__(self, memo: dict[int, Any]) -> Notebook:
        twin = Notebook()
        twin.cells = self.cells
        return twin

    def _leave_to_parent(self) -> None:
        """Forget a session that this process got by a fork: it is the parent's, which goes on with it."""
        if self._process != os.getpid():
            _inherited.append(self._session)  # or else it would be closed with the last reference
            self._process, self._session = os.getpid(), None

    def _running(self) -> Session:
        self._leave_to_parent()
        if self._session is not None and not self._session.ended:
            return self._session
        session = shared().session(limits=LIMITS)
        for number, (code, printed) in enumerate(self.cells):
            if _hash(_reply_text(session.ask({"op": "cell", "code": code}))[0]) != printed:
                session.close()
                raise EnvironmentFault(f"math: cell {number + 1} printed something else when it was run again")
        self._session = session
        return session

    def _end(self) -> None:
        self._leave_to_parent()
        if self._session is not None:
            self._session.close()
            self._session = None


_inherited: list[Session | None] = []
"""Sessions that a fork brought; they are kept, since the parent goes on with them."""
_alive: dict[int, Notebook] = {}
"""The notebooks that have a process, the one that was used longest ago first: it loses it when there are too many."""
_alive_lock = threading.Lock()


def _used(notebook: Notebook) -> None:
    with _alive_lock:
        _alive.pop(id(notebook), None)
        _alive[id(notebook)] = notebook
        for key, other in list(_alive.items())[: max(0, len(_alive) - _ALIVE)]:
            if other is not notebook and other.close_unless_busy():
                del _alive[key]


def _reply_text(reply: dict[str, Any]) -> tuple[str, bool]:
    """Return a cell's text, and whether the interpreter lives."""
    text = str(reply["stdout"]) + str(reply["stderr"])
    if len(text) > _SHOWN:
        text = f"{text[:_SHOWN]}\n[cut here: {_SHOWN} of {len(text)} characters shown]\n"
    body = reply["body"]
    if body is None:
        reasons = {
            "cpu": f"it used {LIMITS.cpu_seconds} s of CPU time", "wall": f"it took {LIMITS.wall_seconds:g} s",
            "memory": f"it used {LIMITS.memory_mb} MiB", "output": f"it printed more than {LIMITS.output_kb} KiB",
        }  # fmt: skip
        return f"The interpreter ended: {reasons.get(reply['status'], 'the program ended it')}.", False
    if isinstance(body, dict) and "raised" in body:
        where = f" ({body['where']})" if body.get("where") else ""
        return f"{text}{body['raised']}: {body['text']}{where}".strip(), True
    return text.strip() or "(no output)", True


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


_NUMBER = re.compile(r"-?\d+(?:/\d+|\.\d+)?")
_PART = re.compile(r"\d+|//|[-+*/]")
_CONFUSED = {"+": "-", "-": "+", "*": "+", "/": "*", "//": "*"}


def next_turn(task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float) -> Message:
    """Return the solver's next message: the known calculation cell by cell, then the answer.

    With probability `noise`, in [0, 1], a cell has an error; the last thing printed is then the answer.
    """
    calls = (made["function"]["name"] for message in messages for made in message.get("tool_calls") or ())
    ran = sum(name == "python" for name in calls)
    cells = task["cells"]
    if ran < len(cells):
        cell = cells[ran]
        wrong = noise > 0 and rng.random() < noise
        return call_message("python", {"code": miscalculated(cell, rng) if wrong else cell})
    if noise <= 0:
        return call_message("answer", {"value": task["gold"]})
    printed = str(messages[-1].get("content") or "") if ran else ""
    numbers = _NUMBER.findall(printed.splitlines()[-1]) if printed.strip() else []
    if cells and numbers:
        return call_message("answer", {"value": numbers[-1]})
    return call_message("answer", {"value": task["gold"] if rng.random() >= noise else f"{task['gold']}+1"})


def miscalculated(cell: str, rng: random.Random) -> str:
    """Return a calculation with one number or operator changed; as it is where it has none."""
    parts = list(_PART.finditer(cell))
    if not parts:
        return cell
    part = rng.choice(parts)
    wrong = _CONFUSED.get(part[0]) or str(int(part[0]) + 1)
    return cell[: part.start()] + wrong + cell[part.end() :]


_LONGEST_CELL, _LONGEST_ANSWER = 20_000, 300


class Math(Environment):
    """Mathematical problems; the interpreter runs in the sandbox, the answer is judged by symbolic equality.

    Args:
        path: A file of GSM8K's or MATH's rows, divided into splits; None = the generated problems.
        test_path: Such a file that is the whole test split.
    """

    name = "math"
    system_prompt = (
        "Solve the problem. python runs code in an interpreter that keeps its variables and shows what is printed and"
        " the value of the last expression. Give the result with answer: a number or an expression alone."
    )
    one_thread: ClassVar[bool] = False
    runs_code: ClassVar[bool] = True
    _answers_differ: ClassVar[bool] = False

    def __init__(self, path: str | None = None, test_path: str | None = None) -> None:
        self._question = self._gold = ""
        self._answer: str | None = None
        self._notebook = Notebook()

    @classmethod
    def tasks(cls, split: str, path: str | None = None, test_path: str | None = None) -> Iterable[dict[str, Any]]:
        """Yield the problems of a split.

        Raises:
            ConfigError: A file cannot be read, or is of another format.
        """
        of_file = divided(split, path, test_path, read_file)
        return problems(split) if of_file is None else of_file

    def reset(self, question: str, gold: str, **columns: Any) -> str:
        """Pose a problem.

        Args:
            question: The first observation.
            gold: The right answer.
            **columns: Other columns of a data set, such as the calculation. Not used.
        """
        self._notebook.close()
        self._question, self._gold, self._answer = question, gold, None
        self._notebook, self.terminated = Notebook(), False
        return question

    def python(self, code: str) -> str:
        """Run code in the interpreter.

        Args:
            code: Python code, such as 12 * 7.
        """
        self._check_open()
        if len(code) > _LONGEST_CELL:
            raise ToolError(f"code: got {len(code)} characters, allowed: at most {_LONGEST_CELL}.")
        return self._notebook.run(code)

    def answer(self, value: str) -> str:
        """Give the result and end the episode.

        Args:
            value: The result alone, such as 84.
        """
        self._check_open()
        if len(value) > _LONGEST_ANSWER:
            raise ToolError(f"value: got {len(value)} characters, allowed: at most {_LONGEST_ANSWER}.")
        self._answer, self.terminated = value, True
        return "Answered."

    def get_reward(self) -> Verdict:
        """Return 1 where the answer equals the right one, else 0; 0 without an answer."""
        if self._answer is None:
            evidence = {"answer": None, "gold": self._gold}
            return Verdict(0.0, False, "symbolic", str(symbolic.version), evidence)  # type: ignore[attr-defined]
        return symbolic(self._answer, self._gold)

    @property
    def fingerprint(self) -> str:
        """Hash of the problem, the cells with what they printed, and the answer."""
        state = (self._question, self._gold, self._notebook.cells, self._answer)
        return hashlib.sha256(repr(state).encode()).hexdigest()

    @classmethod
    def demonstrate(
        cls, task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float
    ) -> Message:
        """Return the next call of a solver who knows the calculation, or with `noise` one that errs."""
        return next_turn(task, messages, rng, noise)

    def __deepcopy__(self, memo: dict[int, Any]) -> Math:
        other = twin(self)
        other._notebook = copy.deepcopy(self._notebook)
        return other

    def __enter__(self) -> Math:
        return self

    def __exit__(self, *error: object) -> None:
        self._notebook.close()

    def _check_open(self) -> None:
        if self.terminated:
            raise ToolError("the answer was given; the episode is over.")
