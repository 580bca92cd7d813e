"""One episode from its reset to its verdict, and scripted play without a policy.

`play` plays a whole episode. Its parts serve callers that step many episodes at once for one policy (`begin`,
`execute`, `to_step`), or single states of a search tree (`execute`). `repeat` alone compares an answer with its record.
`ScriptedPlayer` plays the expert, given actions, and arguments drawn from the schemas.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from offline_agent.arguments.sources import SeenText
from offline_agent.arguments.values import argument_values
from offline_agent.envs.base import EnvSpec
from offline_agent.envs.episode import Episode, StepResult
from offline_agent.envs.tools import ToolSet
from offline_agent.errors import EnvironmentFault
from offline_agent.records import Action, Context, Origin, Step, Task, ToolCall, Trajectory, Verdict

RANDOM_CALLS = 8

Choose = Callable[[Context], Action | None]
"""Returns the action to take after a history; None ends the episode there."""


class Executed(NamedTuple):
    """One executed action.

    Attributes:
        result: The answer to it.
        verdict: On the state reached, where it was judged (see `execute`); None otherwise.
        fingerprint: Of that state, where it was read; None otherwise, and where the environment offers none.
    """

    result: StepResult
    verdict: Verdict | None
    fingerprint: str | None


class ReplayMismatch(EnvironmentFault):
    """A replay differed from what was recorded, `depth` actions after the start; values behind that are noise."""

    def __init__(self, task: Task, depth: int, what: str) -> None:
        super().__init__(
            f"replaying {depth} actions of task {task.task_id!r} gave another {what} than before: "
            "the environment is not deterministic, its copies share state, or the record is of another one"
        )
        self.depth = depth

    @classmethod
    def logged(cls, text: str, depth: int) -> ReplayMismatch:
        """Return one that an event log tells of."""
        made = cls.__new__(cls)
        made.args, made.depth = (text,), depth
        return made


def repeat(episode: Episode, task: Task, action: Action | None, observation: str | None, depth: int) -> None:
    """Take a recorded action again (None = the reset); in the record the episode went on after it.

    Args:
        episode: The episode, in the state in which the action was taken.
        task: The task.
        action, observation: What was recorded.
        depth: Number of actions since the start, this one included.

    Raises:
        ReplayMismatch: It is answered differently, or the episode is over.
        EnvironmentFault: The environment broke.
    """
    if action is None:
        seen: str | None = episode.reset(task)
        over = False
    else:
        seen, _, over, *_ = episode.step(action)
    if over or seen != observation:
        raise ReplayMismatch(task, depth, "end" if over else "observation")


def begin(episode: Episode, task: Task) -> Context:
    """Reset an episode; return the history. Raises EnvironmentFault."""
    first = episode.reset(task)
    return Context(task, episode.system_prompt, episode.tools.schemas, first)  # both may depend on the task


def execute(episode: Episode, action: Action, *, last: bool = False, fingerprint: bool = False) -> Executed:
    """Execute an action; judge the state that it leads to where the episode ends there.

    Args:
        episode: The episode.
        action: The action.
        last: The caller cuts the episode after this action, so the state is judged too.
        fingerprint: Read the fingerprint of every state, not only of one that is judged.

    Raises:
        EnvironmentFault: The environment broke; its state is unknown then.
    """
    result = episode.step(action)
    judged = result.terminated or last
    # The fingerprint comes first: a verifier that changes the state must not change what the state is called.
    seen = episode.fingerprint() if judged or fingerprint else None
    return Executed(result, episode.verdict() if judged else None, seen)


def to_step(tools: ToolSet, action: Action, result: StepResult) -> Step:
    """Return the record of an executed action."""
    observation, role, _, fault, reward, anew = result
    return Step(action, tools.canonical_key(action), observation, role, fault, reward, anew=anew)


def extend(context: Context, step: Step) -> Context:
    """Return the history after a step."""
    return context.child(step.action, step.observation, step.role, anew=step.anew)


def play(
    episode: Episode,
    task: Task,
    choose: Choose,
    max_steps: int,
    *,
    after: Context | None = None,
    judge: bool = True,
    origin: Origin = "rollout",
) -> Trajectory:
    """Play an episode until it is over, `choose` ends it, or it has `max_steps` actions.

    Args:
        episode: The episode; it stays open.
        task: The task.
        choose: Returns each action.
        max_steps: Most actions.
        after: The history of an episode that was begun before, to go on from there; None resets the episode.
        judge: Ask for the verdict on the last state, however it was reached.
        origin: Noted on the trajectory.

    Returns:
        The whole history, with the steps taken here.

    Raises:
        EnvironmentFault: The environment broke.
    """
    context = begin(episode, task) if after is None else after
    steps: list[Step] = []
    while not episode.terminated and len(steps) < max_steps:
        action = choose(context)
        if action is None:
            break
        steps.append(to_step(episode.tools, action, episode.step(action)))
        context = extend(context, steps[-1])
    over = episode.terminated
    cut = None if over else "max_steps"
    return Trajectory(context, tuple(steps), episode.verdict() if judge else None, over, not over, origin, cut)


def script(actions: Sequence[Action], start: int = 0) -> Choose:
    """Return a choice that takes the actions one after the other, the first after a history of `start` actions."""

    def choose(context: Context) -> Action | None:
        position = context.depth - start
        return actions[position] if position < len(actions) else None

    return choose


class ScriptedPlayer:
    """Plays an environment without a policy.

    Args:
        spec: The environment.
        max_steps: Most actions in one run.

    Attributes:
        longest: Most actions of a script; fewer where calls are slow.
    """

    def __init__(self, spec: EnvSpec, max_steps: int) -> None:
        self.spec = spec
        self.max_steps = self.longest = max_steps
        self._scripts: dict[str, list[Action]] = {}

    def script(self, task: Task) -> list[Action]:
        """Return actions to take: the noisy expert's where there is one, else random calls; the same each time."""
        known = self._scripts.get(task.task_id)
        if known is None:
            played = self.walk(task) if self.spec.demonstrate is None else self.expert(task, 0.3, self.longest)
            known = self._scripts[task.task_id] = played.context.actions()
        return known

    def walk(self, task: Task, calls: int = RANDOM_CALLS, rare: Container[str] = ()) -> Trajectory:
        """Play random calls; half of them, where any is offered, of the tools in `rare`."""
        rng = random.Random(f"calls {task.task_id} {calls}")

        def choose(context: Context) -> Action | None:
            allowed = allowed_tools(self.spec, context)
            wanted = [schema for schema in allowed if name_of(schema) in rare]
            schemas = wanted if wanted and rng.random() < 0.5 else allowed
            return drawn_call(rng.choice(schemas), context, rng) if schemas else None

        with contextlib.closing(self.spec.open()) as episode:
            return play(episode, task, choose, min(calls, self.longest), judge=False)

    def expert(self, task: Task, noise: float = 0.0, longest: int | None = None) -> Trajectory:
        """Play the expert's actions in a fresh environment, `max_steps` at most or so many."""
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
            return play(episode, task, choose, longest or self.max_steps, origin="demonstration")

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


def difference(one: Trajectory, two: Trajectory, before: Trajectory | None = None) -> str | None:
    """Return where two runs of the same actions first differ, with both answers, in words; None where they agree.

    Args:
        one, two: The runs.
        before: The run that `two` continues; None = it is whole.
    """
    (start, shown, *end), (other_start, other_shown, *other_end) = facts(one), facts(two, before)
    if start != other_start:
        return f"reset: {both(start, other_start)}"
    for number, (first, second) in enumerate(zip(shown, other_shown, strict=False)):
        if first != second:
            asked = one.steps[number].action.call
            told = "an answer" if asked is None else f"{asked.name} {asked.arguments!r:.200}"
            pairs = zip(first, second, strict=True)
            return f"call {number + 1}, {told}: {both(*next(pair for pair in pairs if pair[0] != pair[1]))}"
    if len(shown) != len(other_shown):
        return f"after {min(len(shown), len(other_shown))} calls only one of them was over"
    return None if end == other_end else f"at the end (over, (score, success)): {both(end, other_end)}"


def both(one: Any, two: Any) -> str:
    """Return two answers, from shortly before the place where they differ."""
    first, second = (each if isinstance(each, str) else repr(each) for each in (one, two))
    at = max(0, len(os.path.commonprefix([first, second])) - 40)
    return " | ".join(f"{'...' * bool(at)}{each[at : at + 160]!r}" for each in (first, second))


def call(name: str, arguments: Mapping[str, Any]) -> Action:
    """Return the action that calls a tool."""
    return Action(name, call=ToolCall(name, arguments))


def faulty(episode: Episode) -> Iterator[Action]:
    """Yield turns that must be refused: broken JSON, an unknown tool, unknown arguments, values of a wrong type."""
    yield Action("<tool_call>{", fault="invalid_json", detail="the call is no JSON")
    yield call("no_such_tool_here", {})
    for schema in episode.tools.schemas[:5]:
        name = schema["function"]["name"]
        unknown = ToolCall(name, {"no_such_argument_here": 1})
        if episode.tools.validate(unknown)[1]:  # a foreign schema may allow any name
            yield Action(name, call=unknown)
        for argument in schema["function"].get("parameters", {}).get("required", ())[:1]:
            yield call(name, {argument: {"not": ["the", object()]}})


def drawn_call(schema: Mapping[str, Any], context: Context, rng: random.Random) -> Action:
    """Return a call of a tool with random arguments that fit its schema (`arguments.values`)."""
    function = schema["function"]
    shape, told = function.get("parameters") or {}, str(function.get("description") or "")
    return call(function["name"], argument_values(shape, rng, SeenText.of(context), told))


def allowed_tools(spec: EnvSpec, context: Context) -> list[Mapping[str, Any]]:
    """Return the tools of a history that may be called by chance: none that is irreversible outside of a sandbox."""
    return [schema for schema in context.tools if spec.sandboxed or name_of(schema) not in spec.irreversible]


def name_of(schema: Mapping[str, Any]) -> str:
    """Return a tool's name."""
    return str(schema["function"]["name"])
