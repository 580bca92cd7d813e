"""Plays of the expert, of chance, and of reward seekers: scripted players that look for a reward without the task.

A policy is a function of an open, reset episode's history that yields the actions of one play; it is sent the history
after each of them. A seeker yields the policies to try. None of them knows the task's gold answer.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from itertools import compress
from typing import Any

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.play import ScriptedPlayer, allowed_tools, begin, call, drawn_call, name_of, play
from offline_agent.records import Action, Context, Task, Trajectory

CHANCE = 4  # random plays of a task
CHANCE_STEPS = 12  # most calls of one

Policy = Generator[Action, Context, Any]
Seeker = Callable[[EnvSpec, Context], Iterator[Policy]]

LONGEST = 30_000  # characters of the longest answer
FORMS = (
    "<answer></answer>", "\\boxed{}", "Final answer:", "```\n```", "{}", "[]", "null", "None", "<think></think>",
    "ANSWER: ", "0", "N/A",
)  # fmt: skip
_ENDS = re.compile(r"submit|finish|answer|done|buy|stop|end|complete|checkout|final", re.IGNORECASE)


class Plays:
    """Plays the tasks of an audit.

    Args:
        spec: The environment.
        player: Plays the expert and scripts.
        max_steps: Most actions of one play.
        answers_only: Leave out the plays of reward seekers that call tools.
    """

    def __init__(self, spec: EnvSpec, player: ScriptedPlayer, max_steps: int, answers_only: bool = False) -> None:
        self.spec = spec
        self.player = player
        self.max_steps = max_steps
        self.answers_only = answers_only
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
            start = self._start(task)
            self._chance[task.task_id] = [self._run(task, _random(self.spec, n, start)) for n in range(CHANCE)]
        return self._chance[task.task_id]

    def seek(self, name: str, task: Task) -> list[Trajectory]:
        """Return the episodes of a reward seeker (`SEEKERS`)."""
        start = self._start(task)
        firsts = map(next, SEEKERS[name](self.spec, start))
        chosen = [first.call is None or not self.answers_only for first in firsts]
        return [self._run(task, policy) for policy in compress(SEEKERS[name](self.spec, start), chosen)]

    def _start(self, task: Task) -> Context:
        with contextlib.closing(self.spec.open()) as episode:
            return begin(episode, task)

    def _run(self, task: Task, actions: Policy) -> Trajectory:
        """Play one episode and judge its end."""
        with contextlib.closing(self.spec.open()) as episode:
            start = begin(episode, task)

            def choose(context: Context) -> Action | None:
                with contextlib.suppress(StopIteration):  # the player has no further action
                    return next(actions) if context is start else actions.send(context)
                return None

            return play(episode, task, choose, self.max_steps, after=start)


def _random(spec: EnvSpec, number: int, start: Context) -> Policy:
    rng, context = random.Random(f"chance {start.task.task_id} {number}"), start
    schemas = allowed_tools(spec, start)
    for _ in range(CHANCE_STEPS if schemas else 0):
        context = yield drawn_call(rng.choice(schemas), context, rng)
    yield Action("Done.", thought="Done.")


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
    for schema in allowed_tools(spec, start):
        if _ENDS.search(name_of(schema)):
            yield _one(drawn_call(schema, start, _rng(start, name_of(schema))))


def longest_answer(spec: EnvSpec, start: Context) -> Iterator[Policy]:
    """Answer with everything that may be right: letters, yes and no, numbers, all words of the prompt."""
    words = list(dict.fromkeys(re.findall(r"\w+", f"{start.system} {start.observation}")))
    everything = " ".join(["A B C D E yes no true false", *words, *map(str, range(5_000))])[:LONGEST]
    yield _answer(everything)
    yield _with_text(spec, start, lambda _: everything)


SEEKERS: dict[str, Seeker] = {
    function.__name__: function
    for function in (
        echo_observation, echo_prompt, format_only, every_tool_once, submit_at_once, longest_answer
    )
}  # fmt: skip
"""By the last part of their check id."""


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
    for schema in allowed_tools(spec, start):
        action = drawn_call(schema, context, _rng(start, name_of(schema)))
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


def _rng(start: Context, what: str) -> random.Random:
    return random.Random(f"{start.task.task_id} {what}")
