"""Environments served to other projects' evaluators and trainers, a module each, which alone imports its library.

Their packages cannot be installed together. This package needs nothing but `psutil` and `pydantic` there:
`pip install --no-deps offline-agent`. An environment with requirements of its own has `env.python`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from offline_agent.envs.base import EnvSpec
from offline_agent.errors import ConfigError, EnvironmentFault
from offline_agent.records import Action, Task, ToolCall, Verdict

T = TypeVar("T")

OVER = "Error: the episode is over."
ANSWER = "answer"
"""The tool that stands for an answer without a call, where only calls are passed on."""
_ANSWER = {
    "name": ANSWER,
    "description": "Give the final answer, in words, when nothing is left to be done.",
    "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}


def functions(schemas: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return name, description and parameters of each tool, and of `ANSWER` where no tool has that name."""
    found = [
        {"name": one["name"], "description": one.get("description") or one["name"],
         "parameters": one.get("parameters") or {"type": "object", "properties": {}}}
        for one in (schema["function"] for schema in schemas)
    ]  # fmt: skip
    return found if any(one["name"] == ANSWER for one in found) else [*found, _ANSWER]


class Served:
    """An environment as it is served: its tasks, and how long an episode may be.

    Args:
        env: The environment's name; see `EnvSpec.load`.
        split: `train`, `validation` or `test`.
        n: Most tasks; None = all.
        offset: Tasks that are left out first.
        max_steps: Most actions of an episode; None = as in a search, `trial.episode_length`.
        python: The interpreter that has what the environment needs; None = this one.
        args: Keyword arguments of the environment's constructor.

    Raises:
        ConfigError: There is no such environment, or no task is left.
    """

    def __init__(
        self,
        env: str,
        split: str = "test",
        n: int | None = None,
        offset: int = 0,
        max_steps: int | None = None,
        python: str | None = None,
        args: Mapping[str, Any] | None = None,
    ) -> None:
        self.spec = EnvSpec.load(env, args, python=python)
        self.tasks = list(itertools.islice(self.spec.tasks(split), offset, None if n is None else offset + n))
        if not self.tasks:
            raise ConfigError(f"tasks: none left: {env} has no {split} task from number {offset} on; lower the offset")
        if max_steps is None:
            from offline_agent.envs.checks.trial import episode_length  # needs psutil

            max_steps = episode_length(self.spec)
        self.max_steps = max_steps

    def session(self, task: Task) -> Session:
        """Start a task; raises EnvironmentFault where the environment does not open or start."""
        return Session(self.spec, task, self.max_steps)


class Session:
    """An episode that somebody else's loop plays; one thread makes its calls, in which coroutines of tools can run.

    Args:
        spec: The environment.
        task: The task, which is started.
        max_steps: Most actions.

    Attributes:
        system_prompt, observation, tools: What the policy is shown at first; the tools as OpenAI's schemas.
        steps: Actions so far.
        over: No action can follow: the episode ended, or has `max_steps` actions.
        verdict: That on the present state; None = it was not asked for.

    Raises:
        EnvironmentFault: The environment does not open or start.
    """

    def __init__(self, spec: EnvSpec, task: Task, max_steps: int) -> None:
        self.max_steps, self.task, self.steps, self.over = max_steps, task, 0, False
        self.verdict: Verdict | None = None
        self._thread = ThreadPoolExecutor(1)
        self._episode = self._there(spec.open)
        try:
            self.observation: str = self._there(lambda: self._episode.reset(task))
            self.system_prompt: str = self._there(lambda: self._episode.system_prompt)
        except EnvironmentFault:
            self.close()
            raise
        self.tools: tuple[dict[str, Any], ...] = self._episode.tools.schemas

    def _there(self, call: Callable[[], T]) -> T:
        return self._thread.submit(call).result()

    def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """Call a tool; return its answer, and whether that is an error. Raises EnvironmentFault where it broke."""
        if self.over:
            return OVER, True
        text, fault = self._act(Action("", call=ToolCall(name, dict(arguments))))
        return text or "", fault is not None

    def call_or_answer(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """Call a tool of `functions`; return and raise as `call`."""
        if name == ANSWER and not any(one["function"]["name"] == ANSWER for one in self.tools) and not self.over:
            return self.answer(str(arguments.get("text", ""))) or "", False
        return self.call(name, arguments)

    def answer(self, text: str) -> str | None:
        """Answer without a call; return what the scripted user says to that, or None where the episode is over."""
        return None if self.over else self._act(Action(text, text))[0]

    def _act(self, action: Action) -> tuple[str | None, str | None]:
        result = self._there(lambda: self._episode.step(action))
        self.steps, self.verdict = self.steps + 1, None
        self.over = result.terminated or self.steps >= self.max_steps
        return result.observation, result.fault

    def judged(self) -> Verdict:
        """Return the verdict on the present state, which is asked for once."""
        if self.verdict is None:
            self.verdict = self._there(self._episode.verdict)
        return self.verdict

    def close(self) -> None:
        """Close the environment."""
        self._there(self._episode.close)
        self._thread.shutdown()
