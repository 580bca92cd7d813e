"""Scripted play: episodes of the expert, of given actions, and of arguments drawn from the schemas; no policy."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from offline_agent.envs.base import EnvSpec, Episode
from offline_agent.envs.play import play, script
from offline_agent.records import Action, Context, Task, ToolCall, Trajectory

_WORDS = ("a", "red shirt", "help", "1", "north", "")


class ScriptedPlayer:
    """Plays an environment without a policy.

    Args:
        spec: The environment.
        max_steps: Most actions in one run.
    """

    def __init__(self, spec: EnvSpec, max_steps: int) -> None:
        self.spec = spec
        self.max_steps = max_steps

    def script(self, task: Task) -> list[Action]:
        """Return actions to take: the noisy expert's where there is one, else calls that fit the schemas."""
        if self.spec.demonstrate is not None:
            return self.expert(task, noise=0.3).context.actions()
        rng = random.Random(task.task_id)
        with contextlib.closing(self.spec.open()) as episode:
            episode.reset(task)
            schemas = [s for s in episode.tools.schemas if s["function"]["name"] not in self.spec.irreversible]
        chosen = [rng.choice(schemas) for _ in range(8)] if schemas else []
        return [call(schema["function"]["name"], draw(schema, rng)) for schema in chosen]

    def expert(self, task: Task, noise: float = 0.0) -> Trajectory:
        """Play the expert's actions in a fresh environment."""
        rng = random.Random(f"walk {task.task_id}")

        def choose(context: Context) -> Action:
            assert self.spec.demonstrate is not None
            message = self.spec.demonstrate(dict(task.args), context.messages(), rng, noise)
            text = str(message.get("content") or "")
            calls = message.get("tool_calls")
            if not calls:
                return Action(text, thought=text)
            function = calls[0]["function"]
            return Action(text, thought=text, call=ToolCall(function["name"], function["arguments"]))

        with contextlib.closing(self.spec.open()) as episode:
            return play(episode, task, choose, self.max_steps, origin="demonstration")

    def run(self, task: Task, actions: Sequence[Action]) -> Trajectory:
        """Play actions in a fresh environment."""
        with contextlib.closing(self.spec.open()) as episode:
            return self.run_on(episode, task, actions)

    def run_on(
        self, episode: Episode, task: Task, actions: Sequence[Action], after: Context | None = None
    ) -> Trajectory:
        """Play actions on an episode, after its reset or after the history that it is at."""
        start = 0 if after is None else after.depth
        return play(episode, task, script(actions, start), self.max_steps, after=after)


def facts(trajectory: Trajectory, before: Trajectory | None = None) -> tuple[Any, ...]:
    """Return the facts on which two runs of the same actions must agree; `before` is the run that is continued."""
    steps = trajectory.steps if before is None else before.steps + trajectory.steps
    verdict = trajectory.verdict
    shown = [(step.observation, step.role, step.fault, step.reward) for step in steps]
    first = trajectory.context.lineage()[0].observation
    return first, shown, trajectory.terminated, None if verdict is None else (verdict.score, verdict.success)


def call(name: str, arguments: Mapping[str, Any]) -> Action:
    """Return the action that calls a tool."""
    return Action(name, call=ToolCall(name, arguments))


def faulty(episode: Episode) -> Iterator[Action]:
    """Yield turns that must be refused: broken JSON, an unknown tool, unknown arguments, values of a wrong type."""
    yield Action("<tool_call>{", fault="invalid_json", detail="the call is no JSON")
    yield call("no_such_tool_here", {})
    for schema in episode.tools.schemas[:5]:
        name = schema["function"]["name"]
        yield call(name, {"no_such_argument_here": 1})
        for argument in schema["function"].get("parameters", {}).get("required", ())[:1]:
            yield call(name, {argument: {"not": ["the", object()]}})


def draw(schema: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return arguments that fit a tool's schema."""
    shape = schema["function"].get("parameters") or {}
    required = shape.get("required", ())
    return {n: _value(s, rng) for n, s in shape.get("properties", {}).items() if n in required or rng.random() < 0.5}


def _value(schema: Mapping[str, Any], rng: random.Random) -> Any:
    if schema.get("enum"):
        return rng.choice(schema["enum"])
    if "anyOf" in schema:
        return _value(rng.choice(schema["anyOf"]), rng)
    kind = schema.get("type", "string")
    kind = rng.choice(kind) if isinstance(kind, list) else kind
    if kind == "array":
        fixed = schema.get("prefixItems")
        below = fixed if fixed is not None else [schema.get("items") or {}] * rng.randrange(3)
        return [_value(s, rng) for s in below]
    if kind == "object":
        known = {n: _value(s, rng) for n, s in schema.get("properties", {}).items()}
        return known or {"key": _value(schema.get("additionalProperties") or {}, rng)}
    plain = {"integer": rng.randrange(-2, 20), "number": rng.randrange(40) / 4, "boolean": rng.random() < 0.5}
    return None if kind == "null" else plain.get(kind, rng.choice(_WORDS))
