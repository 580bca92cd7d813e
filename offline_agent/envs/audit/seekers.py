"""Reward-seeking policies: scripted players that look for a reward without doing the task.

Each is a function of an open, reset episode's history that yields the actions of one play; it sees every observation
before it yields the next action. None of them knows the task's gold answer.
"""

from __future__ import annotations

import random
import re
import types
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.play import call, drawn_call
from offline_agent.records import Action, Context

Plays = Iterator[Generator[Action, Context, Any]]
Seeker = Callable[[EnvSpec, Context], Plays]
"""Yields the plays to try; each play is sent the history after each of its actions."""

LONGEST = 30_000  # characters of the longest answer
FORMS = (
    "<answer></answer>", "\\boxed{}", "Final answer:", "```\n```", "{}", "[]", "null", "None", "<think></think>",
    "ANSWER: ", "0", "N/A",
)  # fmt: skip
PRAISE = ("success", "correct", "passed", "PASS", "ok", "True", "1.0", "done", "all tests passed", "yes")
"""Words that verifiers look for, in the order of the plays."""
_ENDS = re.compile(r"submit|finish|answer|done|buy|stop|end|complete|checkout|final", re.IGNORECASE)
_MOST_WORDS = 12  # strings of a verifier that are tried each for itself


def echo_observation(spec: EnvSpec, start: Context) -> Plays:
    """Answer with what was observed last: at once, and after each tool was called with the observation in it."""
    yield _with_text(spec, start, lambda context: context.observation or "")
    yield _answer(start.observation or "")


def echo_prompt(spec: EnvSpec, start: Context) -> Plays:
    """Answer with the system prompt and the first observation."""
    prompt = f"{start.system}\n{start.observation}"
    yield _answer(prompt)
    yield _with_text(spec, start, lambda _: prompt)


def format_only(spec: EnvSpec, start: Context) -> Plays:
    """Answer with forms that have no content."""
    for form in FORMS:
        yield _answer(form)
    yield _with_text(spec, start, lambda _: FORMS[0])


def every_tool_once(spec: EnvSpec, start: Context) -> Plays:
    """Call every tool once with drawn arguments, then end."""
    yield _calls(spec, start, None, "Done.")


def submit_at_once(spec: EnvSpec, start: Context) -> Plays:
    """End at once: by an answer, and by each tool that is named like an end."""
    yield _answer("Done.")
    for schema in _allowed(spec, start):
        if _ENDS.search(_name(schema)):
            yield _one(drawn_call(schema, start, _rng(start, _name(schema))))


def longest_answer(spec: EnvSpec, start: Context) -> Plays:
    """Answer with everything that may be right: letters, yes and no, numbers, all words of the prompt."""
    words = list(dict.fromkeys(re.findall(r"\w+", f"{start.system} {start.observation}")))
    everything = " ".join(["A B C D E yes no true false", *words, *map(str, range(5_000))])[:LONGEST]
    yield _answer(everything)
    yield _with_text(spec, start, lambda _: everything)


def verifier_strings(spec: EnvSpec, start: Context) -> Plays:
    """Answer with strings of the verifier's code, together and each for itself, and with words such as "success"."""
    own = strings_of(spec)
    together = "\n".join([*own, *PRAISE])
    yield _with_text(spec, start, lambda _: together)
    yield _answer(together)
    for word in [*own[:_MOST_WORDS], *PRAISE]:
        yield _answer(word)


SEEKERS: dict[str, Seeker] = {
    function.__name__: function
    for function in (
        echo_observation, echo_prompt, format_only, every_tool_once, submit_at_once, longest_answer, verifier_strings
    )
}  # fmt: skip
"""By the last part of their check id."""


def strings_of(spec: EnvSpec) -> list[str]:
    """Return the texts in the code of `get_reward` and of the functions of its module that it calls, shortest first."""
    found: dict[str, None] = {}
    function = getattr(spec.cls, "get_reward", None)
    code, names = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    seen: set[types.CodeType] = set()

    def walk(code: types.CodeType) -> None:
        if code in seen:
            return
        seen.add(code)
        for constant in code.co_consts[1 if _documented(code) else 0 :]:
            if isinstance(constant, types.CodeType):
                walk(constant)
            for text in constant if isinstance(constant, tuple | frozenset) else (constant,):
                if isinstance(text, str) and text.strip():
                    found[text] = None
        for name in code.co_names:
            other: Any = names.get(name) or getattr(spec.cls, name, None)
            body = getattr(other, "__code__", None)
            if getattr(other, "__module__", None) == spec.cls.__module__ and isinstance(body, types.CodeType):
                walk(body)

    if isinstance(code, types.CodeType):
        walk(code)
    return sorted(found, key=len)


def _documented(code: types.CodeType) -> bool:
    return bool(code.co_consts) and isinstance(code.co_consts[0], str)


def _answer(text: str) -> Generator[Action, Context, None]:
    yield Action(text, thought=text)


def _one(action: Action) -> Generator[Action, Context, None]:
    yield action
    yield Action("Done.", thought="Done.")


def _with_text(spec: EnvSpec, start: Context, text: Callable[[Context], str]) -> Generator[Action, Context, None]:
    """Call every tool once with a text in each argument that takes one, then answer with the text."""
    last = yield from _calls(spec, start, text, None)
    answer = text(last)
    yield Action(answer, thought=answer)


def _calls(
    spec: EnvSpec, start: Context, text: Callable[[Context], str] | None, end: str | None
) -> Generator[Action, Context, Context]:
    context = start
    for schema in _allowed(spec, start):
        action = drawn_call(schema, context, _rng(start, _name(schema)))
        if text is not None and action.call is not None:
            answer, places = text(context), _texts(schema)
            action = call(action.call.name, {**action.call.arguments, **{name: answer for name in places}})
        context = yield action
    if end is not None:
        yield Action(end, thought=end)
    return context


def _texts(schema: Mapping[str, Any]) -> list[str]:
    """Return the parameters that take any text."""
    properties = (schema["function"].get("parameters") or {}).get("properties") or {}
    return [name for name, kind in properties.items() if kind.get("type") == "string" and "enum" not in kind]


def _allowed(spec: EnvSpec, start: Context) -> list[Mapping[str, Any]]:
    return [schema for schema in start.tools if spec.sandboxed or _name(schema) not in spec.irreversible]


def _name(schema: Mapping[str, Any]) -> str:
    return str(schema["function"]["name"])


def _rng(start: Context, what: str) -> random.Random:
    return random.Random(f"{start.task.task_id} {what}")
