"""Which tasks are played, in which groups, what is replaced and left out."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
from pydantic import ValidationError

from offline_agent.records import Action, Context, Step, Task, Verdict
from offline_agent.rollouts.attempts import Attempt, AttemptRequest
from offline_agent.training.online.groups import RoundSampler
from offline_agent.training.online.objectives import objective
from offline_agent.training.online.settings import GroupSettings

POOL = [Task(f"t{n}", "train", {"n": n}) for n in range(12)]


def attempt(ask: AttemptRequest, reward: float | None, texts: Sequence[str] = ("a",)) -> Attempt:
    """Return an attempt that took some actions."""
    steps = [Step(Action(text), text, f"saw {text}") for text in texts]
    context = Context(ask.task, "", [], "begin")
    for step in steps:
        context = context.child(step.action, step.observation)
    verdict = Verdict(reward, None if reward is None else reward == 1.0, "test", error="no" if reward is None else None)
    return Attempt("candidate", ask.mode, ask.task, ask.number, context, tuple(steps), verdict, True, False, None,
                   tool_calls=len(steps))  # fmt: skip


class Table:
    """Plays by a table of success rates; notes what was asked for."""

    def __init__(self, rates: dict[int, float]) -> None:
        self.rates, self.asked = rates, list[AttemptRequest]()

    def __call__(self, asks: Sequence[AttemptRequest], number: int) -> Iterator[Attempt]:
        self.asked += asks
        for ask in reversed(asks):  # any order will do
            rate = self.rates.get(int(ask.task.args["n"]), 0.5)
            luck = random.Random(f"{ask.task.task_id} {ask.number}")
            texts = [luck.choice("abc") for _ in range(3)]
            yield attempt(ask, float(random.Random(f"{ask.task.task_id} {texts}").random() < rate), texts)


def groups(
    table: Table, name: str = "grpo", pool: Sequence[Task] = POOL, seed: int = 0, **settings: object
) -> RoundSampler:
    chosen = GroupSettings(**{"tasks": 3, "size": 4, **settings})  # type: ignore[arg-type]
    return RoundSampler(pool, chosen, objective(name), table, seed)


def test_a_round_is_groups_of_one_task_each_with_numbers_of_their_own() -> None:
    table = Table({})
    made = groups(table)
    rounds = [made.make(number) for number in range(3)]
    assert all(len(each.groups) == 3 and len({g.task.task_id for g in each.groups}) == 3 for each in rounds)
    keys = [(ask.task.task_id, ask.number) for ask in table.asked]
    assert len(keys) == 36 == len(set(keys))
    assert all(attempt.number // 4 == each.number for each in rounds for attempt in each.attempts)
    again = groups(Table({}))
    assert [[g.task.task_id for g in again.make(n).groups] for n in range(3)] == [
        [g.task.task_id for g in each.groups] for each in rounds
    ]
    assert [g.task.task_id for g in groups(Table({}), seed=1).make(0).groups] != [
        g.task.task_id for g in rounds[0].groups
    ]


def test_what_was_made_before_is_all_that_a_later_round_depends_on() -> None:
    whole = groups(Table({n: n / 12 for n in range(12)}))
    rounds = [whole.make(number) for number in range(4)]
    again = groups(Table({n: n / 12 for n in range(12)}))
    for each in rounds[:3]:
        again.note(each.number, {g.task.task_id: (sum(g.successes), len(g.successes)) for g in each.groups})
    assert [g.task.task_id for g in again.make(3).groups] == [g.task.task_id for g in rounds[3].groups]


def test_tasks_solved_half_of_the_time_are_drawn_most_and_solved_ones_rest() -> None:
    made = groups(Table({}), rest=5)
    made.note(0, {"t0": (4, 4), "t1": (2, 4), "t2": (0, 4)})
    assert made.learnability("t0", 3) == 0.0 < made.learnability("t2", 3) < made.learnability("t1", 3)
    assert made.learnability("t0", 6) == made.learnability("t2", 6)  # back again, as dear as its opposite
    drawn = [0, 0, 0]
    for number in range(200):
        chance = random.Random(number)
        for task in made._draw(1, {t.task_id for t in POOL[3:]}, 1, chance):
            drawn[int(task.args["n"])] += 1
    assert drawn[0] == 0 and drawn[1] > 2.5 * drawn[2] > 0
    only = groups(Table({}), pool=POOL[:3])
    only.note(0, {"t0": (4, 4), "t1": (4, 4), "t2": (4, 4)})
    assert len(only.make(1).groups) == 3  # nothing else is left


def test_uniform_choice_does_not_look_at_success() -> None:
    made = groups(Table({}), choice="uniform", pool=POOL[:2])
    made.note(0, {"t0": (4, 4)})
    drawn = [made._draw(1, set(), 1, random.Random(number))[0].task_id for number in range(100)]
    assert 30 < drawn.count("t0") < 70


def test_groups_without_spread_are_replaced_where_the_objective_is_dynamic() -> None:
    rates = {n: 0.0 if n < 6 else 0.5 for n in range(12)}
    made = groups(Table(rates), "dapo", redraws=3)
    for number in range(6):
        each = made.make(number)
        assert 3 <= len(each.groups) <= 12
        assert all(bool(group.spread) == group.kept for group in each.groups)
        assert len(each.kept) == 3 or (len(each.kept) < 3 and len(each.groups) == 12)
    one = groups(Table({3: 0.0}), "dapo", pool=POOL[:6], redraws=3)  # the others have spread, mostly
    for number in range(8):
        each = one.make(number)
        assert len(each.kept) == 3 or len(each.groups) == 6
    hopeless = groups(Table(dict.fromkeys(range(12), 0.0)), "dapo", redraws=1).make(0)
    assert len(hopeless.groups) == 6 and not hopeless.kept  # as many more as were allowed, and no further
    assert len(groups(Table(rates), "grpo").make(0).kept) == 3


def test_only_the_groups_of_largest_spread_are_kept_for_starpo() -> None:
    each = groups(Table({n: n / 12 for n in range(12)}), "starpo_s", tasks=8, size=8).make(0)
    spreads = sorted((group.spread or 0.0 for group in each.groups), reverse=True)
    assert sorted((g.spread or 0.0 for g in each.kept), reverse=True) == spreads[: len(each.kept)]
    assert len(each.kept) == 2




@pytest.mark.parametrize(
    ("settings", "says"),
    [({"size": 1}, "size"), ({"tasks": 0}, "tasks")],
)
def test_impossible_groups_are_refused(settings: dict[str, float], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        groups(Table({}), **settings)
