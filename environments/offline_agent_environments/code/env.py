"""The environment: write a program, run the shown tests, submit; hidden tests judge it."""

from __future__ import annotations

import ast
import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Literal

from offline_agent.envs.base import Environment, ToolError
from offline_agent.envs.task_files import divided
from offline_agent.errors import EnvironmentFault
from offline_agent.judges.code import Outcome, TestRun, unit_tests
from offline_agent.records import Message, Verdict, call_message
from offline_agent.sandbox import SandboxError
from offline_agent_environments.code.data import read_file
from offline_agent_environments.code.families import problems
from offline_agent_environments.mutation import mutated


def next_turn(task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float) -> Message:
    """Return the next assistant message.

    Args:
        task: `reset`'s arguments.
        messages: The conversation so far.
        rng: The source of its errors.
        noise: Probability, in [0, 1], that a program has an error, and that it is submitted without being tested.
    """
    last = ""
    for message in messages:
        for made in message.get("tool_calls") or ():
            last = made["function"]["name"]
    heard = str(messages[-1].get("content") or "") if messages else ""
    mend = last == "run_tests" and not heard.startswith("All ")
    if last not in ("write", "run_tests") or mend:
        wrong = noise > 0 and rng.random() < noise
        return call_message("write", {"code": mutated(task["solution"], rng) if wrong else task["solution"]})
    if last == "write" and task["shown"] and not (noise > 0 and rng.random() < noise):
        return call_message("run_tests", {})
    return call_message("submit", {})


_LONGEST = 50_000
_TENTHS = {"train": range(8), "validation": range(8, 9), "test": range(9, 10)}


class Code(Environment):
    """Programming problems; the program runs in the sandbox, apart from its tests.

    Args:
        path: A file of HumanEval's or MBPP's rows, divided into splits; None = the embedded problems.
        test_path: Such a file that is the whole test split.
        score: `fraction` = the share of hidden tests that pass; `all` = 1 where all do, else 0.
    """

    name = "code"
    system_prompt = (
        "Write a Python program that does what is asked. write replaces the whole program, run_tests runs the example"
        " tests, submit hands it in for good: hidden tests then judge it. Only what was submitted counts."
    )
    one_thread: ClassVar[bool] = False
    runs_code: ClassVar[bool] = True
    _answers_differ: ClassVar[bool] = False

    def __init__(
        self, path: str | None = None, test_path: str | None = None, score: Literal["fraction", "all"] = "fraction"
    ) -> None:
        self._all = score == "all"
        self._task: dict[str, Any] = {}
        self._solution: str | None = None
        self._program = ""
        self._submitted = False

    @classmethod
    def tasks(cls, split: str, path: str | None = None, test_path: str | None = None) -> Iterable[dict[str, Any]]:
        """Yield the problems of a split.

        Raises:
            ConfigError: A file cannot be read, or is of another format.
        """
        of_file = divided(split, path, test_path, read_file)
        if of_file is not None:
            return of_file
        return [dict(task) for number, task in enumerate(problems()) if number % 10 in _TENTHS[split]]

    def reset(
        self,
        request: str,
        tests: Sequence[str],
        shown: Sequence[str] = (),
        setup: str = "",
        names: Sequence[str] | None = None,
        solution: str | None = None,
        **columns: Any,
    ) -> str:
        """Pose a problem.

        Args:
            request: What is asked; the first observation.
            tests: The hidden tests, code that raises where the program is wrong.
            shown: The example tests.
            setup: Code that the tests need.
            names: Names of the program that the tests use; None = those that they do not define themselves.
            solution: A right program; see `judges.code.unit_tests`.
            **columns: Other columns of a data set. Not used.
        """
        used = None if names is None else tuple(names)
        self._task = {"tests": tuple(tests), "shown": tuple(shown), "setup": setup, "names": used}
        self._solution = solution
        self._program, self._submitted, self.terminated = "", False, False
        examples = "\n".join(shown)
        return f"{request}\n\nExample tests:\n{examples}" if shown else request

    def write(self, code: str) -> str:
        """Write the program; it replaces the one before.

        Args:
            code: The whole program, in Python.
        """
        self._check_open()
        if len(code) > _LONGEST:
            raise ToolError(f"code: got {len(code)} characters, allowed: at most {_LONGEST}.")
        self._program = code
        try:
            ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return f"Written, but it is no Python: {type(error).__name__}: {error}"
        return "Written."

    def run_tests(self) -> str:
        """Run the example tests on the program."""
        self._check_open()
        if not self._program.strip():
            raise ToolError("there is no program yet; write one first.")
        task = self._task
        if not task["shown"]:
            return "All 0 example tests passed: there are none."
        outcomes = _outcomes(self._program, tuple(map(_telling, task["shown"])), task["setup"], task["names"])
        failed = [(test, o) for test, o in zip(task["shown"], outcomes, strict=True) if not o.passed]
        if not failed:
            return f"All {len(outcomes)} example tests passed."
        lines = [f"{test}\n  failed: {outcome.error or outcome.unscorable}" for test, outcome in failed]
        return f"{len(outcomes) - len(failed)} of {len(outcomes)} example tests passed.\n" + "\n".join(lines)

    def submit(self) -> str:
        """Hand the program in; the hidden tests judge it."""
        self._check_open()
        self._submitted = self.terminated = True
        return "Submitted."

    def get_reward(self) -> Verdict:
        """Return the share of hidden tests that the submitted program passes; 0 where none was submitted."""
        if not self._submitted or not self._program.strip():
            evidence = {"submitted": self._submitted}
            return Verdict(0.0, False, "unit_tests", str(unit_tests.version), evidence)  # type: ignore[attr-defined]
        task = self._task
        asked = (self._program, task["tests"], self._all, task["setup"], task["names"], self._solution)
        try:
            return _known(asked)
        except _Unscored as unscored:
            verdict: Verdict = unscored.args[0]
            return verdict

    @property
    def fingerprint(self) -> str:
        """Hash of the problem, the program, and whether it was submitted."""
        return hashlib.sha256(repr((self._task, self._program, self._submitted)).encode()).hexdigest()

    @classmethod
    def demonstrate(
        cls, task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float
    ) -> Message:
        """Return the next call of a programmer who knows the solution, or with `noise` one that errs."""
        return next_turn(task, messages, rng, noise)

    def _check_open(self) -> None:
        if self.terminated:
            raise ToolError("the program was submitted; the episode is over.")


@lru_cache(maxsize=4096)
def _outcomes(
    program: str, tests: tuple[str, ...], setup: str, names: tuple[str, ...] | None
) -> tuple[Outcome, ...]:
    try:
        with TestRun(program) as run:
            return tuple(run.outcomes(tests, setup, names))
    except SandboxError as error:
        raise EnvironmentFault(f"code: {error}") from error


@lru_cache(maxsize=4096)
def _known(asked: tuple[Any, ...]) -> Verdict:
    verdict = unit_tests(*asked)
    if verdict.score is None:
        raise _Unscored(verdict)
    return verdict


class _Unscored(Exception):
    """A verdict without a score, which the cache shall not keep."""


def _telling(test: str) -> str:
    """Return a test `assert CALL == VALUE` so that it says what the call gave."""
    try:
        tree = ast.parse(test)
    except SyntaxError:
        return test
    node = tree.body[0] if len(tree.body) == 1 else None
    if not (isinstance(node, ast.Assert) and isinstance(node.test, ast.Compare) and node.msg is None):
        return test
    if len(node.test.ops) != 1 or not isinstance(node.test.ops[0], ast.Eq):
        return test
    left, right = ast.unparse(node.test.left), ast.unparse(node.test.comparators[0])
    return f"_got = {left}\nassert _got == {right}, 'got ' + repr(_got)[:300]"
