"""Rounds that are played ahead of the trainer: how old their weights may be, what is dropped (nothing), how it ends."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.pool import EnvPool
from offline_agent.pipelines.stages.playing import RoundPlayer, RoundsAhead
from offline_agent.policies.base import Proposals
from offline_agent.records import Action, Context, Task, ToolCall, Verdict
from offline_agent.rollouts.attempts import Attempt, AttemptRequest
from offline_agent.rollouts.episodes import Episodes
from offline_agent.training.online.groups import Round, RoundSampler
from offline_agent.training.online.objectives import objective
from offline_agent.training.online.settings import GroupSettings
from tests.helpers.search import Paths, tasks
from tests.helpers.thread_engine import ThreadEngine

POOL = [Task(f"t{n}", "train", {"n": n}) for n in range(6)]
TASKS, SIZE = 2, 2


def finished(ask: AttemptRequest, versions: Sequence[int]) -> Attempt:
    reward = float(random.Random(f"{ask.task.task_id} {ask.number}").random() < 0.5)
    verdict = Verdict(reward, reward == 1.0, "test")
    context = Context(ask.task, "", [], "begin")
    return Attempt("candidate", "sampled", ask.task, ask.number, context, (), verdict, True, False, None,
                   versions=tuple(versions))  # fmt: skip


class Clocked:
    """Plays by a clock of its own: at each tick some turns and some calls of tools end. Some tasks are slow.

    Attributes:
        weights: Those of the policy; they must be the same from the begin of a turn to its end.
    """

    def __init__(self, seed: int, in_flight: int, logged: Sequence[Attempt] = ()) -> None:
        self.chance, self.in_flight, self.weights = random.Random(seed), in_flight, -1
        self.logged = {(one.task.task_id, one.number): one for one in logged}
        self.ahead: Any = None
        self.standing = ""
        self.asked, self.begun = list[tuple[str, int]](), list[int]()
        self.under_way = 0
        self.most_rounds = 0

    def known(self, asks: Sequence[AttemptRequest]) -> tuple[list[Attempt], list[AttemptRequest]]:
        found = {(ask.task.task_id, ask.number): ask for ask in asks}
        return [self.logged[key] for key in found if key in self.logged], [
            ask for key, ask in found.items() if key not in self.logged
        ]

    def wake(self) -> None:
        """The gate is asked at every tick."""

    def play(self, asks: Iterable[AttemptRequest | None]) -> Iterator[Attempt]:
        source, running = iter(asks), list[dict[str, Any]]()
        while True:
            while len(running) < self.in_flight and (ask := next(source, None)) is not None:
                self.asked.append((ask.task.task_id, ask.number))
                slow = 6 if ask.task.task_id == "t0" else 1
                running.append({"ask": ask, "left": slow * self.chance.randint(1, 3), "sent": None, "versions": []})
            if not running:
                self.under_way = 0
                return
            self.most_rounds = max(self.most_rounds, len({one["ask"].number // SIZE for one in running}))
            self.under_way = sum(one["sent"] is not None for one in running)
            version = self.ahead.gate(self.under_way == 0)
            for one in [one for one in running if self.chance.random() < 0.5]:
                if one["sent"] is None and version is not None:
                    one["sent"] = self.weights
                    assert version == self.weights
                elif one["sent"] is not None:
                    assert one["sent"] == self.weights  # no turn is of two versions
                    one["versions"].append(one["sent"])
                    one["sent"], one["left"] = None, one["left"] - 1
                    if not one["left"]:
                        running.remove(one)
                        yield finished(one["ask"], one["versions"])


def trained(
    play: Clocked, behind: int, rounds: int, name: str, first: int = 0, told: Sequence[Round] = ()
) -> list[Round]:
    """Return the rounds as a trainer gets them that takes its time."""
    chosen = GroupSettings(tasks=TASKS, size=SIZE, behind=behind)
    groups = RoundSampler(POOL, chosen, objective(name), lambda asks, number: (), 3)
    for made in told:
        groups.note(made.number, {g.task.task_id: (sum(g.successes), len(g.successes)) for g in made.groups})
    player: Any = play
    play.ahead = ahead = RoundsAhead(groups, player, first, rounds)

    def give(version: int) -> int:
        assert play.under_way == 0
        play.weights = version
        return version

    found = []
    try:
        for number in range(first, rounds):
            made = ahead.take(number, lambda number=number: give(number))  # type: ignore[misc]
            assert made.number == number
            found.append(made)
            time.sleep(0.001 * play.chance.random())
            ahead.settle()
            assert ahead.handed == number == play.weights
    finally:
        ahead.close()
    return found


@settings(max_examples=15)
@given(
    seed=st.integers(0, 999), behind=st.integers(1, 3), in_flight=st.integers(1, 12),
    name=st.sampled_from(["grpo", "dapo"]),
)  # fmt: skip
def test_no_token_is_older_than_allowed_and_whatever_was_begun_is_trained_on(
    seed: int, behind: int, in_flight: int, name: str
) -> None:
    play = Clocked(seed, in_flight)
    made = trained(play, behind, 6, name)
    for each in made:
        ages = [each.number - version for attempt in each.attempts for version in attempt.versions]
        assert min(ages) >= 0 and max(ages) <= behind
        assert all(len(group.attempts) == SIZE for group in each.groups)
    whole = [(attempt.task.task_id, attempt.number) for each in made for attempt in each.attempts]
    assert sorted(whole) == sorted(play.asked) and len(set(whole)) == len(whole)  # the slow task's too
    again = trained(Clocked(seed + 1, 4), behind, 6, name)  # however fast they are, rounds draw the same
    assert [[g.task.task_id for g in each.groups] for each in again] == [
        [g.task.task_id for g in each.groups] for each in made
    ]
    # a session that goes on draws them again, and plays what the log has not
    attempts = [attempt for each in made[2:] for attempt in each.attempts]
    kept = [attempt for attempt in attempts if play.chance.random() < 0.5]
    later = Clocked(seed, in_flight, kept)
    went_on = trained(later, behind, 6, name, 2, made[:2])
    assert len(later.asked) == len(attempts) - len(kept)
    assert [{a.key for a in each.attempts} for each in went_on] == [{a.key for a in each.attempts} for each in made[2:]]


def test_a_round_begins_while_the_last_of_an_earlier_one_are_played() -> None:
    play = Clocked(1, 12)
    trained(play, 1, 6, "grpo")
    assert play.most_rounds == 2


class Numbered:
    """Says in its action which weights it had when it was asked, and when it answered."""

    name, renderer, batch_invariant, max_tokens = "numbered", None, True, 8
    identity: dict[str, object] = {}
    weights = -1

    def propose(self, requests: Sequence[Any]) -> list[Any]:
        asked = self.weights
        time.sleep(0.003 * random.random())
        door = ToolCall("door", {"number": random.randrange(3)})
        return [Proposals((Action(f"{asked} {self.weights}", "", door),)) for _ in requests]


class Log:
    """Keeps attempts."""

    def __init__(self) -> None:
        self.kept: list[Attempt] = []

    def read(self, wanted: Any) -> list[Attempt]:
        return []

    def add(self, attempt: Attempt) -> None:
        self.kept.append(attempt)


def test_each_turn_is_recorded_with_the_weights_that_said_it() -> None:
    spec, policy, log = EnvSpec(Paths), Numbered(), Log()
    engine, pool = ThreadEngine(policy, workers=3, max_batch=2), EnvPool(3)  # type: ignore[arg-type]
    ahead: Any = None
    episodes = Episodes(spec, engine, pool, max_steps=5, in_flight=8, gate=lambda idle: ahead.gate(idle))  # type: ignore[arg-type]
    player = RoundPlayer(episodes, log, 4, 0)  # type: ignore[arg-type]
    chosen = GroupSettings(tasks=3, size=4, behind=1)
    ahead = RoundsAhead(RoundSampler(tasks(spec, 9), chosen, objective("grpo"), player), player, 0, 5)
    try:
        for number in range(5):
            ahead.take(number, lambda number=number: setattr(policy, "weights", number))
            ahead.settle()
    finally:
        ahead.close()
        engine.close()
        pool.close()
    assert len(log.kept) == 60 and sum(len(set(attempt.versions)) > 1 for attempt in log.kept) > 0
    for attempt in log.kept:
        said = [step.action.text for step in attempt.steps]
        assert said == [f"{version} {version}" for version in attempt.versions]


def test_what_ends_the_player_reaches_the_trainer_as_it_was() -> None:
    fault = LookupError("no such shelf")

    class Broken(Clocked):
        def play(self, asks: Iterable[AttemptRequest | None]) -> Iterator[Attempt]:
            for number, attempt in enumerate(super().play(asks)):
                if number == 5:
                    raise fault
                yield attempt

    with pytest.raises(LookupError) as raised:
        trained(Broken(2, 4), 1, 6, "grpo")
    assert raised.value is fault
