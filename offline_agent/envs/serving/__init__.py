"""Environments served to other projects' evaluators and trainers, a module each, which alone imports its library.

Their packages cannot be installed together. This package needs nothing but `psutil` and `pydantic` there:
`pip install --no-deps offline-agent`. An environment with requirements of its own has `env.python`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from offline_agent.envs.base import EnvSpec
from offline_agent.errors import ConfigError
from offline_agent.records import Action, Task, ToolCall, Verdict

T = TypeVar("T")

OVER = "Error: the episode is over."


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


class Session:
    """An episode that somebody else's loop plays; one thread makes its calls, in which coroutines of tools can run.

    Attributes:
        system_prompt, observation, tools: What the policy is shown at first; the tools as OpenAI's schemas.
        steps, max_steps: Actions so far, and the most.
        over: No action can follow: the episode ended, or has `max_steps` actions.
        verdict: The last verdict that was asked for.
    """

    def __init__(self, served: Served, task: Task) -> None:
        """Open the environment and start the task; raises EnvironmentFault where either fails."""
        self.max_steps, self.task, self.steps, self.over = served.max_steps, task, 0, False
        self.verdict: Verdict | None = None
        self._thread = ThreadPoolExecutor(1)
        self._episode = self._there(served.spec.open)
        self.observation: str = self._there(lambda: self._episode.reset(task))
        self.system_prompt: str = self._there(lambda: self._episode.system_prompt)
        self.tools: tuple[dict[str, Any], ...] = self._episode.tools.schemas

    def _there(self, call: Callable[[], T]) -> T:
        return self._thread.submit(call).result()

    def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """Call a tool; return its answer, and whether that is an error. Raises EnvironmentFault where it broke."""
        if self.over:
            return OVER, True
        text, fault = self._act(Action("", call=ToolCall(name, dict(arguments))))
        return text or "", fault is not None

    def answer(self, text: str) -> str | None:
        """Answer without a call; return what the scripted user says to that, or None where the episode is over."""
        return None if self.over else self._act(Action(text, text))[0]

    def _act(self, action: Action) -> tuple[str | None, str | None]:
        result = self._there(lambda: self._episode.step(action))
        self.steps += 1
        self.over = result.terminated or self.steps >= self.max_steps
        return result.observation, result.fault

    def judged(self) -> Verdict:
        """Return the verdict on the present state."""
        self.verdict = self._there(self._episode.verdict)
        return self.verdict

    def close(self) -> None:
        """Close the environment."""
        self._there(self._episode.close)
        self._thread.shutdown()
