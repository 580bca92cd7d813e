"""Environments made of parts: the tools of several environments, and an answer of their own, in one class.

    class Detective(Composition):
        parts = {"library": Part(SearchQA, "search", "read"), "records": Part(SQL, "describe", "query")}

        @classmethod
        def tasks(cls, split):  # reset's arguments of each part, under its name
            yield {"question": "...", "gold": ["..."], "library": {...}, "records": {...}}

`examples/detective.py` is a whole one.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from offline_agent.envs.base import ToolError, twin
from offline_agent.judges.verifiers import exact_match
from offline_agent.records import Verdict


class Part:
    """An environment whose tools are used.

    Args:
        environment: Its class.
        *tools: Names of the tools that are taken over; those that end its own task are better left out.
        args: Arguments of its constructor.
        **renamed: New name → name of a tool, where two parts have a tool of one name.

    Raises:
        TypeError: The class has no such tool.
    """

    def __init__(self, environment: type, *tools: str, args: Mapping[str, Any] | None = None, **renamed: str) -> None:
        self.environment, self.args = environment, dict(args or {})
        self.tools = {**{name: name for name in tools}, **renamed}
        for name in self.tools.values():
            if not inspect.isfunction(getattr(environment, name, None)) or name.startswith("_"):
                raise TypeError(f"{environment.__name__} has no tool {name!r}")


class Composition:
    """A question that is answered with the tools of all parts, and a final `answer`.

    A subclass names `parts` and has `tasks`; perhaps `demonstrate`, `system_prompt`, and a `get_reward` of its own,
    which has `self.answered` (None until then) and `self.task` (reset's arguments). By default the answer is compared
    with the task's `gold` as SQuAD does it.

    Attributes:
        parts: Name → part.
    """

    parts: ClassVar[Mapping[str, Part]] = {}
    system_prompt: ClassVar[str] = "Answer the question with the tools; hand the answer in with answer(text)."
    version: ClassVar[str] = "1"
    _answers_differ: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = {name for name in vars(cls) if not name.startswith("_")}
        taken: dict[str, str] = {}
        for part_name, part in cls.parts.items():
            for name, original in part.tools.items():
                if name in taken or name in ("answer", "reset", "get_reward") or name in own:
                    other = f"part {taken[name]!r}" if name in taken else "the class itself"
                    raise TypeError(
                        f"{cls.__name__}: the tool {name!r} of part {part_name!r} is one of {other}, too; rename it, "
                        f"as in Part({part.environment.__name__}, {part_name}_{name}={original!r})"
                    )
                taken[name] = part_name
                setattr(cls, name, _forwarding(part_name, name, getattr(part.environment, original)))
        used = [part.environment for part in cls.parts.values()]
        cls.replay_only = any(getattr(one, "replay_only", False) for one in used)  # type: ignore[attr-defined]
        cls.one_thread = any(getattr(one, "one_thread", True) for one in used)  # type: ignore[attr-defined]
        cls.runs_code = any(getattr(one, "runs_code", False) for one in (cls, *used))  # type: ignore[attr-defined]
        cls.irreversible = frozenset(  # type: ignore[attr-defined]
            name
            for part in cls.parts.values()
            for name, original in part.tools.items()
            if original in getattr(part.environment, "irreversible", ())
        )

    def __init__(self) -> None:
        self._parts: dict[str, Any] = {name: part.environment(**part.args) for name, part in self.parts.items()}
        self.answered: str | None = None
        self.task: dict[str, Any] = {}

    def reset(self, question: str, **task: Any) -> str:
        """Start a question: every part is reset, and the question returned.

        Args:
            question: The question.
            **task: `gold` and whatever else the class uses; under a part's name its `reset`'s arguments.
        """
        self.task, self.answered = {"question": question, **task}, None
        for name, part in self._parts.items():
            part.reset(**self._arguments(name))
        return question

    def answer(self, text: str) -> str:
        """Hand in the answer to the question; this ends the task.

        Args:
            text: The answer alone: a name, a number or a few words.
        """
        if self.answered is not None:
            raise ToolError("the question is answered")
        self.answered = text
        return "answered"

    def get_reward(self) -> float | Verdict | None:
        """Return 1 for an accepted answer, else 0."""
        if self.answered is None:
            return Verdict(0.0, False, "composition.answer", self.version, {"answer": None})
        return exact_match(self.answered, self.task["gold"])

    @property
    def terminated(self) -> bool:
        """Whether the question is answered, or a part is over."""
        return self.answered is not None or any(getattr(part, "terminated", False) for part in self._parts.values())

    @property
    def fingerprint(self) -> str | None:
        """A hash of the parts' states and the answer; None where a part has no fingerprint."""
        states = [getattr(part, "fingerprint", None) for part in self._parts.values()]
        if None in states:
            return None
        return hashlib.blake2b(repr((states, self.answered)).encode("utf-8", "replace"), digest_size=8).hexdigest()

    def __deepcopy__(self, memo: dict[int, Any]) -> Composition:
        other = twin(self)
        other._parts = {name: copy.deepcopy(part, memo) for name, part in self._parts.items()}
        return other

    def __enter__(self) -> Composition:
        for name, part in self._parts.items():
            if hasattr(type(part), "__enter__"):
                entered = part.__enter__()
                self._parts[name] = part if entered is None else entered
        return self

    def __exit__(self, *error: object) -> None:
        for part in self._parts.values():
            if hasattr(type(part), "__exit__"):
                part.__exit__(*error)

    def _arguments(self, part: str) -> Mapping[str, Any]:
        """Return `reset`'s arguments of a part; by default those that the task has under its name."""
        found: Mapping[str, Any] = self.task.get(part) or {}
        return found


def _forwarding(part: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method with a tool's signature and docstring that calls it on the part."""
    original = function.__name__

    @functools.wraps(function)
    def tool(self: Composition, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._parts[part], original)(*args, **kwargs)

    tool.__name__ = name
    tool.__qualname__ = name
    return tool
