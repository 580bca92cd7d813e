"""Records that all packages share: tasks, actions, verdicts, contexts and trajectories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from offline_agent.contexts import Context as Context

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
