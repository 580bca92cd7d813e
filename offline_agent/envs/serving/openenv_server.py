"""An environment as one of OpenEnv (`openenv` 0.10): it lists its tools, and a server gives each session an episode.

`app("shop")` is the application that `server/app.py` of a package for `openenv push` exports: examples/openenv_package.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_types import (
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    Tool,
    ToolError,
    ToolErrorType,
)
from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State

from offline_agent.envs.base import SPLITS
from offline_agent.envs.serving import Served, Session, functions
from offline_agent.records import Task


class Begun(Observation):
    """The observation of a reset; `metadata` has `system_prompt` and `task_id`."""

    text: str


class ServedEnvironment(Environment[Action, Observation, State]):
    """A session of a server, or an environment in process.

    Args:
        served: The environment, by split.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, served: dict[str, Served]) -> None:
        super().__init__()
        self._served, self._state = served, State()
        self._session: Session | None = None

    def list_splits(self) -> list[str]:
        """Return the names of the splits."""
        return list(self._served)

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """Return identifier and number of each task of a split; what `reset` is told may hold the solution."""
        return [self.get_task(split, index) for index in range(self.num_tasks(split))]

    def num_tasks(self, split: str) -> int:
        """Return the number of a split's tasks."""
        return len(self._tasks(split))

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """Return one task; raises IndexError where there is none."""
        return {"id": self._tasks(split)[index].task_id, "index": index}

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        """Return tasks [start, stop)."""
        return self.list_tasks(split)[start:stop]

    def _tasks(self, split: str) -> list[Task]:  # of IndexError the server makes an answer 400
        if split not in self._served:
            raise IndexError(f"split: got {split!r}, allowed: {', '.join(self._served)}")
        return self._served[split].tasks

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, split: str = "train", index: int | None = None,
        **_: Any,
    ) -> Begun:  # fmt: skip
        """Start the task of that number in a split; without one, number `seed` (0) modulo the number of tasks."""
        tasks = self._tasks(split)
        task = tasks[(seed or 0) % len(tasks) if index is None else index]
        self.close()
        self._session = session = self._served[split].session(task)
        self._state = State(episode_id=episode_id, step_count=0)
        return Begun(text=session.observation, metadata=_facts(session))

    def step(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
        """List the tools, or call one. The reward is 0 until the episode is over, and then the verdict's score."""
        session = self._session
        if session is None:
            if isinstance(action, ListToolsAction):  # which needs no reset: the tools of the class
                return ListToolsObservation(tools=_tools(next(iter(self._served.values())).spec.tools.schemas))
            raise RuntimeError("reset the environment first")
        if isinstance(action, ListToolsAction):
            return ListToolsObservation(tools=_tools(session.tools), done=session.over)
        if not isinstance(action, CallToolAction):
            raise ValueError(f"got an action {type(action).__name__}, allowed: ListToolsAction, CallToolAction")
        text, failed = session.call_or_answer(action.tool_name, action.arguments)
        self._state.step_count = session.steps
        error = ToolError(error_type=ToolErrorType.EXECUTION_ERROR, message=text) if failed else None
        told = session.judged() if session.over and session.verdict is None else None  # paid once
        return CallToolObservation(
            tool_name=action.tool_name, result=None if failed else text, error=error, done=session.over,
            reward=0.0 if told is None else told.score,
            metadata={} if told is None else {"success": told.success, "error": told.error},
        )  # fmt: skip

    @property
    def state(self) -> State:
        """The number of actions so far."""
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        """Return the environment's name, version and system prompt."""
        spec = next(iter(self._served.values())).spec
        return EnvironmentMetadata(name=spec.name, description=spec.system_prompt or spec.name, version=spec.version)

    def close(self) -> None:
        """Close the episode."""
        if self._session is not None:
            self._session.close()
            self._session = None


def _facts(session: Session) -> dict[str, Any]:
    return {"system_prompt": session.system_prompt, "task_id": session.task.task_id}


def _tools(schemas: Iterable[Mapping[str, Any]]) -> list[Tool]:
    return [
        Tool(name=one["name"], description=one["description"], input_schema=one["parameters"])
        for one in functions(schemas)
    ]


def app(env: str, *, sessions: int = 64, **options: Any) -> Any:
    """Return the server's application, for uvicorn.

    Args:
        env: The environment's name.
        sessions: Episodes at once.
        options: `n`, `max_steps`, `python`, `args`; see `serving.Served`.
    """
    served = {split: Served(env, split, **options) for split in SPLITS}
    return create_app(
        lambda: ServedEnvironment(served), CallToolAction, CallToolObservation, env_name=served["train"].spec.name,
        max_concurrent_envs=sessions, reset_observation_cls=Begun,
    )  # fmt: skip
