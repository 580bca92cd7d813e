"""Any environment with further attempts after a failed one: `env=retry:NAME`.

The policy first says what it learns from the failure, as in Reflexion (Shinn et al. 2023, arXiv 2303.11366). The lesson
is a call, `reflect(lesson)`: its tokens are the policy's, a search branches at it, and what it is worth is the value of
the attempt that follows. The history keeps the failed attempts.
"""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from offline_agent.envs.adapting import Wrapper
from offline_agent.envs.base import EnvSpec, ToolError
from offline_agent.envs.boundary import to_text
from offline_agent.errors import ConfigError, Refusal
from offline_agent.judges.judge import as_verdict
from offline_agent.records import Message, Verdict, call_message
from offline_agent_environments.adapters import adapted

FAILED = "This attempt failed."
AGAIN = f"{FAILED} Call reflect with what to do differently; the task then begins anew."
PROMPT = "An attempt that fails may be followed by another: call reflect first."
REFLECT = {
    "type": "function",
    "function": {
        "name": "reflect",
        "description": "Say what the failed attempt teaches, and begin the task anew.",
        "parameters": {
            "type": "object",
            "properties": {"lesson": {"type": "string", "description": "What to do differently."}},
            "required": ["lesson"],
        },
    },
}


def adapt(rest: str, args: Mapping[str, Any]) -> type:
    """Return the class of an environment with further attempts; see `envs.base.environment_class`.

    Raises:
        ConfigError: `tries` is below 2; or the environment has other tools in each task.
    """
    tries = args.get("tries", 2)
    if type(tries) is not int or tries < 2:
        raise ConfigError(f"env.tries: got {tries!r}, allowed: 2 or more attempts")
    inner = EnvSpec.load(rest, {name: value for name, value in args.items() if name != "tries"})
    if inspect.getattr_static(inner.cls, "_tools", None) is not None:
        raise ConfigError(f"env: {rest} has tools of its own in each task, which retry: cannot add one to")
    if hasattr(inner.cls, "_takes_words"):
        raise ConfigError(f"env: {rest} renews its history by itself, which retry: cannot go on from")
    members = {name: one for name, one in _PASSED.items() if inspect.getattr_static(inner.cls, name, None) is not None}
    members |= {name: getattr(inner, name) for name in ("irreversible", "replay_only", "version", "runs_code")}
    members["max_steps"] = None if inner.max_steps is None else tries * (inner.max_steps + 1) - 1
    members["one_thread"], members["deterministic_verifier"] = inner.one_thread, inner.deterministic_verifier
    members["restarts"] = inner.restarts | {"reflect"}
    members["_answers_differ"] = getattr(inner.cls, "_answers_differ", True)
    return adapted(_Retry, [*inner.tools.schemas, REFLECT], name=f"retry:{inner.name}", _spec=inner, **members)


class _Retry(Wrapper):
    """An environment whose failed attempts, by its own verdict, are followed by others; `adapt` makes the classes.

    Args:
        tries: Attempts of an episode at most, 2 or more.
        args: Arguments of the environment's constructor.
    """

    version: ClassVar[str]

    def __init__(self, tries: int = 2, **args: Any) -> None:
        self._inner = self._spec.cls(**args)
        prompt = getattr(self._inner, "system_prompt", "")
        self.system_prompt = f"{prompt} {PROMPT}".strip()
        self._tries, self._left, self._failed, self._begun = tries, 0, False, False
        self._task: dict[str, Any] = {}

    def reset(self, **task: Any) -> Any:
        """Start the first attempt."""
        self._task = dict(self._spec.task(task, "train", 0).args)  # without a name that reset does not take
        self._left, self._failed = self._tries - 1, False
        return self._inner.reset(**copy.deepcopy(self._task))

    @property
    def terminated(self) -> bool:
        """Whether the last attempt is over."""
        return bool(getattr(self._inner, "terminated", False)) and not self._failed

    def get_reward(self) -> Verdict:
        """Return the verdict of the attempt under way; its evidence has the attempt's number, from 1."""
        found = as_verdict(self._inner.get_reward(), self._spec.name, self.version, "get_reward()")
        return replace(found, evidence={**found.evidence, "attempt": self._tries - self._left})

    def _take(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        if tool == "reflect":
            if not self._failed:
                raise ToolError("reflect is called after a failed attempt; this one is not over")
            self._left, self._failed, self._begun = self._left - 1, False, True
            return self._inner.reset(**copy.deepcopy(self._task))
        if self._failed:
            raise ToolError(AGAIN)
        self._begun = False
        answer = getattr(self._inner, tool)(**arguments)
        if isinstance(answer, Refusal) or not getattr(self._inner, "terminated", False) or not self._fails():
            return answer
        return f"{to_text(answer)}\n{AGAIN}" if answer is not None else AGAIN

    def _reply(self, text: str) -> str | None:
        if self._failed:  # it gives up
            self._failed = False
            return None
        told: str | None = self._inner._reply(text) if hasattr(self._inner, "_reply") else None
        return told if told is not None or not self._fails() else AGAIN

    def _fails(self) -> bool:
        """Return whether the attempt that is over failed and another is left; of no verdict nobody knows."""
        self._failed = self._left > 0 and self.get_reward().success is False
        return self._failed


def _fingerprint(self: _Retry) -> str | None:
    """Return the attempt's fingerprint with the number of attempts that are left."""
    state = self._inner.fingerprint
    return None if state is None else f"{state}/{self._left}{'!' * self._failed}"


def _demonstrate(
    cls: type[_Retry], task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float
) -> Message:
    """Return the expert's next turn in the attempt under way; after a failed one a lesson that names its calls."""
    calls = [number for number, one in enumerate(messages) if _called(one) == "reflect"]
    first = next(number for number, one in enumerate(messages) if one["role"] == "user")
    begun = messages if not calls else [
        *messages[:first], {"role": "user", "content": messages[calls[-1] + 1]["content"]}, *messages[calls[-1] + 2 :]
    ]  # fmt: skip
    if FAILED in str(messages[-1].get("content")):
        made = [call["function"] for one in begun for call in one.get("tool_calls") or ()]
        words = (f"{one['name']}({', '.join(map(str, one['arguments'].values()))})" for one in made)
        return call_message("reflect", {"lesson": f"Not again: {', '.join(words)}"})
    assert cls._spec.demonstrate is not None  # else the class has no expert
    found: Message = cls._spec.demonstrate(task, begun, rng, noise)
    return found


def _called(message: Message) -> str | None:
    """Return the tool that a message calls first."""
    return next((str(call["function"]["name"]) for call in message.get("tool_calls") or ()), None)


_PASSED: dict[str, Any] = {
    "fingerprint": property(_fingerprint),
    "achieved_goal": property(lambda self: self._inner.achieved_goal),
    # a lesson earns nothing by itself
    "turn_reward": property(lambda self: None if self._begun else self._inner.turn_reward),
    "demonstrate": classmethod(_demonstrate),
}
"""Optional members that the class has where the environment has them."""
