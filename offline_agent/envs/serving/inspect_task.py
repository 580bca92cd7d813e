"""An environment as a task of Inspect (`inspect_ai` 0.3.285): a sample a task, its tools, its verifier as two scorers.

`inspect eval offline_agent/environment -T env=shop --model openai/...`
"""

from __future__ import annotations

import asyncio
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessage, ChatMessageSystem, ChatMessageUser, execute_tools
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import Tool, ToolDef, ToolError, ToolParams

from offline_agent.envs.serving import Served, Session

_LIVE: dict[str, Session] = {}
"""Episodes of the samples that are being evaluated, by the sample's `uuid`."""


@task
def environment(
    env: str,
    split: str = "test",
    n: int | None = None,
    offset: int = 0,
    max_steps: int | None = None,
    python: str | None = None,
    args: dict[str, Any] | None = None,
) -> Task:
    """Return an environment's tasks as a task of Inspect; see `serving.Served` for the arguments."""
    served = Served(env, split, n, offset, max_steps, python, args)
    samples = []
    for one in served.tasks:
        session = served.session(one)
        samples.append(Sample(_prompt(session), id=one.task_id, metadata={"split": split, "args": dict(one.args)}))
        session.close()
    return Task(
        samples, setup=begin(served), solver=play(), scorer=[reward(), success()], cleanup=_end, name=served.spec.name,
        version=served.spec.version,
    )  # fmt: skip


def _prompt(session: Session) -> list[ChatMessage]:
    system = [ChatMessageSystem(content=session.system_prompt)] if session.system_prompt else []
    return [*system, ChatMessageUser(content=session.observation)]


@solver
def begin(served: Served) -> Solver:
    """Return the setup: an episode for the sample, its first messages and its tools."""
    tasks = {one.task_id: one for one in served.tasks}

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        session = _LIVE[state.uuid] = await asyncio.to_thread(served.session, tasks[str(state.sample_id)])
        state.messages = _prompt(session)
        state.tools = [*state.tools, *(_tool(session, schema["function"]) for schema in session.tools)]
        return state

    return solve


def _tool(session: Session, function: dict[str, Any]) -> Tool:
    async def execute(**kwargs: Any) -> str:
        text, failed = await asyncio.to_thread(session.call, function["name"], kwargs)
        if failed:
            raise ToolError(text)
        return text

    shape = ToolParams.model_validate(function.get("parameters") or {})
    about = function.get("description") or function["name"]
    return ToolDef(execute, function["name"], about, shape, parallel=False).as_tool()


@solver
def play() -> Solver:
    """Return the solver: the model acts until the episode is over; an answer without a call may be replied to."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        session = _LIVE[state.uuid]
        turns = 0  # a call that Inspect refuses itself is no action
        while not session.over and turns < session.max_steps:
            state, turns = await generate(state, tool_calls="none"), turns + 1
            if state.output.message.tool_calls:
                state.messages.extend((await execute_tools(state.messages, state.tools)).messages)
            elif (said := await asyncio.to_thread(session.answer, state.output.completion)) is not None:
                state.messages.append(ChatMessageUser(content=said))
        return state

    return solve


def _scored(part: str) -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        session = _LIVE[state.uuid]
        if not (session.over or state.output.message.tool_calls):  # of another solver, which ended with an answer
            await asyncio.to_thread(session.answer, state.output.completion)
        told = await asyncio.to_thread(session.judged)
        facts = {"evidence": dict(told.evidence), "verifier": told.verifier, "version": told.version}
        value = getattr(told, part)
        if value is None:
            return Score.unscored(explanation=told.error, metadata=facts)
        return Score(value=float(value), answer=state.output.completion, metadata=facts)

    return score


@scorer(metrics=[mean(), stderr()])
def reward() -> Scorer:
    """Return the scorer of the verdict's score."""
    return _scored("score")


@scorer(metrics=[mean(), stderr()])
def success() -> Scorer:
    """Return the scorer of the verdict's success, 0 or 1."""
    return _scored("success")


async def _end(state: TaskState) -> None:
    if (session := _LIVE.pop(state.uuid, None)) is not None:
        await asyncio.to_thread(session.close)
