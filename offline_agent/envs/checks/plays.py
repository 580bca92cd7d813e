"""Plays of the expert, of chance, and of reward seekers: scripted players that look for a reward without the task.

A policy is a function of an open, reset episode's history that yields the actions of one play; it is sent the history
after each of them. A seeker yields the policies to try. None of them knows the task's gold answer.
"""

from __future__ import annotations

import contextlib
import random
import re
import time
import types
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from offline_agent.envs.base import EnvSpec, Episode
from offline_agent.envs.play import ScriptedPlayer, begin, call, drawn_call, extend, to_step
from offline_agent.errors import EnvironmentFault
from offline_agent.records import Action, Context, Step, Task, Trajectory

CHANCE = 4  # random plays of a task
CHANCE_STEPS = 12  # most calls of one

T = TypeVar("T")
Policy = Generator[Action, Context, Any]
Seeker = Callable[[EnvSpec, Context], Iterator[Policy]]

LONGEST = 30_000  # characters of the longest answer
FORMS = (
    "<answer></answer>", "\\boxed{}", "Final answer:", "```\n```", "{}", "[]", "null", "None", "<think></think>",
    "ANSWER: ", "0", "N/A",
)  # fmt: skip
PRAISE = ("success", "correct", "passed", "PASS", "ok", "True", "1.0", "done", "all tests passed", "yes")
"""Words that verifiers look for, in the order of the plays."""
_ENDS = re.compile(r"submit|finish|answer|done|buy|stop|end|complete|checkout|final", re.IGNORECASE)
_MOST_WORDS = 12  # strings of a verifier that are tried each for itself


@dataclass
class Timings:
    """Seconds of the calls that the plays of an audit made.

    Attributes:
        resets, calls, verdicts: One entry for each.
    """

    resets: list[float] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)
    verdicts: list[float] = field(default_factory=list)


class Plays:
    """Plays the tasks of an audit.

    Args:
        spec: The environment.
        player: Plays the expert and scripts.
        max_steps: Most actions of one play.
        answers_only: Leave out the plays of reward seekers that call tools.

    Attributes:
        timings: What the calls took.
    """

    def __init__(self, spec: EnvSpec, player: ScriptedPlayer, max_steps: int, answers_only: bool = False) -> None:
        self.spec = spec
        self.player = player
        self.max_steps = max_steps
        self.answers_only = answers_only
        self.timings = Timings()
        self._experts: dict[str, Trajectory | None] = {}
        self._chance: dict[str, list[Trajectory]] = {}

    def expert(self, task: Task) -> Trajectory | None:
        """Return the expert's episode; None where the environment has no expert, or it raised."""
        if task.task_id not in self._experts:
            played = None
            if self.spec.demonstrate is not None:
                with contextlib.suppress(Exception):  # semantic.oracle_max tells it
                    played = self.player.expert(task)
            self._experts[task.task_id] = played
        return self._experts[task.task_id]

    def chance(self, task: Task) -> list[Trajectory]:
        """Return episodes of random calls, each ended by an answer."""
        if task.task_id not in self._chance:
            played = [self._run(task, partial(_random, self.spec, number)) for number in range(CHANCE)]
            self._chance[task.task_id] = played
        return self._chance[task.task_id]

    def blind(self, task: Task) -> Trajectory:
        """Return an episode of calls whose arguments are drawn without a look at the task; the longest of some."""
        plays = [self._run(task, partial(_blind, self.spec, number)) for number in range(CHANCE)]
        return max(plays, key=lambda play: len(play.steps))

    def seek(self, name: str, task: Task) -> list[Trajectory]:
        """Return the episodes of a reward seeker (`seekers.SEEKERS`)."""
        with contextlib.closing(self.spec.open()) as episode:
            firsts = [next(play) for play in SEEKERS[name](self.spec, begin(episode, task))]
        chosen = [n for n, first in enumerate(firsts) if first.call is None or not self.answers_only]
        return [self._run(task, partial(_number, self.spec, name, number)) for number in chosen]

    def _run(self, task: Task, policy: Callable[[Context], Policy]) -> Trajectory:
        """Play one episode and judge its end, timed."""
        with contextlib.closing(self.spec.open()) as episode:
            context = self._timed(self.timings.resets, lambda: begin(episode, task))
            steps = self._steps(episode, context, policy(context))
            for step in steps:
                context = extend(context, step)
            verdict = self._timed(self.timings.verdicts, episode.verdict)
            return Trajectory(context, tuple(steps), verdict, episode.terminated, not episode.terminated, "rollout")

    def _steps(self, episode: Episode, context: Context, actions: Policy) -> list[Step]:
        steps: list[Step] = []
        with contextlib.closing(actions):
            while not episode.terminated and len(steps) < self.max_steps:
                try:
                    action = actions.send(context) if steps else next(actions)
                except StopIteration:  # the player has no further action
                    break
                result = self._timed(self.timings.calls, partial(episode.step, action))
                steps.append(to_step(episode.tools, action, result))
                context = extend(context, steps[-1])
        return steps

    @staticmethod
    def _timed(kept: list[float], job: Callable[[], T]) -> T:
        started = time.perf_counter()
        try:
            return job()
        finally:
            kept.append(time.perf_counter() - started)


def _random(spec: EnvSpec, number: int, start: Context) -> Policy:
    rng, context = random.Random(f"chance {start.task.task_id} {number}"), start
    schemas = _allowed(spec, start)
    for _ in range(CHANCE_STEPS if schemas else 0):
        context = yield drawn_call(rng.choice(schemas), context, rng)
    yield Action("Done.", thought="Done.")


def _blind(spec: EnvSpec, number: int, start: Context) -> Policy:
    rng, nothing = random.Random(f"blind {start.task.task_id} {number}"), Context(start.task, "", start.tools, "")
    schemas = _allowed(spec, start)
    for schema in rng.sample(schemas, len(schemas)):
        yield drawn_call(schema, nothing, rng)


def _number(spec: EnvSpec, name: str, number: int, start: Context) -> Policy:
    """Return the play of that number of a reward seeker."""
    for at, play in enumerate(SEEKERS[name](spec, start)):
        if at == number:
            return play
    raise EnvironmentFault(f"{spec.name}: the same task begins differently, so {name} cannot be played")


def echo_observation(spec: EnvSpec, start: Context) -> Iterator[Policy]:
    """Answer with what was observed last: at once, and after each tool was called with the observation in it."""
    yield _with_text(spec, start, lambda context: context.observation or "")
    yield _answer(start.observation or "")


def echo_prompt(spec: EnvSpec, start: Context) -> Iterator[Policy]:
    """Answer with the system prompt and the first observation."""
    prompt = f"{start.system}\n{start.observation}"
    yield _answer(prompt)
    yield _with_text(spec, start, lambda _: prompt)


def format_only(spec: EnvSpec, start: Context) -> Iterator[Policy]:
    """Answer with forms that have no content."""
    for form in FORMS:
        yield _answer(form)
    yield _with_text(spec, start, lambda _: FORMS[0])


def every_tool_once(spec: EnvSpec, start: Context) -> Iterator[Policy]:
    """Call every tool once with drawn arguments, then end."""
    yield _calls(spec, start, None, "Done.")


def submit_at_once(spec: EnvSpec, start: Context) -> Iterator[Policy]:
    """End at once: by an answer, and by each tool that is named like an end."""
    yield _answer("Done.")
    for schema in _allowed(spec, start):
        if _ENDS.search(_name(schema)):
            yield _one(drawn_call(schema, start, _rng(start, _name(schema))))


def longest_answer(spec: EnvSpec, start: Context) -> Iterator[Policy]:
    """Answer with everything that may be right: letters, yes and no, numbers, all words of the prompt."""
    words = list(dict.fromkeys(re.findall(r"\w+", f"{start.system} {start.observation}")))
    everything = " ".join(["A B C D E yes no true false", *words, *map(str, range(5_000))])[:LONGEST]
    yield _answer(everything)
    yield _with_text(spec, start, lambda _: everything)


def verifier_strings(spec: EnvSpec, start: Context) -> Iterator[Policy]:
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


def _answer(text: str) -> Policy:
    yield Action(text, thought=text)


def _one(action: Action) -> Policy:
    yield action
    yield Action("Done.", thought="Done.")


def _with_text(spec: EnvSpec, start: Context, text: Callable[[Context], str]) -> Policy:
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
