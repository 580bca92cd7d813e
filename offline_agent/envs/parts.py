"""Any environment for an agent of several parts, `env=parts:NAME`: compacted histories and sub-agents.

Where a history has `env.turns` turns or `env.characters` characters the policy is asked for a summary, and goes on from
the task and its summary alone. With `env.delegate=true` it may call `delegate(task)`: the same policy, in the same
state of the environment, reads that task alone, and its answer is what the call returns. Each turn's row has the prompt
that the policy read (`records.Anew`); the verdict on the whole episode is the credit of each part.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from offline_agent import pictures
from offline_agent.envs.adapting import Wrapper, adapted
from offline_agent.envs.base import EnvSpec, ToolError
from offline_agent.envs.boundary import to_text
from offline_agent.errors import ConfigError, Refusal
from offline_agent.judges.judge import as_verdict
from offline_agent.records import Anew, Verdict

ASK = (
    "Your history is full. Before anything else, answer with a summary of what was done, what was found and what is "
    "left to do: you go on from the task and this summary alone. The result of your last turn:"
)
SUMMARY = "Your summary of the work so far:"
SUB = "You do a part of another agent's work, which has begun. Do it, then answer with all that this agent must know:"
DELEGATE = {
    "type": "function",
    "function": {
        "name": "delegate",
        "description": "Have a sub-agent do a part of the work here; it knows nothing but what you tell it.",
        "parameters": {
            "type": "object",
            "properties": {"task": {"type": "string", "description": "What to do, and what to tell you."}},
            "required": ["task"],
        },
    },
}


class _Part(NamedTuple):
    """A history: its first observation, the turns since, and its characters."""

    first: Any
    turns: int
    size: int


def adapt(rest: str, args: Mapping[str, Any]) -> type:
    """Return the class of an environment for several parts; see `envs.base.environment_class`.

    Raises:
        ConfigError: Neither compaction nor delegation is asked for, a limit is below 1, or the environment has other
            tools in each task or parts of its own.
    """
    own = {name: args.get(name) for name in ("turns", "characters")}
    for name, value in own.items():
        if value is not None and (type(value) is not int or value < 1):
            raise ConfigError(f"env.{name}: got {value!r}, allowed: 1 or more, or null for no limit")
    delegate = args.get("delegate", False)
    if type(delegate) is not bool:
        raise ConfigError(f"env.delegate: got {delegate!r}, allowed: true or false")
    if not (delegate or any(own.values())):
        raise ConfigError(
            f"env: got parts:{rest} with one part; give env.turns or env.characters, after which a history is "
            "summarised, or env.delegate=true"
        )
    inner = EnvSpec.load(rest, {name: value for name, value in args.items() if name not in (*own, "delegate")})
    if inspect.getattr_static(inner.cls, "_tools", None) is not None or issubclass(inner.cls, _Parts):
        raise ConfigError(f"env: {rest} has tools of its own in each task, or parts already: parts: cannot add any")
    members = {name: one for name, one in _PASSED.items() if inspect.getattr_static(inner.cls, name, None) is not None}
    members |= {name: getattr(inner, name) for name in _SAME}
    if inner.max_steps is not None and own["turns"]:
        members["max_steps"] = inner.max_steps + inner.max_steps // own["turns"]  # the summaries are turns, too
    tools = [*inner.tools.schemas, *([DELEGATE] if delegate else [])]
    return adapted(_Parts, tools, name=f"parts:{inner.name}", _spec=inner, **members)


class _Parts(Wrapper):
    """An environment that says how the policy's history goes on; `adapt` makes the classes.

    Args:
        turns: Turns of a history after which the policy is asked for a summary; None = no limit. Turns that no tool
            carried out (unknown tools, wrong arguments) do not count.
        characters: Characters of first observation, calls and answers after which it is; None = no limit.
        delegate: Whether there are sub-agents. They have all tools but `delegate`.
        args: Arguments of the environment's constructor.
    """

    version: ClassVar[str]

    def __init__(
        self, turns: int | None = None, characters: int | None = None, delegate: bool = False, **args: Any
    ) -> None:
        self._inner = self._spec.cls(**args)
        self.system_prompt = getattr(self._inner, "system_prompt", "")
        self._limits = turns, characters
        self._anew: Anew | None = None
        self._part, self._due = _Part("", 0, 0), False
        self._outer: _Part | None = None

    def reset(self, **task: Any) -> Any:
        """Start the task."""
        first = _done(self._inner.reset(**self._spec.task(task, "train", 0).args))
        self._outer = None
        return self._begin(first, None)

    @property
    def _takes_words(self) -> bool:
        return self._due

    @property
    def terminated(self) -> bool:
        """Whether the episode is over."""
        return bool(getattr(self._inner, "terminated", False))

    def get_reward(self) -> Verdict:
        """Return the verdict of the environment."""
        name = f"{self._spec.name}.get_reward"
        return as_verdict(_done(self._inner.get_reward()), name, self.version, "get_reward()")

    def _take(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        said = f"{tool}({json.dumps(arguments, ensure_ascii=False)})"
        if self._due:  # whatever it says is its summary
            return self._compacted(said)
        if tool == "delegate" and tool not in self._spec.tools.names:
            if self._outer is not None:
                raise ToolError("a sub-agent has no sub-agents")
            self._outer = self._part
            return self._begin(f"{SUB}\n{arguments['task']}", "enter")
        self._anew = None
        return self._told(_done(getattr(self._inner, tool)(**arguments)), said)

    def _reply(self, text: str) -> Any:
        if self._due:
            return self._compacted(text)
        if self._outer is not None:
            self._part, self._outer, self._anew = self._outer, None, "leave"
            return self._told(text, "")
        self._anew = None
        told = _done(self._inner._reply(text)) if hasattr(self._inner, "_reply") else None
        return None if told is None else self._told(told, text)

    def _begin(self, first: Any, anew: Anew | None) -> Any:
        self._part, self._due, self._anew = _Part(first, 0, len(to_text(first))), False, anew
        return first

    def _compacted(self, summary: str) -> Any:
        task = self._part.first
        shown = self._begin(_joined(task, f"{SUMMARY}\n{summary}"), "compact")
        self._part = self._part._replace(first=task)  # the next summary takes the place of this one
        return shown

    def _told(self, answer: Any, said: str) -> Any:
        """Return an answer to the policy, with the request for a summary where it is due."""
        first, turns, size = self._part
        self._part = _Part(first, turns + 1, size + len(said) + len(to_text(answer)))
        reached = (limit is not None and now >= limit for now, limit in zip(self._part[1:], self._limits, strict=True))
        self._due = any(reached) and not self.terminated
        return _joined(ASK, answer) if self._due else answer


def _done(value: Any) -> Any:
    """Return what a method of the environment returned, which may be one that has to be awaited."""
    return asyncio.run(value) if inspect.iscoroutine(value) else value


def _joined(one: Any, other: Any) -> Any:
    """Return two observations as one, in this order; one with pictures is a list of parts."""
    if any(pictures.of_parts(each) is not None for each in (one, other)):
        shown = (each if isinstance(each, list) else [{"type": "text", "text": to_text(each)}] for each in (one, other))
        return sum(shown, [])
    text = "\n".join(each if isinstance(each, str) else to_text(each) for each in (one, other))
    return Refusal(text) if isinstance(other, Refusal) else text


def _fingerprint(self: _Parts) -> str | None:
    """Return the environment's fingerprint with what later observations depend on beside it."""
    state = self._inner.fingerprint
    here = repr((self._part, self._outer, self._due))
    digest = hashlib.blake2b(here.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return None if state is None else f"{state}/{digest}"


_SAME = (
    "irreversible", "restarts", "replay_only", "version", "runs_code", "max_steps", "one_thread",
    "deterministic_verifier",
)  # fmt: skip
_PASSED: dict[str, Any] = {
    "fingerprint": property(_fingerprint),
    "achieved_goal": property(lambda self: self._inner.achieved_goal),
    # a summary, a call of a sub-agent and its answer earn nothing by themselves
    "turn_reward": property(lambda self: 0.0 if self._anew else self._inner.turn_reward),
}
"""Optional members that the class has where the environment has them."""
