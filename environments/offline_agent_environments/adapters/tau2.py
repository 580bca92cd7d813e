"""Domains of tau2-bench (Barres et al. 2025): `env=tau2:DOMAIN env.checkout=PATH`, such as `tau2:retail`.

The agent's tools, the policy, the databases, the tasks and the checks of the end state are the checkout's; the user is
one of `retail.users`. What a task asserts in natural language only a language model judges: the verdict names it
and leaves it out. A user who has tools of their own calls those that the agent writes as `name(argument=value)`.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, ClassVar

from offline_agent.envs.base import Environment, twin
from offline_agent.errors import ConfigError, ToolError
from offline_agent.records import Message, Verdict
from offline_agent_environments.adapters import adapted
from offline_agent_environments.adapters.tau2_domain import Domain, domain, hashes
from offline_agent_environments.adapters.tau2_talk import in_words, next_turn, written_calls
from offline_agent_environments.retail.users import make_user

_INSTRUCTIONS = (
    "You are a service agent. Speak to the user by answering without a call; look things up and change them with calls,"
    " one at a time. Follow the policy."
)
_NOT_JUDGED = "the task has an assertion in natural language, which only a language model can judge; it is left out"
_CALLS = 10  # most calls of a user in a turn
_RESULT = "RESULT"  # begins what a played user is told of its call


def adapt(rest: str, args: Mapping[str, Any]) -> type:
    """Return the class of a domain; see `envs.base.environment_class`."""
    found = domain(rest, args.get("checkout"), args.get("options"), args.get("subset"))
    if not found.tasks:
        raise ConfigError(f"env: tau2:{rest} has no task that is judged without a language model")
    tools = [tool.openai_schema for tool in found.environment.get_tools()]
    return adapted(
        _Tau2, tools, name=rest, version=found.version, _domain=found, system_prompt=_prompt(found)
    )


class _Undecided(Exception):
    """A part of a verdict cannot be computed; the argument says why."""


class _Tau2(Environment):
    """One domain of tau2-bench; `adapt` makes the classes.

    A copy shares the domain's environment until a tool that changes it is called, so that it costs nothing.

    Args:
        checkout: The folder of a checkout; None = the installed package `tau2`.
        options: Arguments of the domain's `get_environment`, such as `{policy_type: workflow}`.
        subset: A name in the checkout's `split_tasks.json` whose tasks are divided; None = its `train` and `test`.
        user: Who plays the user: `scripted`, the URL of an OpenAI-compatible server, or `module:callable`.
        user_model: The server's model.
        demonstrate: See `envs.base.environment_class`.
    """

    hindsight = "what a conversation changed in the database is no request that a user has made"
    _domain: ClassVar[Domain]
    _tool_schemas: ClassVar[list[dict[str, Any]]]

    def __init__(
        self,
        checkout: str | None = None,
        options: dict[str, Any] | None = None,
        subset: str | None = None,
        user: str = "scripted",
        user_model: str = "default",
        demonstrate: str | None = None,
    ) -> None:
        self._speaker, self._scripted = make_user(user, user_model), user == "scripted"
        self._task: Any = None
        self.terminated = False

    @classmethod
    def tasks(cls, split: str) -> Iterator[dict[str, Any]]:
        """Yield the ids of a split's tasks; an eighth of the checkout's training tasks are for validation."""
        for name in cls._domain.splits[split]:
            yield {"task_id": name}

    def reset(self, task_id: str) -> str:
        """Begin a task's conversation and return the user's first words, after what was said before.

        Args:
            task_id: The id of the task.
        """
        self._task = task = self._domain.task(task_id)
        own = self._domain.at_start(task)
        self._state, self._shared = (self._domain.environment, True) if own is None else (own, False)
        self._hashes = self._domain.hashes if own is None else None
        self._said: tuple[str, ...] = ()
        self._calls: tuple[tuple[str, str, dict[str, Any]], ...] = ()  # (who, tool, arguments)
        self.terminated = False
        self._hands = _hands(self._state, task)
        self._user = self._speaker(self._scenario())
        before = [_line(message) for message in _history(task)]
        return "\n".join([*before, self._user.open()])

    def get_reward(self) -> Verdict:
        """Return 1 where all parts of the task's `reward_basis` that need no language model hold, else 0.

        As in tau2, a conversation that did not come to its end earns 0. There is no score where an assertion raises
        here and in the state that the gold actions lead to, too: then the task is at fault.
        """
        if self._task is None:
            raise RuntimeError("get_reward before reset")
        criteria = self._task.evaluation_criteria
        basis = {part.value for part in criteria.reward_basis}
        evidence: dict[str, Any] = {"ended": self.terminated}
        parts = {"DB": self._database, "ENV_ASSERTION": self._assertions, "COMMUNICATE": self._told,
                 "ACTION": self._called}  # fmt: skip
        try:
            failed = {name: check() for name, check in parts.items() if name in basis}
        except _Undecided as error:
            return Verdict(None, None, "tau2.goal", self.version, evidence, error=str(error))
        evidence.update({name: faults or "met" for name, faults in failed.items()})
        if "DB" in basis and (refused := self._domain.gold(self._task).refused):
            evidence["gold_refused"] = list(refused)
        if criteria.nl_assertions:
            evidence["not_judged"] = _NOT_JUDGED
        success = self.terminated and not any(failed.values())
        return Verdict(float(success), success, "tau2.goal", self.version, evidence)

    @property
    def fingerprint(self) -> str:
        """A hash of tau2's hashes of the databases, of what was said and called, and of the user's state."""
        if self._hashes is None:
            self._hashes = hashes(self._state)
        counted = any(part.value == "ACTION" for part in self._task.evaluation_criteria.reward_basis)
        calls = self._calls if counted else ()
        state = json.dumps([self._hashes, self._said, calls, self._user.state(), self.terminated], default=str)
        return hashlib.blake2b(state.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    @classmethod
    def demonstrate(
        cls, task: Mapping[str, Any], messages: Sequence[Message], rng: Random, noise: float
    ) -> Message:
        """Return the next turn of an agent that follows the gold actions; see `tau2_talk.next_turn`."""
        return next_turn(cls._domain, cls._domain.task(task["task_id"]), messages, rng, noise)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Tau2:
        self._shared = True
        other = twin(self)  # the rest is replaced, never changed in place
        if self._task is not None:
            other._user = copy.copy(self._user)
        return other

    def _reply(self, text: str) -> str | None:
        """Tell the user; return what they answer, or None where they go."""
        self._said = (*self._said, text)
        if self._scripted and (done := self._do(text)):
            return "\n".join(done)
        answer: str | None = self._user.reply(text)
        for _ in range(_CALLS):
            done = [] if self._scripted or answer is None else self._do(answer)
            if not done:
                break
            answer = self._user.reply("\n".join([_RESULT, *done]))
        if answer is None:
            self.terminated = True
        return answer

    def _do(self, words: str) -> list[str]:
        """Let the user make the calls in some words; return what they saw."""
        seen = []
        for call in written_calls(words, self._hands, _CALLS):
            if call.fault is not None:
                seen.append(f"I do not know how to use {call.name}: {call.fault}.")
                continue
            told, _ = self._call("user", call.name, call.arguments)
            seen.append(f"{in_words(call.name, call.arguments)}: {told}")
        return seen

    def _take(self, tool: str, arguments: dict[str, Any]) -> str:
        told, refused = self._call("assistant", tool, arguments)
        if refused:
            raise ToolError(told)
        return told

    def _call(self, who: str, tool: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        """Return a tool's answer, and whether that is an error."""
        from tau2.data_model.message import ToolCall

        kit = self._state.tools if who == "assistant" else self._state.user_tools
        if kit.tool_mutates_state(tool):
            if self._shared:
                self._state, self._shared = copy.deepcopy(self._state), False
            self._hashes = None
        self._calls = (*self._calls, (who, tool, copy.deepcopy(arguments)))
        answer = self._state.get_response(ToolCall(id="call", name=tool, arguments=arguments, requestor=who))
        return str(answer.content), bool(answer.error)

    def _scenario(self) -> dict[str, Any]:
        """Return what the user knows, as `retail.users` takes it."""
        scenario = self._task.user_scenario
        if not self._scripted:
            use = (
                f"\nYou have tools. To use one, write a call and nothing else: {_signatures(self._hands)}. Its result "
                f"follows {_RESULT}."
            )
            return {"instructions": f"{scenario}{use if self._hands else ''}"}
        told = scenario.instructions
        return {"instructions": told if isinstance(told, str) else told.model_dump()}

    # -- parts of a verdict: each returns what is amiss ----------------------------------------------------------------

    def _database(self) -> list[str]:
        """As tau2's EnvironmentEvaluator, whose replay of the conversation leads to the present state."""
        criteria = self._task.evaluation_criteria
        if criteria.actions is None and criteria.env_assertions is None:
            return []
        if self._hashes is None:
            self._hashes = hashes(self._state)
        wanted = self._domain.gold(self._task).hashes
        pairs = zip(("the database", "the user's database"), self._hashes, wanted, strict=True)
        return [f"{name} is not in the goal state" for name, is_, goal in pairs if is_ != goal]

    def _assertions(self) -> list[str]:
        out = []
        for number, one in enumerate(self._task.evaluation_criteria.env_assertions or ()):
            told = f"{in_words(one.func_name, one.arguments)} is not {one.assert_value}"
            try:
                met = self._state.run_env_assertion(one, raise_assertion_error=False)
            except (ValueError, LookupError) as error:  # there is nothing of which it could be asserted
                if (fault := self._domain.gold(self._task).raised.get(number)) is not None:
                    raise _Undecided(f"{told}: after the gold actions, too, it raises {fault}") from error
                met, told = False, f"{told}: {error}"
            out += [] if met else [told]
        return out

    def _told(self) -> list[str]:
        from tau2.evaluator.evaluator_communicate import CommunicateEvaluator

        facts = self._task.evaluation_criteria.communicate_info or []
        checks = CommunicateEvaluator.evaluate_communicate_info(self._trajectory(), facts)
        return [f"not said: {check.info}" for check in checks if not check.met]

    def _called(self) -> list[str]:
        from tau2.evaluator.evaluator_action import ActionEvaluator

        wanted = self._task.evaluation_criteria.actions or []
        checks = ActionEvaluator.evaluate_actions(self._trajectory(), wanted)
        return [f"not called: {check.action.get_func_format()}" for check in checks if not check.action_match]

    def _trajectory(self) -> list[Any]:
        """Return what was said and called, as tau2's evaluators take it."""
        from tau2.data_model.message import AssistantMessage, ToolCall, UserMessage

        out = list(_history(self._task))
        for who, tool, arguments in self._calls:
            call = ToolCall(id="call", name=tool, arguments=arguments, requestor=who)
            kind = AssistantMessage if who == "assistant" else UserMessage
            out.append(kind(role=who, tool_calls=[call]))
        return [*out, *(AssistantMessage(role="assistant", content=text) for text in self._said)]


def _prompt(found: Domain) -> str:
    """Return the policy, and how the user's tools are called."""
    hands = _hands(found.environment, None)
    use = (
        f" The user has tools of their own and calls those that you write in an answer, such as {next(iter(hands))}(): "
        f"{_signatures(hands)}."
        if hands
        else ""
    )
    return f"{_INSTRUCTIONS}{use}\n\n{found.environment.get_policy()}"


def _hands(environment: Any, task: Any) -> dict[str, list[str]]:
    """Return the names of the user's tools, and of the parameters of each."""
    if environment.user_tools is None:
        return {}
    tools = environment.get_user_tools(include=None if task is None else getattr(task, "user_tools", None))
    return {tool.name: list(tool.openai_schema["function"]["parameters"].get("properties", {})) for tool in tools}


def _signatures(hands: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{name}({', '.join(parameters)})" for name, parameters in hands.items())


def _history(task: Any) -> Sequence[Any]:
    return () if task.initial_state is None else task.initial_state.message_history or ()


def _line(message: Any) -> str:
    """Return a message of the conversation before a task's start as a line."""
    calls = getattr(message, "tool_calls", None) or ()
    told = [message.content or "", *(in_words(call.name, call.arguments) for call in calls)]
    return f"[before] {message.role}: {' '.join(filter(None, told))}"
