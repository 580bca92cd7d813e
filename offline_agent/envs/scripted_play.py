"""Playing an environment without a policy: scripts, the expert's runs, and arguments drawn from schemas."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from offline_agent.envs.base import EnvSpec, Episode, StepResult
from offline_agent.records import Action, Message, Task, ToolCall, Verdict

_WORDS = ("a", "red shirt", "help", "1", "north", "")


@dataclass
class Walk:
    """What one run of actions showed."""

    actions: list[Action] = field(default_factory=list)
    results: list[StepResult] = field(default_factory=list)
    verdict: Verdict | None = None
    first: str = ""

    def facts(self) -> tuple[Any, ...]:
        """Return what two runs of the same actions must agree on."""
        score = None if self.verdict is None else (self.verdict.score, self.verdict.success)
        return self.first, [tuple(r) for r in self.results], score

    def then(self, rest: Walk) -> tuple[Any, ...]:
        """Return the facts of this run continued by another."""
        return Walk(results=self.results + rest.results, verdict=rest.verdict, first=self.first).facts()


class Player:
    """Plays an environment.

    Args:
        spec: The environment.
        max_steps: Most actions in one run.
    """

    def __init__(self, spec: EnvSpec, max_steps: int) -> None:
        self.spec = spec
        self.max_steps = max_steps

    def script(self, task: Task) -> list[Action]:
        """Return a run of actions: the careless expert's where there is one, else calls drawn from the schemas."""
        if self.spec.demonstrate is not None:
            return self.walk(task, None, noise=0.3).actions
        rng = random.Random(task.task_id)
        with opened(self.spec) as episode:
            episode.reset(task)
            schemas = [s for s in episode.tools.schemas if s["function"]["name"] not in self.spec.irreversible]
        chosen = [rng.choice(schemas) for _ in range(8)] if schemas else []
        return [call(schema["function"]["name"], draw(schema, rng)) for schema in chosen]

    def walk(
        self,
        task: Task,
        script: Sequence[Action] | None,
        episode: Episode | None = None,
        *,
        noise: float = 0.0,
        reset: bool = False,
    ) -> Walk:
        """Play a script, or the expert's actions where it is None, from the start or on a given episode."""
        if episode is None:
            with opened(self.spec) as fresh:
                return self.walk(task, script, fresh, noise=noise, reset=True)
        walk = Walk(first=episode.reset(task) if reset else "")
        messages: list[Message] = [
            {"role": "system", "content": episode.system_prompt},
            {"role": "user", "content": walk.first},
        ]
        rng = random.Random(f"walk {task.task_id}")
        for i in range(self.max_steps):
            if episode.terminated or (script is not None and i >= len(script)):
                break
            action = script[i] if script is not None else self._expert(task, messages, rng, noise)
            result = episode.step(action)
            walk.actions.append(action)
            walk.results.append(result)
            messages.append(action.message())
            if result.observation is not None:
                messages.append({"role": result.role, "content": result.observation})
        walk.verdict = episode.verdict()
        return walk

    def _expert(self, task: Task, messages: list[Message], rng: random.Random, noise: float) -> Action:
        assert self.spec.demonstrate is not None
        message = self.spec.demonstrate(dict(task.args), list(messages), rng, noise)
        text = str(message.get("content") or "")
        calls = message.get("tool_calls")
        if not calls:
            return Action(text, thought=text)
        function = calls[0]["function"]
        return Action(text, thought=text, call=ToolCall(function["name"], function["arguments"]))


class Closing:
    """Close an episode on the way out."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode

    def __enter__(self) -> Episode:
        return self._episode

    def __exit__(self, *_: object) -> None:
        self._episode.close()


def opened(spec: EnvSpec) -> Closing:
    """Return a fresh episode, to be used in a `with`."""
    return Closing(spec.open())


def call(name: str, arguments: Mapping[str, Any]) -> Action:
    """Return the action that calls a tool."""
    return Action(name, call=ToolCall(name, arguments))


def faulty(episode: Episode) -> Iterator[Action]:
    """Yield turns that must not get through: broken JSON, an unknown tool, unknown arguments, values of no type."""
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
