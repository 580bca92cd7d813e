"""One live environment behind a boundary: errors are wrapped, arguments validated, texts cleaned and judges asked."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from offline_agent.envs.boundary import Boundary
from offline_agent.envs.tools import ToolSet
from offline_agent.envs.tools.validation import clean_text
from offline_agent.errors import EnvironmentFault, Refusal, ToolError, ends_the_run, in_words
from offline_agent.judges.judge import as_verdict
from offline_agent.records import Action, Anew, Context, Role, Step, Task, Trajectory, Verdict

if TYPE_CHECKING:
    from offline_agent.envs.description import EnvDescription


class StepResult(NamedTuple):
    """The answer to an action.

    Attributes:
        observation: Clean text; None when the episode ended without one.
        role: `tool`, or `user` where the scripted user speaks or a turn without a call is sent back.
        terminated: The episode is over.
        fault: Class of the error that the policy was told; None when the action went through.
        reward: The reward of the action alone, in [0, 1]: the environment's `turn_reward`, or 0 where a tool answered
            with an error or the action never reached the environment; None where the environment has no `turn_reward`,
            or it is None.
        anew: How the policy's history goes on; see `records.Anew`.
    """

    observation: str | None
    role: Role
    terminated: bool
    fault: str | None
    reward: float | None = None
    anew: Anew | None = None


_BAD_INPUT = (ValueError, TypeError, LookupError, ToolError)


class Episode:
    """One live environment; for the thread that made it (`usable_here`). Made by `EnvSpec.open`.

    Where the environment has a judge, the episode keeps its history, and verdicts are the judge's on it: search,
    roll-outs, evaluation and replays all ask an episode. A class for another process (`IsolatedEpisode`) overrides
    what touches the environment; `begin`, `execute` and `own_verdict` know of no judge.

    Attributes:
        spec: The environment.
        tools: The tools of this episode: the spec's, unless the environment has its own for each task
            (attribute `_tools`, read after `reset`).
    """

    def __init__(self, spec: EnvDescription, environment: Any) -> None:
        self.spec = spec
        self.tools: ToolSet = spec.tools
        self._env = environment
        self._boundary = Boundary(spec, environment)
        self._thread = threading.current_thread()
        self._open = True
        spec.census.count(1)
        self._over = False
        self._inside = False  # whether a sub-agent is at work
        self._context: Context | None = None  # the history, where there is a judge
        self._steps: tuple[Step, ...] = ()

    @property
    def terminated(self) -> bool:
        """Whether the episode is over."""
        return self._over or bool(self._boundary.read("terminated", False))

    @property
    def usable_here(self) -> bool:
        """Whether the present thread may use it: it opened or copied it, or the environment allows any thread."""
        return not self.spec.one_thread or self._thread is threading.current_thread()

    @property
    def system_prompt(self) -> str:
        """The system prompt of the instance, which may depend on the constructor's arguments."""
        prompt = self._read("system_prompt", "")
        return prompt if isinstance(prompt, str) else self.spec.system_prompt

    def reset(self, task: Task) -> str:
        """Start the task and return the first observation.

        Raises:
            EnvironmentFault: `reset` raised, returned None, or left the episode over.
        """
        self._over = self._inside = False
        self._boundary.task = task
        observation = self.begin(task)
        if self.spec.judge is not None:
            self._context, self._steps = Context(task, self.system_prompt, self.tools.schemas, observation), ()
        return observation

    def begin(self, task: Task) -> str:
        """Reset the environment and return the first observation; raises as `reset`."""
        observation = self._boundary.call("reset", copy.deepcopy(dict(task.args)))
        if observation is None:
            raise EnvironmentFault(
                f"{self.spec.name}: reset() returned None (task {task.task_id}); return the first observation as text"
            )
        if self.terminated:
            raise EnvironmentFault(
                f"{self.spec.name}: `terminated` is True after reset() (task {task.task_id}), so that no action can be "
                f"played; set it False in reset(), and leave tasks out that are over before "
                "they begin"
            )
        own = self._read("_tools", None)
        self.tools = own if isinstance(own, ToolSet) else self.spec.tools
        return self._boundary.text(observation)

    def step(self, action: Action) -> StepResult:
        """Execute one action.

        A faulty action never reaches the environment: the answer says what is wrong with it. ValueError, TypeError,
        LookupError and ToolError from a tool mean bad input, and their messages go to the policy; so does a `Refusal`
        that it returns. TRL does so with any exception; here other errors mean that the environment is broken.

        Raises:
            EnvironmentFault: The environment raised anything else, or the tool is irreversible and not sandboxed.
            RuntimeError: The episode was not reset or is over.
        """
        result = self.execute(action)
        if self._context is not None:
            key, (observation, role, _, fault, reward, anew) = self.tools.canonical_key(action), result
            self._steps += (Step(action, key, observation, role, fault, reward, anew=anew),)
            self._context = self._context.child(action, observation, role, anew=anew)
        return result

    def execute(self, action: Action) -> StepResult:
        """Execute one action; raises as `step`."""
        if self._boundary.task is None or self.terminated:
            raise RuntimeError(
                f"{self.spec.name}: step() when the episode {'is over' if self._boundary.task else 'was not reset'}"
            )
        words = bool(self._read("_takes_words", False))
        if action.fault is not None and not words:
            reason = action.detail or f"the turn could not be read ({action.fault})"
            return self._result(f"Error: {reason.removeprefix('Error: ')}", "user", action.fault)
        if action.call is None or words:
            return self._answer(action)
        arguments, fault, detail = self.tools.validate(action.call)
        if arguments is None:
            return self._result(detail, "tool", fault)
        if action.call.name in self.spec.irreversible and not self.spec.sandboxed:
            raise EnvironmentFault(
                f"{self.spec.name}: {action.call.name!r} is irreversible and the environment is not sandboxed;"
                " run it in a sandbox and set sandboxed=True, or take the tool away"
            )
        try:
            answer = self._boundary.call(action.call.name, arguments, _BAD_INPUT)
            if isinstance(answer, Refusal):
                return self._result(answer, "tool", "tool_error")
            return self._executed(answer, "tool")
        except ToolError as error:
            return self._result(self._reason(error), "tool", error.fault)
        except _BAD_INPUT as error:
            return self._result(self._reason(error), "tool", "tool_error")

    def verdict(self) -> Verdict:
        """Return the verdict: the judge's on the history so far, or the environment's own; an error has no score."""
        own = self.own_verdict()
        if self.spec.judge is None or self._context is None:
            return own
        return self.spec.judge(Trajectory(self._context, self._steps, own, self.terminated, False, "rollout"))

    def own_verdict(self) -> Verdict:
        """Return the present state's verdict; an environment that cannot score gives `score=None` and says why."""
        name, version = f"{self.spec.name}.get_reward", self.spec.version
        if not hasattr(self._env, "get_reward"):
            return Verdict(None, None, name, version, error="the environment has no get_reward()")
        try:
            return as_verdict(self._boundary.call("get_reward", {}), name, version, "get_reward()")
        except Exception as error:  # what stands for a number may raise what it likes
            return Verdict(None, None, name, version, error=self._reason(error))

    def copy(self) -> Episode:
        """Return an independent episode in the same state.

        Raises:
            EnvironmentFault: The environment cannot be copied.
        """
        if self.spec.replay_only:
            raise EnvironmentFault(f"{self.spec.name}: replay_only environments are restored by replay, not copied")
        twin = self.duplicate()
        twin.tools, twin._boundary.task = self.tools, self._boundary.task
        twin._over, twin._inside = self._over, self._inside
        twin._context, twin._steps = self._context, self._steps
        return twin

    def duplicate(self) -> Episode:
        """Return an episode with a copy of the environment alone; raises as `copy`."""
        try:
            return Episode(self.spec, copy.deepcopy(self._env))
        except BaseException as error:
            if ends_the_run(error):
                raise
            raise EnvironmentFault(
                f"{self.spec.name}: copy.deepcopy failed ({in_words(error)}); give the class a __deepcopy__, or set "
                "replay_only = True to have states restored by replay"
            ) from error

    def fingerprint(self) -> str | None:
        """Return the environment's hash of its state; None where it offers none.

        Raises:
            EnvironmentFault: The property raised.
        """
        value = self._read("fingerprint", None)
        return None if value is None else clean_text(str(value))

    def achieved_goal(self) -> dict[str, Any] | None:
        """Return the task that the present state fulfils, as `reset`'s keyword arguments; None where it does not say.

        Raises:
            EnvironmentFault: The property raised, or is neither a dict nor None.
        """
        value = self._read("achieved_goal", None)
        if value is not None and not isinstance(value, Mapping):
            raise EnvironmentFault(f"{self.spec.name}: achieved_goal must be a dict or None, is {type(value).__name__}")
        return None if value is None else copy.deepcopy(dict(value))

    def turn_reward(self) -> float | None:
        """Return the reward of the last executed call alone, in [0, 1]; None where the environment does not say.

        Raises:
            EnvironmentFault: The attribute raised, or is no number in [0, 1].
        """
        value = self._read("turn_reward", None) if self.spec.turn_rewards else None
        if value is None:
            return None
        try:
            reward = float(value)
        except Exception:  # what stands for a number may raise what it likes
            reward = math.nan
        if not 0.0 <= reward <= 1.0:
            raise EnvironmentFault(f"{self.spec.name}: turn_reward is {value!r}; allowed: a number in [0, 1], or None")
        return reward

    def _read(self, attribute: str, otherwise: Any) -> Any:
        return self._boundary.read(attribute, otherwise)

    def close(self) -> None:
        """Close the environment (`__exit__`, where it has one).

        Raises:
            EnvironmentFault: `__exit__` raised.
        """
        self._leave()
        if hasattr(type(self._env), "__exit__"):
            try:
                self._env.__exit__(None, None, None)
            except BaseException as error:
                raise self._boundary.fault("__exit__", error) from error

    def __del__(self) -> None:
        if hasattr(self, "_open"):
            self._leave()

    def _leave(self) -> None:
        """Count it as closed, once."""
        if self._open:
            self._open = False
            self.spec.census.count(-1)

    def _answer(self, action: Action) -> StepResult:
        """End the user's turn: the scripted user speaks again, or the episode is over."""
        answer, said = None, action.message()["content"] if action.call is None else action.text
        if hasattr(self._env, "_reply"):
            answer = self._boundary.call("_reply", {"text": clean_text(said)})
        if answer is None:
            self._over = True
            return StepResult(None, "user", True, None, self._nothing)
        return self._executed(answer, "user")

    @property
    def _nothing(self) -> float | None:
        return 0.0 if self.spec.turn_rewards else None

    def _executed(self, observation: Any, role: Role) -> StepResult:
        """Return the result of an action that the environment executed."""
        anew = self._read("_anew", None)
        if anew not in (None, *get_args(Anew)):
            raise EnvironmentFault(f"{self.spec.name}: _anew is {anew!r}, allowed: None, {', '.join(get_args(Anew))}")
        if anew in ("enter", "leave"):
            if self._inside == (anew == "enter"):
                raise EnvironmentFault(f"{self.spec.name}: _anew is {anew!r}; allowed: enter and leave in turn")
            self._inside = anew == "enter"
        return StepResult(self._boundary.text(observation), role, self.terminated, None, self.turn_reward(), anew)

    def _result(self, observation: Any, role: Role, fault: str | None) -> StepResult:
        return StepResult(self._boundary.text(observation), role, self.terminated, fault, self._nothing)

    @staticmethod
    def _reason(error: Exception) -> str:
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        return f"Error: {(text or type(error).__name__).removeprefix('Error: ')}"
