"""Records that all packages share: tasks, actions, verdicts, contexts and trajectories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA_VERSION = 1

Message = dict[str, Any]
"""One message in TRL's conversational format: role, content, and `tool_calls` on an assistant's."""


class Recorded(tuple[Message, ...]):
    """Messages of a log, and the token ids that the log has for them.

    Attributes:
        ids: int [m], the prompt's ids that follow the turn before, up to and with the next generation prompt; at the
            start of an episode the whole prompt's. None where the log has none.
        whole: Whether `ids` are the whole next prompt, which does not go on with the ids of the turn before.
    """

    ids: tuple[int, ...] | None = None
    whole: bool = False

    @classmethod
    def of(cls, messages: Iterable[Message], ids: Sequence[int] | None = None, whole: bool = False) -> Recorded:
        """Return messages with ids."""
        made = cls(messages)
        made.ids, made.whole = None if ids is None else tuple(ids), whole
        return made


Role = Literal["tool", "user"]
Anew = Literal["compact", "enter", "leave"]
"""How a policy's history goes on after a turn, where not with all that came before. `compact`: with the system prompt
and the observation alone. `enter`: likewise, without the tool that the turn called; a sub-agent begins. `leave`: the
observation answers the call with which it began, after what stood before that call."""
Origin = Literal["search", "rollout", "demonstration", "hindsight", "pruned"]


@dataclass(frozen=True, slots=True)
class Task:
    """One task of an environment.

    Attributes:
        task_id: Unique within the environment; stable across runs and machines.
        split: `train`, `validation` or `test`.
        args: The keyword arguments of the environment's `reset`; JSON-serialisable.
    """

    task_id: str
    split: str
    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A parsed call: the tool's name and its JSON arguments, not yet validated against a schema."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Action:
    """The policy's output in one turn: a thought and one tool call, or a final answer.

    Attributes:
        text: The decoded turn, without the end-of-turn token.
        thought: The part of `text` before the call; the whole of it for a final answer. Without what a chat template
            writes around words, and with reasoning between <think> tags.
        call: The parsed call. None for a final answer, and None when `fault` is set.
        fault: None, or the class of the error in the turn itself: `invalid_json`, `bad_call` (JSON of the wrong
            shape), `several_calls`, `empty`, `no_end` (cut by the token limit).
        detail: A sentence for the policy that explains the fault and how to avoid it; None where `fault` is None.
        token_ids: int [n], the sampled ids, end-of-turn token included where it was sampled.
            None where the policy has no tokenizer.
        logps: float [n], natural-log probability of each id under the policy at temperature 1.
            None where the back end gives none.
        recorded: The assistant message of a log, which may have several calls; None where this package's policy made
            the turn.
    """

    text: str
    thought: str = ""
    call: ToolCall | None = None
    fault: str | None = None
    detail: str | None = None
    token_ids: tuple[int, ...] | None = None
    logps: tuple[float, ...] | None = None
    recorded: Mapping[str, Any] | None = None

    def message(self) -> Message:
        """Return the turn as an assistant message, with an answer in its template's plain form, or a fault's text."""
        if self.recorded is not None:
            return dict(self.recorded)
        if self.call is None:
            return {"role": "assistant", "content": self.text if self.fault else self.thought or self.text}
        return call_message(self.call.name, self.call.arguments) | {"content": self.thought}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A scorer's output.

    Attributes:
        score: In [0, 1]; None = could not be scored, and `error` gives the reason.
        success: Whether the task was achieved; None exactly when `score` is None.
        verifier: The scorer's name.
        version: The scorer's version; part of every row it judged.
        evidence: JSON-serialisable facts that support the score.
        error: The reason why there is no score; None where there is one.
    """

    score: float | None
    success: bool | None
    verifier: str
    version: str = "1"
    evidence: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None

    def __post_init__(self) -> None:
        if (self.score is None) != (self.success is None):
            raise ValueError(f"Verdict: score={self.score!r} and success={self.success!r} must both be None or neither")
        if self.score is None and not self.error:
            raise ValueError("Verdict: a missing score needs an error that says why")
        if self.score is not None and not 0.0 <= self.score <= 1.0:
            raise ValueError(f"Verdict: score must be in [0, 1], got {self.score!r}")

    def __float__(self) -> float:
        """Return the score; NaN where there is none: TRL ignores it as it ignores None."""
        return float("nan") if self.score is None else float(self.score)

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as a JSON-serialisable dict."""
        return {name: getattr(self, name) for name in _VERDICT} | {"evidence": dict(self.evidence)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        """Rebuild a verdict from `to_json`."""
        return cls(**{name: data[name] for name in _VERDICT})


_VERDICT = ("verifier", "version", "score", "success", "evidence", "error")


class Context:
    """One history as the policy sees it; immutable. The contexts of a search tree form a trie of conversations.

    Attributes:
        task: The task.
        system: The environment's system prompt; "" for none.
        tools: JSON schemas of the tools, one per tool.
        parent: The history before the last turn; None at the start of an episode.
        action: The last turn; None at the start of an episode.
        observation: The reply to the action; None where the episode ended with the action.
        role: Role of the observation: `tool`, or `user` where a scripted user speaks.
        depth: Number of actions taken.
        segment: int [m], ids that this context adds to its parent's (the action's sampled ids, the observation,
            the next role header); set by `rendering.renderer.Renderer`, None before.
        recorded: The messages of a log that this context adds after the action: at the start of an episode the system
            prompt too. None where `system` and `observation` say it all.
        anew: See `Anew`.
        view: What a policy is given in place of this history, once a turn had `anew`; None before.
        caller: What it was given up to and with the call with which the present sub-agent began; None outside of one.
        cache: A place for the policy's own cache; nothing else reads it.
    """

    __slots__ = (
        "task", "system", "tools", "parent", "action", "observation", "role", "depth", "segment", "recorded", "anew",
        "view", "caller", "cache", "__weakref__",
    )  # fmt: skip

    def __init__(
        self,
        task: Task,
        system: str,
        tools: Sequence[Mapping[str, Any]],
        observation: str | None,
        parent: Context | None = None,
        action: Action | None = None,
        role: Role = "user",
        recorded: Recorded | None = None,
        anew: Anew | None = None,
    ) -> None:
        self.task = task
        self.system = system
        self.tools = tools
        self.observation = observation
        self.parent = parent
        self.action = action
        self.role: Role = role
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.segment: tuple[int, ...] | None = None
        self.recorded = recorded
        self.anew = anew
        self.view: Context | None = None
        self.caller: Context | None = None
        self.cache: Any = None
        if parent is not None and action is not None and (anew is not None or parent.view is not None):
            self._go_on(parent, action)

    def _go_on(self, parent: Context, action: Action) -> None:
        """Set `view` and `caller`."""
        before, self.caller = parent.shown, parent.caller
        if self.anew is None:
            self.view = before.child(action, self.observation, self.role, self.recorded)
        elif self.anew == "leave":
            if self.caller is None or self.caller.parent is None or self.caller.action is None:
                raise ValueError(f"task {self.task.task_id}: no sub-agent has begun that could be left")
            self.view = self.caller.parent.child(self.caller.action, self.observation)
            self.caller = None
        else:
            tools = before.tools
            if self.anew == "enter":
                self.caller = before.child(action, None)
                called = None if action.call is None else action.call.name
                tools = tuple(one for one in tools if one["function"]["name"] != called)
            self.view = Context(self.task, before.system, tools, self.observation)

    @property
    def shown(self) -> Context:
        """The history that a policy is given here: this one, unless a turn had `anew`."""
        return self if self.view is None else self.view

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy the history alone: what a renderer or a policy keeps in it is theirs."""
        return Context, (
            self.task, self.system, self.tools, self.observation, self.parent, self.action, self.role, self.recorded,
            self.anew,
        )  # fmt: skip

    def child(
        self,
        action: Action,
        observation: str | None,
        role: Role = "tool",
        recorded: Recorded | None = None,
        anew: Anew | None = None,
    ) -> Context:
        """Return this history extended by one action and the observation, or the messages of a log, that follow it."""
        return Context(self.task, self.system, self.tools, observation, self, action, role, recorded, anew)

    def lineage(self) -> list[Context]:
        """Return the contexts from the start of the episode to this one, this one included."""
        out: list[Context] = []
        node: Context | None = self
        while node is not None:
            out.append(node)
            node = node.parent
        return out[::-1]

    def messages(self) -> list[Message]:
        """Return the whole history in TRL's conversational format; an observation of a turn with `anew` says so."""
        nodes = self.lineage()
        system = self.system and nodes[0].recorded is None
        out: list[Message] = [{"role": "system", "content": self.system}] if system else []
        for node in nodes:
            if node.action is not None:
                out.append(node.action.message())
            if node.recorded is not None:
                out.extend(map(dict, node.recorded))
            elif node.observation is not None:
                out.append({"role": node.role, "content": node.observation})
                if node.role == "tool" and node.action is not None and node.action.call is not None:
                    out[-1]["name"] = node.action.call.name
                if node.anew is not None:
                    out[-1]["anew"] = node.anew
        return out

    def actions(self) -> list[Action]:
        """Return the actions taken so far, first to last."""
        return [node.action for node in self.lineage() if node.action is not None]


@dataclass(frozen=True, slots=True)
class Step:
    """One transition.

    Attributes:
        action: The policy's output.
        key: The canonical key of the action (`envs.tools.ToolSet.canonical_key`).
        observation: The reply to the action; None where the episode ended with the action.
        role: Role of the observation.
        fault: Class of the error that was reported to the policy (`unknown_tool`, `bad_arguments`, `tool_error`, or
            the action's own fault); None where the call was executed without an error.
        reward: The environment's reward of this action alone, in [0, 1]; None where the environment gives none, and
            in search trees, which do not ask for it.
        recorded: The messages of a log in place of `observation`; see `Context.recorded`.
        anew: See `Context.anew`.
    """

    action: Action
    key: str
    observation: str | None
    role: Role = "tool"
    fault: str | None = None
    reward: float | None = None
    recorded: Recorded | None = None
    anew: Anew | None = None


POLICY_CUTS = ("max_steps", "tokens", "context")
"""Limits of the policy that end an episode: steps, tokens of one turn, or tokens of the whole history. The task is not
solved: such an end is a failure with reward 0."""


def cut_verdict(cut: str, **evidence: Any) -> Verdict:
    """Return the verdict on an episode that was ended by one of `POLICY_CUTS`, with further facts about the end."""
    return Verdict(0.0, False, cut, evidence={"truncated": True, **evidence})


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The record of a rollout.

    Attributes:
        context: The last context; holds task, system prompt, tools, first observation and every turn.
        steps: One per action, first to last.
        verdict: The end state's verdict; None where no scorer was asked.
        terminated: The task ended by itself.
        truncated: The episode was cut: by a limit of the policy, a time-out or a fault.
        origin: The kind of run that produced it.
        cut_by: None, or one of `POLICY_CUTS`, `time` or `fault` where `truncated`.
        first: Number of turns before the first that is learnt.
    """

    context: Context
    steps: tuple[Step, ...]
    verdict: Verdict | None
    terminated: bool
    truncated: bool
    origin: Origin
    cut_by: str | None = None
    first: int = 0

    @property
    def task(self) -> Task:
        """The task of the episode."""
        return self.context.task


def call_message(name: str, arguments: Mapping[str, Any]) -> Message:
    """Return an assistant message with one call."""
    call = {"name": name, "arguments": dict(arguments)}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}
