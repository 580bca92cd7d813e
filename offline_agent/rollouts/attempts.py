"""Attempts at tasks: the request, the record of steps, end and costs, its JSON in the event log, its table row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from offline_agent.errors import DataError
from offline_agent.records import Context, Step, Task, Trajectory, Verdict
from offline_agent.search.serialization import action_from_json, action_to_json
from offline_agent.store.provenance import hash_json

if TYPE_CHECKING:
    import pyarrow as pa

Key = tuple[str, str, str, int]
"""Policy ("candidate" or "against"), mode, task id, number."""

REFUSED = "tool_error"  # fault of a well-formed call that the tool answered with an error


class Known(NamedTuple):
    """Counts of the policy's rollouts on one task that were judged, or that a limit of its own cut."""

    successes: int
    attempts: int

    @property
    def solved(self) -> bool:
        """Whether every rollout succeeded, and there is one."""
        return 0 < self.attempts == self.successes

    @property
    def learnability(self) -> float:
        """E[p(1-p)] of the success rate p under its Beta(a, b) posterior: ab / ((a+b)(a+b+1)); in (0, 1/4)."""
        a, b = 0.5 + self.successes, 0.5 + self.attempts - self.successes  # Jeffreys' prior
        return a * b / ((a + b) * (a + b + 1))


class AttemptRequest(NamedTuple):
    """An attempt to be played.

    Attributes:
        task: The task.
        mode: `greedy` is played at temperature 0.
        number: Number among the attempts of this mode and task; its actions depend on the run's seed, the task and
            this alone.
        temperature: Of the other modes; None = the one that `Episodes` was given.
    """

    task: Task
    mode: str
    number: int
    temperature: float | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt.

    Attributes:
        policy: `candidate` or `against`.
        mode: `sampled`, `greedy`, `best_of_n` or `mcts`.
        task: The task.
        number: Number among the attempts of this policy, mode and task; from 0.
        context: The last history; None where the environment did not open.
        steps: One per action, first to last.
        verdict: The outcome; its score is None where the attempt is unscored, and its error says why.
        terminated: The task ended by itself.
        truncated, cut_by: It was cut, and by what: one of `records.POLICY_CUTS`, which is a failure worth 0; or `time`
            or `fault`, which has no score.
        end_score: The environment's own score of the last state, however it was reached; None where it is unknown.
            Differs from the verdict's only where a limit of the policy's own cut the attempt.
        fingerprint: The environment's hash of the last state; None where it offers none.
        generated: Tokens sampled; those of samples and simulations that were not chosen included.
        prefilled: Prompt tokens; those shared by the turns of one episode (or of one search tree) count once, whatever
            a cache did.
        tool_calls: Steps of the environment executed; those of samples and simulations not chosen included.
        simulations: Samples or simulations at test time among which this one was chosen; None without search.
        states: Fingerprint of the state in which each action was taken, one for each step (None = not known); empty
            where they were not read.
        versions: Version of the weights that sampled each action, one for each step; empty where they do not change.
    """

    policy: str
    mode: str
    task: Task
    number: int
    context: Context | None
    steps: tuple[Step, ...]
    verdict: Verdict
    terminated: bool
    truncated: bool
    cut_by: str | None
    end_score: float | None = None
    fingerprint: str | None = None
    generated: int = 0
    prefilled: int = 0
    tool_calls: int = 0
    simulations: int | None = None
    states: tuple[str | None, ...] = ()
    versions: tuple[int, ...] = ()

    @property
    def key(self) -> Key:
        """The key of the attempt in its run."""
        return self.policy, self.mode, self.task.task_id, self.number

    @property
    def success(self) -> bool | None:
        """Whether the task was achieved; None = unscored."""
        return self.verdict.success

    @property
    def reward(self) -> float | None:
        """The score in [0, 1]; None = unscored."""
        return self.verdict.score

    @property
    def calls(self) -> int:
        """Number of turns that were calls or tried to be: all but final answers."""
        return sum(step.action.call is not None or step.fault is not None for step in self.steps)

    @property
    def invalid_calls(self) -> int:
        """Number of calls that could not be executed as written: malformed, unknown tool, bad arguments, no end."""
        return sum(step.fault is not None and step.fault != REFUSED for step in self.steps)

    @property
    def refused_calls(self) -> int:
        """Number of well-formed calls that the tool answered with an error."""
        return sum(step.fault == REFUSED for step in self.steps)

    @property
    def repeated_calls(self) -> int:
        """Number of turns with the same canonical key as the turn just before."""
        return sum(one.key == other.key for one, other in zip(self.steps, self.steps[1:], strict=False))

    def trajectory(self) -> Trajectory | None:
        """Return the attempt as a trajectory; None where the policy never acted."""
        return self.episode() if self.steps else None

    def episode(self) -> Trajectory | None:
        """Return the attempt as a trajectory, perhaps without a step; None where the environment did not open."""
        if self.context is None:
            return None
        origin = "search" if self.mode == "mcts" else "rollout"
        return Trajectory(
            self.context, self.steps, self.verdict, self.terminated, self.truncated, origin, self.cut_by  # type: ignore[arg-type]  # one of Origin's
        )  # fmt: skip


_PLAIN = (
    "terminated", "truncated", "cut_by", "end_score", "fingerprint", "generated", "prefilled", "tool_calls",
    "simulations",
)  # fmt: skip
_LISTS = ("states", "versions")  # where there are any


def to_record(attempt: Attempt, opening: str | None) -> dict[str, Any]:
    """Return the attempt as JSON for the event log.

    Args:
        attempt: The attempt.
        opening: Name under which system prompt and tools are logged; None where the environment did not open.
    """
    first = attempt.context.lineage()[0].observation if attempt.context is not None else None
    return {
        "attempt": list(attempt.key),
        "opening": opening,
        "first": first,
        "steps": [_step_to_json(step) for step in attempt.steps],
        "verdict": attempt.verdict.to_json(),
        **{name: getattr(attempt, name) for name in _PLAIN},
        **{name: list(found) for name in _LISTS if (found := getattr(attempt, name))},
    }


def _step_to_json(step: Step) -> list[Any]:
    """Return the step's fields in their order; reward and `anew` only where there is one."""
    told: list[Any] = [] if step.reward is None else [step.reward]
    if step.anew is not None:
        told = [step.reward, None, step.anew]
    return [action_to_json(step.action), step.key, step.observation, step.role, step.fault, *told]


def from_record(record: Mapping[str, Any], task: Task, openings: Mapping[str, tuple[str, Sequence[Any]]]) -> Attempt:
    """Rebuild an attempt from `to_record`.

    Args:
        record: The JSON.
        task: Its task.
        openings: System prompt and tools by name.

    Raises:
        DataError: The record is not one that `to_record` wrote.
    """
    try:
        policy, mode, _, number = record["attempt"]
        steps = tuple(Step(action_from_json(action), *rest) for action, *rest in record["steps"])
        context = None
        if record["opening"] is not None:
            system, tools = openings[record["opening"]]
            context = Context(task, system, tools, record["first"])
            for step in steps:
                context = context.child(step.action, step.observation, step.role, anew=step.anew)
        verdict = Verdict.from_json(record["verdict"])
        more = {name: record[name] for name in _PLAIN}
        more |= {name: tuple(record.get(name, ())) for name in _LISTS}
        return Attempt(policy, mode, task, number, context, steps, verdict, **more)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"the event log's attempt {record.get('attempt')} is malformed: {error!r}") from error


class Journal:
    """The attempts of a run, each logged when it is over; those in the log at the start are known already.

    Args:
        log: Appends one record to the event log.
        records: The log's records so far.
        tasks: The run's tasks by id.

    Attributes:
        attempts: By key.
        openings: System prompt and tools that attempts began with, by name.

    Raises:
        DataError: A record is malformed, or of a task that is not the run's.
    """

    def __init__(
        self, log: Callable[[Mapping[str, Any]], None], records: Iterable[Mapping[str, Any]], tasks: Mapping[str, Task]
    ) -> None:
        self._log = log
        self.attempts: dict[Key, Attempt] = {}
        self.openings: dict[str, tuple[str, Sequence[Any]]] = {}
        for record in records:
            if "attempt" not in record:
                self.openings[record["name"]] = (record["system"], record["tools"])
                continue
            task = tasks.get(record["attempt"][2])
            if task is None:
                raise DataError(f"the event log's attempt {record['attempt']} is of no task of this run")
            attempt = from_record(record, task, self.openings)
            self.attempts[attempt.key] = attempt

    def add(self, attempt: Attempt) -> None:
        """Log an attempt that is over, and its system prompt and tools where they are new."""
        name = None
        if attempt.context is not None:
            system, tools = attempt.context.system, list(attempt.context.tools)
            name = hash_json([system, tools])[:16]
            if name not in self.openings:
                self._log({"name": name, "system": system, "tools": tools})
                self.openings[name] = (system, tools)
        self._log(to_record(attempt, name))
        self.attempts[attempt.key] = attempt


_TABLE: dict[str, tuple[str, bool, Callable[[Attempt], Any]]] = {  # column -> Arrow type, nullable, value
    "policy": ("string", False, lambda a: a.policy),
    "mode": ("string", False, lambda a: a.mode),
    "task_id": ("string", False, lambda a: a.task.task_id),
    "attempt": ("int64", False, lambda a: a.number),
    "success": ("bool", True, lambda a: a.success),
    "reward": ("float64", True, lambda a: a.reward),
    "steps": ("int64", False, lambda a: len(a.steps)),
    "terminated": ("bool", False, lambda a: a.terminated),
    "truncated": ("bool", False, lambda a: a.truncated),
    "cut_by": ("string", True, lambda a: a.cut_by),
    "invalid_calls": ("int64", False, lambda a: a.invalid_calls),
    "repeated_calls": ("int64", False, lambda a: a.repeated_calls),
    "refused_calls": ("int64", False, lambda a: a.refused_calls),
    "calls": ("int64", False, lambda a: a.calls),
    "generated_tokens": ("int64", False, lambda a: a.generated),
    "prefilled_tokens": ("int64", False, lambda a: a.prefilled),
    "tool_calls": ("int64", False, lambda a: a.tool_calls),
    "simulations": ("int64", True, lambda a: a.simulations),
    "end_score": ("float64", True, lambda a: a.end_score),
    "error": ("string", True, lambda a: a.verdict.error),
    "verdict": ("string", False, lambda a: json.dumps(a.verdict.to_json(), ensure_ascii=True)),
}
COLUMNS = tuple(_TABLE)


def row(attempt: Attempt) -> dict[str, Any]:
    """Return the attempt's row of the table `attempts`, one value per column of `COLUMNS`."""
    return {name: value(attempt) for name, (_, _, value) in _TABLE.items()}


def schema() -> pa.Schema:
    """Return the columns of the table `attempts`."""
    import pyarrow as pa

    return pa.schema(
        [pa.field(name, pa.type_for_alias(kind), nullable=null) for name, (kind, null, _) in _TABLE.items()]
    )
