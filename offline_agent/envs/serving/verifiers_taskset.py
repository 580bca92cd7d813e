"""An environment as a taskset of verifiers (`verifiers` 0.4): its harness plays, an MCP server of each rollout has the
environment, and the reward is the verdict on the state after the last call.

A package exports a subclass that names the environment: examples/verifiers_package. Its configuration's other fields
are keys of `vf-eval`, `--env.taskset.split test`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import verifiers.v1 as vf
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import CallToolResult, TextContent, Tool

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.serving import Served, Session, functions
from offline_agent.errors import EnvironmentFault
from offline_agent.records import Task


class ServedData(vf.TaskData):
    """A task as the rollout's server gets it; `begun` is the score of the state before any call."""

    env: str
    args: dict[str, Any]
    python: str | None
    split: str
    task_args: dict[str, Any]
    max_steps: int
    begun: float | None


class ServedState(vf.State):
    """What the server tells of the episode after each call."""

    steps: int = 0
    over: bool = False
    score: float | None = None
    success: bool | None = None
    error: str | None = None


class ServedToolset(vf.Toolset[vf.ToolsetConfig, ServedState]):
    """The environment's tools, and `answer`, which stands for an answer without a call."""

    TOOL_PREFIX = None

    async def setup_task(self, task: ServedData) -> None:
        """Start the episode."""
        spec = EnvSpec.load(task.env, task.args, python=task.python)
        args = Task(str(task.id), task.split, task.task_args)
        self._session = await asyncio.to_thread(Session, spec, args, task.max_steps)

    def register(self, mcp: MCPServer) -> None:
        """Register the tools of the episode, whose schemas are known only now."""
        server = cast(Any, mcp)
        server.list_tools, server.call_tool = self.list_tools, self._with_state(self.call_tool)

    async def list_tools(self) -> list[Tool]:
        """Return the tools."""
        return [
            Tool(name=one["name"], description=one["description"], input_schema=one["parameters"])
            for one in functions(self._session.tools)
        ]

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Context | None = None) -> CallToolResult:
        """Call a tool, and tell the rollout of the state that it leads to."""
        state = self.state
        try:
            text, failed = await asyncio.to_thread(self._session.call_or_answer, name, arguments)
        except EnvironmentFault as error:  # raised here, it would not reach the rollout's state, and the harness go on
            state.steps, state.over, state.score, state.error = self._session.steps + 1, True, None, str(error)
            return CallToolResult(content=[TextContent(type="text", text=str(error))], is_error=True)
        told = await asyncio.to_thread(self._session.judged)
        state.steps, state.over = self._session.steps, self._session.over
        state.score, state.success, state.error = told.score, told.success, told.error
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=failed)


class ServedTaskConfig(vf.TaskConfig):
    """Where the server of each rollout runs."""

    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class ServedTask(vf.Task[ServedData, ServedState, ServedTaskConfig]):
    """A task of the environment."""

    @classmethod
    def toolsets(cls, config: ServedTaskConfig) -> list[vf.Toolset]:
        """Return the environment's server."""
        return [ServedToolset(config.tools)]

    @vf.stop
    async def over(self, trace: vf.Trace) -> bool:
        """End the rollout with the episode."""
        return bool(trace.state.over)

    @vf.reward
    async def verdict(self, trace: vf.Trace) -> float:
        """Return the verdict's score; raises ValueError where there is none: an error of the rollout, not 0."""
        score = trace.state.score if trace.state.steps else self.data.begun
        if score is None:
            raise ValueError(f"{self.data.env}: no score: {trace.state.error or 'the start cannot be judged'}")
        return float(score)

    @vf.metric
    async def steps(self, trace: vf.Trace) -> float:
        """Return the number of actions."""
        return float(trace.state.steps)


class ServedConfig(vf.TasksetConfig):
    """See `serving.Served`."""

    env: str = ""
    split: str = "test"
    n: int | None = None
    offset: int = 0
    max_steps: int | None = None
    python: str | None = None
    args: dict[str, Any] = {}
    task: ServedTaskConfig = ServedTaskConfig()


class ServedTaskset(vf.Taskset[ServedTask, ServedConfig]):
    """The tasks of an environment's split."""

    def load(self) -> Iterator[ServedTask]:
        """Yield the tasks; each is started once, for its first observation."""
        keys = self.config
        served = Served(keys.env, keys.split, keys.n, keys.offset, keys.max_steps, keys.python, keys.args)
        for task in served.tasks:
            session = served.session(task)
            data = ServedData(
                id=task.task_id, prompt=session.observation, system_prompt=session.system_prompt or None, env=keys.env,
                args=keys.args, python=keys.python, split=keys.split, task_args=dict(task.args),
                max_steps=served.max_steps, begun=session.judged().score,
            )  # fmt: skip
            session.close()
            yield ServedTask(data, keys.task)


if __name__ == "__main__":
    ServedToolset.run()
