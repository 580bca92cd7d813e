"""Attempts: the same for any number in flight, what cuts them, what is counted, outages, JSON and back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from offline_agent.envs.base import EnvSpec, ToolError
from offline_agent.envs.pool import EnvPool
from offline_agent.errors import ContextFull, EnvironmentFault, PolicyError
from offline_agent.policies.base import Proposals, ProposeRequest, Usage
from offline_agent.policies.engines import InlineEngine
from offline_agent.records import Action, Task, ToolCall
from offline_agent.rollouts.attempts import COLUMNS, Attempt, Journal, row, schema, to_record
from offline_agent.rollouts.episodes import PATIENCE, AttemptRequest, Episodes
from tests.helpers.search import Guess, Paths, tasks
from tests.helpers.thread_engine import ThreadEngine

SPEC = EnvSpec(Paths)
NUMBERS = ("first", "second", "third")


def asks(some: Sequence[Task], attempts: int = 3, greedy: bool = True) -> list[AttemptRequest]:
    return [
        ask
        for task in some
        for ask in [
            *([AttemptRequest(task, "greedy", 0)] if greedy else []),
            *(AttemptRequest(task, "sampled", i) for i in range(attempts)),
        ]
    ]


def play(
    spec: EnvSpec, policy: Any, wanted: Sequence[AttemptRequest], workers: int = 2, limit: float = 20.0, **options: Any
) -> dict[Any, Attempt]:
    pool, engine = EnvPool(workers, limit), policy.engine()
    try:
        episodes = Episodes(spec, engine, pool, **{"max_steps": 5, "temperature": 0.7, **options})
        return {attempt.key: attempt for attempt in episodes.play(wanted)}
    finally:
        engine.close()
        pool.close()


def lines(played: dict[Any, Attempt]) -> list[str]:
    return [json.dumps(to_record(played[key], "x"), sort_keys=True) for key in sorted(played)]


def test_an_attempt_does_not_depend_on_what_else_is_played() -> None:
    some = tasks(SPEC, 6)
    whole = play(SPEC, Guess(), asks(some))
    assert len(whole) == 24
    assert len({attempt.context.actions()[0].text for attempt in whole.values()}) > 3  # type: ignore[union-attr]
    for in_flight, workers in ((1, 0), (5, 3), (64, 1)):
        assert lines(play(SPEC, Guess(jitter=0.002), asks(some), workers, in_flight=in_flight)) == lines(whole)
    backwards = play(SPEC, Guess(), asks(some)[::-1], in_flight=3)
    assert lines(backwards) == lines(whole)
    alone = play(SPEC, Guess(), [AttemptRequest(some[3], "sampled", 2)])
    assert lines(alone) == [line for line in lines(whole) if line in lines(alone)]
    assert lines(play(SPEC, Guess(), asks(some), seed=1)) != lines(whole)


def test_what_a_finished_attempt_says() -> None:
    task = tasks(SPEC, 4)[3]  # its code is 021
    (attempt,) = play(SPEC, Guess(), [AttemptRequest(task, "greedy", 0)]).values()  # every door is one too far
    assert (attempt.success, attempt.reward, attempt.end_score) == (False, 0.0, 0.0)
    assert (attempt.terminated, attempt.truncated, attempt.cut_by) == (True, False, None)
    assert (attempt.calls, attempt.tool_calls, attempt.generated, attempt.fingerprint) == (3, 3, 9, "132")
    trajectory = attempt.trajectory()
    assert trajectory is not None and trajectory.origin == "rollout" and len(trajectory.steps) == 3


def test_using_up_the_steps_is_a_failure_and_says_so() -> None:
    (attempt,) = play(SPEC, Guess(skill=1.0), [AttemptRequest(tasks(SPEC, 4)[3], "sampled", 0)], max_steps=2).values()
    assert (attempt.success, attempt.reward, attempt.cut_by, attempt.truncated) == (False, 0.0, "max_steps", True)
    assert attempt.end_score == pytest.approx(2 / 3) and len(attempt.steps) == 2 and not attempt.terminated


class Script:
    """Says the given turns in order, or fails."""

    name, renderer, batch_invariant, max_tokens = "script", None, True, 8
    identity: dict[str, object] = {}

    def __init__(self, *turns: Action | Exception, broken: Sequence[str] = ()) -> None:
        self.turns, self.broken, self.asked = turns, broken, 0

    def propose(self, requests: Sequence[ProposeRequest]) -> list[Any]:
        return [self.answer(request) for request in requests]

    def answer(self, request: ProposeRequest) -> Any:
        self.asked += 1
        context = request.context
        if context.task.task_id in self.broken:
            return PolicyError(f"no words for {context.task.task_id}")
        turn = self.turns[min(context.depth, len(self.turns) - 1)]
        return turn if isinstance(turn, Exception) else Proposals((turn,), Usage(7, 20, 5))

    def engine(self) -> InlineEngine:
        return InlineEngine(self)  # type: ignore[arg-type]


def door(number: Any) -> Action:
    return Action(f"door {number}", "", ToolCall("door", {"number": number}))


def test_calls_are_counted_by_what_became_of_them() -> None:
    turns = [
        Action("{", fault="invalid_json", detail="no JSON"), Action("x", "", ToolCall("window", {})),
        Action("y", "", ToolCall("door", {"count": 1})), door(77), door(77), door(0), door(0),
        Action("I give up.", "I give up."),
    ]  # fmt: skip
    (attempt,) = play(SPEC, Script(*turns), asks(tasks(SPEC, 1), 1, greedy=False), max_steps=9).values()
    assert [step.fault for step in attempt.steps] == [
        "invalid_json", "unknown_tool", "bad_arguments", "tool_error", "tool_error", None, None, None,
    ]  # fmt: skip
    assert (attempt.calls, attempt.invalid_calls, attempt.refused_calls, attempt.repeated_calls) == (7, 3, 2, 2)
    assert (attempt.generated, attempt.prefilled) == (56, 160)  # as the policy says, where there are no ids
    assert attempt.terminated and attempt.success is False


@pytest.mark.parametrize(
    ("turn", "kind", "says"),
    [(Action("door", fault="no_end"), "tokens", "token limit"), (ContextFull("900 ids"), "context", "900 ids")],
)
def test_a_turn_without_an_end_and_a_full_context_are_failures_and_say_so(turn: Any, kind: str, says: str) -> None:
    policy = Script(door(0), turn)
    for attempt in play(SPEC, policy, asks(tasks(SPEC, 1), 40, False), in_flight=1).values():  # far beyond PATIENCE
        assert (attempt.success, attempt.reward, attempt.cut_by, attempt.truncated) == (False, 0.0, kind, True)
        assert attempt.end_score == pytest.approx(1 / 3) and attempt.fingerprint == "0" and attempt.tool_calls == 1
        assert says in attempt.verdict.evidence["reason"] and attempt.verdict.error is None
        assert len(attempt.steps) == (2 if kind == "tokens" else 1) == 1 + attempt.invalid_calls
    assert policy.asked == 80


def test_a_first_prompt_that_is_too_long_is_a_failure_without_a_step() -> None:
    (attempt,) = play(SPEC, Script(ContextFull("900 ids")), asks(tasks(SPEC, 1), 1, False)).values()
    assert (attempt.success, attempt.cut_by, attempt.steps) == (False, "context", ()) and attempt.trajectory() is None


def test_what_the_policy_caused_stays_its_failure_where_the_state_cannot_be_judged() -> None:
    class Unjudged(Paths):
        def get_reward(self) -> float:
            raise KeyError("judge's notes")

    policy = Script(door(0), Action("door", fault="no_end"))
    (attempt,) = play(EnvSpec(Unjudged), policy, asks(tasks(SPEC, 1), 1, False)).values()
    assert (attempt.success, attempt.reward, attempt.cut_by, attempt.end_score) == (False, 0.0, "tokens", None)


class Trouble(Paths):
    """Breaks where its task says."""

    opened: list[Any] = []
    closed: list[Any] = []

    def __enter__(self) -> Trouble:
        self.opened.append(self)
        return self

    def __exit__(self, *_: Any) -> None:
        self.closed.append(self)

    @classmethod
    def tasks(cls, split: str) -> Iterator[dict[str, Any]]:
        for what in ("fine", "no reset", "breaks", "hangs", "hangs at once", "unjudged", "over", "refuses"):
            yield {"task_id": what, "code": "000", "what": what}

    def reset(self, code: str, what: str) -> str:
        self.what = what
        if what == "no reset":
            raise OSError("no world")
        if what == "hangs at once":
            time.sleep(1.5)
        out = super().reset(code)
        self.terminated = what == "over"
        return out

    def door(self, number: int) -> str:
        """Go through a door.

        Args:
            number: Which.
        """
        if len(self.path) == 1:
            if self.what == "breaks":
                raise ZeroDivisionError("a hinge")
            if self.what == "refuses":
                self.path += "?"
                raise ToolError("locked")
            if self.what == "hangs":
                time.sleep(1.5)
        return super().door(number)

    def get_reward(self) -> Any:
        return None if self.what == "unjudged" else super().get_reward()


def test_faults_and_time_outs_leave_an_attempt_unscored_with_the_reason_and_end_nobody_elses() -> None:
    Trouble.opened, Trouble.closed = [], []
    spec = EnvSpec(Trouble)
    some = list(spec.tasks("train"))
    played = play(spec, Script(door(0)), asks(some, 1, False), limit=0.3, reset_seconds=0.3, in_flight=4)
    by = {attempt.task.task_id: attempt for attempt in played.values()}
    assert {name: (a.success, a.cut_by) for name, a in by.items()} == {
        "fine": (True, None), "no reset": (None, "fault"), "breaks": (None, "fault"), "hangs": (None, "time"),
        "hangs at once": (None, "time"), "unjudged": (None, None), "over": (None, "fault"), "refuses": (False, None),
    }  # fmt: skip
    for name, words in (
        ("no reset", "no world"), ("breaks", "a hinge"), ("hangs", "no answer within"),
        ("unjudged", "cannot be judged"),
    ):  # fmt: skip
        assert words in str(by[name].verdict.error)
    assert by["no reset"].trajectory() is None and len(by["breaks"].steps) == 1
    assert by["fine"].reward == 1.0 and by["unjudged"].terminated
    deadline = time.monotonic() + 5
    while len(Trouble.closed) < len(Trouble.opened) - 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    open_still = {env.what for env in Trouble.opened if env not in Trouble.closed}
    assert open_still == {"hangs", "hangs at once"}  # their threads hang in them: nobody else may touch them


class Dear(Paths):
    replay_only = True
    opened = 0

    def __init__(self) -> None:
        type(self).opened += 1


def test_environments_that_are_dear_to_start_are_used_again() -> None:
    Dear.opened = 0
    spec = EnvSpec(Dear)
    some = tasks(spec, 8)
    again = play(spec, Guess(), asks(some), workers=0, in_flight=2)
    assert Dear.opened <= 3 < len(again)
    assert [line.replace("Dear.", "Paths.") for line in lines(again)] == lines(play(SPEC, Guess(), asks(some)))


def test_a_history_the_policy_cannot_answer_is_unscored_and_the_others_go_on() -> None:
    some = tasks(SPEC, 5)
    policy = Script(door(0), broken=[some[1].task_id, some[4].task_id])
    played = play(SPEC, policy, asks(some, 1, False), in_flight=2)
    unscored = [a for a in played.values() if a.success is None]
    assert {a.task.task_id for a in unscored} == set(policy.broken) and len(played) == 5
    assert all("no words for" in str(a.verdict.error) and a.cut_by == "fault" for a in unscored)


class Flaky(Guess):
    """Fails requests by their number, from 1 on."""

    def __init__(self, fails: Callable[[int], bool]) -> None:
        super().__init__()
        self.fails, self.asked = fails, 0

    def propose(self, requests: Any) -> list[Any]:
        (request,) = requests
        self.asked += 1
        return [PolicyError("gone")] if self.fails(self.asked) else super().propose([request])


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("begins", [0, 3, 11])
@pytest.mark.parametrize("fails", [1, 2, 3, 5, 9, 18])
def test_an_outage_that_passes_changes_no_attempt(threads: bool, begins: int, fails: int) -> None:
    some = tasks(SPEC, 4)
    policy = Flaky(lambda number: begins < number <= begins + fails)
    policy.engine = lambda: ThreadEngine(policy, 1, max_batch=1) if threads else InlineEngine(policy)  # type: ignore[method-assign]
    sound = lines(play(SPEC, Guess(), asks(some, 2)))
    assert lines(play(SPEC, policy, asks(some, 2), in_flight=3)) == sound and policy.asked > begins + fails


def test_an_outage_stops_the_run_and_is_not_taken_for_attempts() -> None:
    some = tasks(SPEC, 20)
    for begins in (0, 1, 30):
        kept: list[Attempt] = []
        engine = InlineEngine(Flaky(lambda number, at=begins: number > at))  # type: ignore[misc]
        episodes = Episodes(SPEC, engine, EnvPool(0, None), max_steps=5, in_flight=2)
        with pytest.raises(PolicyError, match=rf"failed {2 + PATIENCE} times in a row.*gone.*Nothing is lost"):
            for attempt in episodes.play(asks(some, 2, False)):
                kept.append(attempt)
        assert all(attempt.success is not None for attempt in kept) and len(kept) < 20


def test_a_policy_that_never_answered_is_an_error_unless_it_did_in_an_earlier_session() -> None:
    some = tasks(SPEC, 2)
    policy = Script(PolicyError("down"))
    with pytest.raises(PolicyError, match="times in a row, the last time with: down"):
        play(SPEC, policy, asks(some, 1, False))
    played = play(SPEC, policy, asks(some, 1, False), answered_before=True)
    assert [attempt.success for attempt in played.values()] == [None, None]


def test_an_environment_that_always_hangs_ends_the_run() -> None:
    class Hangs(Paths):
        def reset(self, code: str) -> str:
            time.sleep(1)
            return ""

    pool = EnvPool(2, 0.05, most_hung=3)
    with pytest.raises(EnvironmentFault, match="not fit"):
        list(Episodes(EnvSpec(Hangs), Guess().engine(), pool, in_flight=2).play(asks(tasks(SPEC, 20))))
    pool.close()


def test_a_journal_gives_back_what_was_logged() -> None:
    some = tasks(SPEC, 3)
    spec = EnvSpec(Trouble)
    log: list[dict[str, Any]] = []
    by_id = {task.task_id: task for task in [*some, *spec.tasks("train")]}

    def append(record: Any) -> None:
        log.append(json.loads(json.dumps(record, allow_nan=False)))

    journal = Journal(append, (), by_id)
    for attempt in play(SPEC, Guess(), asks(some)).values():
        journal.add(attempt)
    for attempt in play(spec, Script(door(0)), asks([by_id["no reset"], by_id["breaks"]], 1, False)).values():
        journal.add(attempt)
    assert sum("tools" in record for record in log) == 2  # once for each environment
    again = Journal(lambda _: None, log, by_id)
    assert list(again.attempts) == list(journal.attempts) and again.openings.keys() == journal.openings.keys()
    for key, attempt in journal.attempts.items():
        twin = again.attempts[key]
        assert row(twin) == row(attempt) and set(row(twin)) == set(COLUMNS) == set(schema().names)
        assert to_record(twin, None) == to_record(attempt, None)
        if attempt.context is not None:
            assert twin.context is not None and twin.context.messages() == attempt.context.messages()
            assert twin.context.tools == list(attempt.context.tools)


class Paid(Paths):
    """Says of each door at once whether it was right."""

    @property
    def turn_reward(self) -> float | None:
        return float(self.path[-1] == self.code[len(self.path) - 1]) / 3 if getattr(self, "path", "") else None


def test_what_turns_earned_is_kept_in_the_attempt_and_the_log() -> None:
    spec = EnvSpec(Paid)
    some, log = tasks(spec, 2), list[dict[str, Any]]()
    journal = Journal(log.append, (), {task.task_id: task for task in some})
    played = play(spec, Guess(), asks(some))
    for attempt in played.values():
        told = [step.reward for step in attempt.steps]
        assert sum(told) == pytest.approx(attempt.reward) and (None in told) is False  # type: ignore[arg-type]
        journal.add(attempt)
    assert len({attempt.reward for attempt in played.values()}) > 1
    again = Journal(lambda _: None, json.loads(json.dumps(log)), {task.task_id: task for task in some})
    assert all(again.attempts[key].steps == attempt.steps for key, attempt in played.items())


class Nameless(Paths):
    """Names no state."""

    fingerprint = None  # type: ignore[assignment]


def test_the_state_of_each_action_is_recorded_where_it_is_asked_for() -> None:
    (task,), log = tasks(SPEC, 1), list[dict[str, Any]]()
    journal = Journal(log.append, (), {task.task_id: task})
    played = play(SPEC, Guess(), asks([task], 4), states=True)
    for attempt in played.values():
        doors = [str(step.action.call.arguments["number"]) for step in attempt.steps if step.action.call]
        assert list(attempt.states) == ["".join(doors[:t]) for t in range(len(attempt.steps))]
        journal.add(attempt)
    again = Journal(lambda _: None, json.loads(json.dumps(log)), {task.task_id: task})
    assert all(again.attempts[key].states == attempt.states for key, attempt in played.items())
    assert not any(attempt.states for attempt in play(SPEC, Guess(), asks([task], 2)).values())
    assert SPEC.fingerprints and not EnvSpec(Nameless).fingerprints
    bare = play(EnvSpec(Nameless), Guess(), asks([task], 1), states=True)
    assert [attempt.states for attempt in bare.values()] == [(None,) * len(attempt.steps) for attempt in bare.values()]


def test_an_ask_may_have_a_temperature_of_its_own() -> None:
    (task,) = tasks(SPEC, 1)
    seen: list[float | None] = []

    class Noting(Guess):
        def propose(self, requests: Sequence[ProposeRequest]) -> Any:
            seen.extend(request.temperature for request in requests)
            return super().propose(requests)

    modes = enumerate(("sampled", "greedy"))
    play(SPEC, Noting(), [AttemptRequest(task, mode, number, temperature=1.25) for number, mode in modes])
    assert set(seen) == {1.25, 0.0}


