"""The BFCL environment: the benchmark's tools, called by name, and its scripted user."""

from __future__ import annotations

import inspect
import json
import random
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from offline_agent.envs.base import Environment, ToolError, ToolSet
from offline_agent.errors import ConfigError, did_you_mean
from offline_agent.records import Message, Verdict
from offline_agent_environments.bfcl import data
from offline_agent_environments.bfcl.demonstrate import next_turn
from offline_agent_environments.bfcl.execution import CallFailed, ToolInstances, differences, missing, truth

_NEW_FUNCTIONS = "I have updated some more functions you can choose from. What about now?"
_CHECKS = ("state", "benchmark")


class BFCL(Environment):
    """800 scripted conversations over file systems, trading, travel, vehicles, messages, tickets and posts.

    A turn ends when the policy answers without a call; then the user speaks again. A turn passes when it made a call
    (the leaderboard's rule) and the state after it equals the ground truth's. Where the ground truth changes nothing,
    its results must be among those that the policy got. Turns that cannot be solved (a function or a detail is held
    back) are not counted.

    Args:
        categories: Some of `base`, `miss_func`, `miss_param`, `long_context`; one name, a comma-separated list, or
            a list.
        check: `state`, as above, or `benchmark`: every turn must have brought the ground truth's results as well,
            which is the leaderboard's rule and fails some valid alternative paths.
        partial_credit: Whether the reward is the share of turns passed instead of 0 or 1. Success needs all.
    """

    name = "bfcl"
    system_prompt = (
        "You carry out a user's requests by calling functions, one at a time. Keep calling functions until the"
        " present request is fulfilled; then answer in plain text, which ends your turn, and the user speaks again."
        " If no function fits, or the request lacks a value that a function needs, say so in your answer."
    )
    max_steps: ClassVar[int | None] = 60  # the 800 ground truths need up to 37, answers to the user included
    _answers_differ: ClassVar[bool] = False

    def __init__(
        self,
        categories: str | Sequence[str] = data.CATEGORIES,
        check: str = "state",
        partial_credit: bool = True,
    ) -> None:
        _categories(categories)
        if check not in _CHECKS:
            raise ConfigError(f"env.check: got {check!r}, allowed: {', '.join(_CHECKS)}.{did_you_mean(check, _CHECKS)}")
        self._check = check
        self._partial = partial_credit
        self._task_id = ""

    @classmethod
    def tasks(cls, split: str, categories: str | Sequence[str] = data.CATEGORIES) -> Iterable[dict[str, Any]]:
        """Yield the tasks of a split: base first, the domains in turn."""
        splits = data.split_of()
        # The file is sorted by domain in blocks of 50: take one of each in turn, so that any first few cover all.
        order = sorted((i for i, s in splits.items() if s == split), key=lambda i: (i % 50, i))
        for category in _categories(categories):
            for index in order:
                yield {"task_id": data.entries(category)[index].id}

    def reset(self, task_id: str, **_: Any) -> str:
        """Start a conversation and return the user's first words."""
        task = data.entry(task_id)
        self._task_id = task.id
        self._instances = ToolInstances(task)
        self._turn = 0
        self._offered = set(data.toolset(task.id).names)
        self._results: tuple[str, ...] = ()
        self._before = 0  # results there were when the present turn began
        self._passed: tuple[dict[str, Any], ...] = ()
        self.terminated = False
        return str(task.turns[0])

    def get_reward(self) -> Verdict:
        """Return the share of turns passed; a turn not ended yet is judged as it stands, one never begun fails."""
        task = data.entry(self._task_id)
        turns = [*self._passed]
        if len(turns) < len(task.turns):
            turns.append(self._judge())
        judged = [t for t in turns if t["passed"] is not None]
        count = sum(map(bool, truth(task.id).results))
        passed = sum(t["passed"] for t in judged)
        success = count > 0 and passed == count
        evidence = {"category": task.category, "turns": turns, "counted_turns": count, "passed_turns": passed}
        score = passed / count if self._partial and count else float(success)
        return Verdict(score, success, f"bfcl.{self._check}_check", f"bfcl-eval {data.version()}", evidence)

    @classmethod
    def demonstrate(
        cls, task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float
    ) -> Message:
        """Return the next turn of the ground truth, or with `noise` a careless one; see `demonstrate.next_turn`."""
        return next_turn(data.entry(task["task_id"]), messages, rng, noise)

    @property
    def _tools(self) -> ToolSet:
        return data.toolset(self._task_id)

    def _reply(self, text: str) -> str | None:
        """End the turn; return the user's next words, with the schemas of functions that are new from now on."""
        task = data.entry(self._task_id)
        self._passed += (self._judge(),)
        self._turn, self._before = self._turn + 1, len(self._results)
        if self._turn >= len(task.turns):
            self.terminated = True
            return None
        said = task.turns[self._turn]
        if said is not None:
            return said
        names = task.held_back.get(self._turn, ())
        self._offered.update(names)
        schemas = [data.documents()[c][n] for c in task.classes for n in names if n in data.documents()[c]]
        return f"{json.dumps(schemas)}\n{_NEW_FUNCTIONS}"

    def _execute(self, name: str, arguments: Mapping[str, Any]) -> str:
        if name not in self._offered:
            near = did_you_mean(name, self._offered)
            listed = ", ".join(n for n in self._tools.names)
            raise ToolError(f"there is no tool {name!r}. Tools: {listed}.{near}", "unknown_tool")
        try:
            result = self._instances.call(name, arguments)
        except CallFailed as error:
            self._results += (f"Error during execution: {error}",)
            raise ToolError(str(error)) from error
        self._results += (result,)
        return result

    def _judge(self) -> dict[str, Any]:
        """Return whether the present turn passes as it stands, and why not; `passed` is None for a turn not counted."""
        goal, turn = truth(self._task_id), self._turn
        out: dict[str, Any] = {"turn": turn, "passed": None}
        if not goal.results[turn]:
            return out
        differing = differences(self._instances.instances, goal.states[turn])
        lacking = []
        if self._check == "benchmark" or not goal.changes[turn]:
            lacking = missing(self._results, goal.results[turn])
        out["calls"] = len(self._results) - self._before
        out["passed"] = out["calls"] > 0 and not differing and not lacking
        if differing:
            # Once the states differ they mostly stay different: the differences are written the first time only.
            told = any("differences" in t for t in self._passed)
            out["differences"] = sorted(differing) if told else differing
        if lacking:
            out["missing_results"] = [text[:200] for text in lacking]
        return out


def _categories(given: str | Sequence[str]) -> list[str]:
    names = [n.strip() for n in given.split(",")] if isinstance(given, str) else list(given)
    for name in names:
        if name not in data.CATEGORIES:
            allowed = ", ".join(data.CATEGORIES)
            near = did_you_mean(str(name), data.CATEGORIES)
            raise ConfigError(f"env.categories: got {name!r}, allowed: {allowed}.{near}")
    return names


_HINTS: dict[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool, "object": dict}


def _hint(schema: Mapping[str, Any]) -> Any:
    return types.GenericAlias(list, _hint(schema["items"])) if schema["type"] == "array" else _HINTS[schema["type"]]


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _tool(schema: Mapping[str, Any]) -> Callable[..., str]:
    """Return the method that TRL sees as this tool: hints and docstring made from the function's document."""
    function = schema["function"]
    shape = function["parameters"]

    def tool(self: BFCL, **arguments: Any) -> str:
        return self._execute(function["name"], arguments)

    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    lines = [_one_line(function["description"]), "", "Args:"]
    ordered = sorted(shape["properties"].items(), key=lambda item: item[0] not in shape.get("required", ()))
    tool.__annotations__ = {"return": str}
    for name, below in ordered:
        hint = _hint(below)
        required = name in shape.get("required", ())
        default = inspect.Parameter.empty if required else below.get("default")
        if not required and default is None:
            hint = hint | None
        tool.__annotations__[name] = hint
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint))
        lines.append(f"    {name}: {_one_line(below.get('description', name))}")
    tool.__signature__ = inspect.Signature(parameters, return_annotation=str)  # type: ignore[attr-defined]
    tool.__name__ = tool.__qualname__ = function["name"]
    tool.__doc__ = "\n".join(lines if ordered else lines[:1])
    return tool


def _add_tools() -> None:
    """Give the class every function of the benchmark; which of them a task offers is `_tools`."""
    for schemas in data.documents().values():
        for name, schema in schemas.items():
            setattr(BFCL, name, _tool(schema))


if data.installed():
    _add_tools()
