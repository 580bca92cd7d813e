"""Groups whose members branch from one another: the expected gradient, summed over every group that can come about.

The task is small enough to enumerate: two actions a turn, episodes of one to three turns, a policy with one logit for
each history. The reference is the gradient of the expected reward, in float64.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product

import pytest

from offline_agent.records import Action, Step, Verdict
from offline_agent.rendering.renderer import Renderer
from offline_agent.rollouts.attempts import Attempt
from offline_agent.training.online.credit import branch_advantages
from offline_agent.training.online.groups import Group, Round
from offline_agent.training.online.objectives import Objective, objective
from offline_agent.training.online.round_batch import Algorithm, PlayedRound
from offline_agent.training.online.samples import sample
from offline_agent.training.online.settings import GroupSettings, OnlineSettings
from tests.helpers.online import credited
from tests.helpers.rendering import qwen, root

CHANCES = {"": 0.3, "0": 0.6, "00": 0.45}  # of action 1 after a history
REWARDS = {"1": 0.3, "01": 1.0, "000": 0.0, "001": 0.7}  # by how the episode went; longer ones get there by action 0
Gradient = Counter[str]


def endings(history: str = "") -> Iterator[tuple[str, float]]:
    """Yield every episode that goes on from a history, with its probability."""
    if history in REWARDS:
        yield history, 1.0
        return
    for action, chance in (("0", 1 - CHANCES[history]), ("1", CHANCES[history])):
        for path, rest in endings(history + action):
            yield path, chance * rest


def slope(path: str, turn: int) -> tuple[str, float]:
    """Return a history and the derivative of the log-probability of what followed it by the history's logit."""
    return path[:turn], float(path[turn]) - CHANCES[path[:turn]]


def policy_gradient() -> Gradient:
    """Return the derivative of the expected reward by every logit."""
    found: Gradient = Counter()
    for path, chance in endings():
        for turn in range(len(path)):
            history, by = slope(path, turn)
            found[history] += chance * REWARDS[path] * by  # type: ignore[assignment]
    return found


@cache
def renderer() -> Renderer:
    return Renderer(qwen())


@cache
def action(text: str) -> Action:
    ids = tuple(qwen()(f"go {text}<|im_end|>", add_special_tokens=False)["input_ids"])
    return Action(f"go {text}", token_ids=ids, logps=(-1.0,) * len(ids))


@cache
def attempt(number: int, path: str, branch: tuple[int, int] | None) -> Attempt:
    context, steps = root(), []
    for place, text in enumerate(path):
        steps.append(Step(action(text), text, f"at {path[: place + 1]}", "user"))
        context = context.child(steps[-1].action, steps[-1].observation, "user")
    verdict = Verdict(REWARDS[path], False, "test")
    return Attempt(
        "candidate", "sampled", context.task, number, context, tuple(steps), verdict, True, False, None, branch=branch
    )


def groups(roots: int, branches: int) -> Iterator[tuple[Group, list[str], float]]:
    """Yield every group with the paths of its members and its probability."""
    for first in product(list(endings()), repeat=roots):
        paths, chance = [path for path, _ in first], math.prod(p for _, p in first)
        turns = [(number, turn) for number, path in enumerate(paths) for turn in range(len(path))]
        ways = [
            ((number, turn), path, p / len(turns))
            for number, turn in turns
            for path, p in endings(paths[number][:turn])
        ]
        for left in product(ways, repeat=branches):
            members = [attempt(number, path, None) for number, path in enumerate(paths)]
            members += [attempt(roots + place, path, branch) for place, (branch, path, _) in enumerate(left)]
            rewards = tuple(member.reward for member in members)
            group = Group(members[0].task, tuple(members), rewards)
            yield group, [*paths, *(path for _, path, _ in left)], chance * math.prod(p for _, _, p in left)


def trained(group: Group, chosen: Objective, credit: GroupSettings) -> Iterator[tuple[int, int, float]]:
    """Yield member, turn and advantage of all that is trained on."""
    found = sample(Round(0, 1.0, (group,)), renderer(), chosen, max_length=9999, settings=credit)
    batch = Algorithm(chosen, OnlineSettings(1)).batch(PlayedRound(found, 1.0))
    batch.credit()
    for one, given in zip(found, batch.advantages, strict=True):
        number = int(one.name.split("/")[-1])
        branch, place = group.attempts[number].branch, 0
        for turn, tokens in enumerate(one.turns, start=0 if branch is None else branch[1]):
            values = given[place : place + tokens].tolist()
            assert max(values) == min(values)
            yield number, turn, values[0]
            place += tokens


def expected(roots: int, branches: int, chosen: Objective, credit: GroupSettings) -> Gradient:
    found, whole = Gradient(), 0.0
    for group, paths, chance in groups(roots, branches):
        whole += chance
        for number, turn, advantage in trained(group, chosen, credit):
            history, by = slope(paths[number], turn)
            found[history] += chance * advantage * by  # type: ignore[assignment]
    assert whole == pytest.approx(1.0)
    return found


@pytest.mark.parametrize(
    ("name", "credit", "times"),
    [
        ("rloo", "trajectory", 3.0),  # two that began at the beginning, and one branch
        ("dr_grpo", "trajectory", 2 * (1 / 2) + 2 / 3),  # the mean has the member itself in it
        ("reinforce", "trajectory", 3.0),
        ("rloo", "turn", 3.0),
    ],
)
def test_the_expected_gradient_is_the_policy_gradient(name: str, credit: str, times: float) -> None:
    chosen = objective(name, **({"budget": 9} if name == "dr_grpo" else {}))
    got, wanted = expected(2, 1, chosen, credited(credit)), policy_gradient()  # type: ignore[arg-type]
    assert set(got) == set(wanted)
    for history, by in wanted.items():
        assert got[history] == pytest.approx(times * by, rel=1e-6), history


@pytest.mark.parametrize(("roots", "branches"), [(1, 1), (1, 2), (2, 2)])
def test_credit_by_turns_is_the_policy_gradient_for_groups_of_any_kind(roots: int, branches: int) -> None:
    found = Gradient()
    for group, paths, chance in groups(roots, branches):
        for path, advantages in zip(paths, branch_advantages(group), strict=True):
            for turn, advantage in enumerate(advantages or ()):
                history, by = slope(path, turn)
                found[history] += chance * advantage * by  # type: ignore[assignment]
    for history, by in policy_gradient().items():
        assert found[history] == pytest.approx((roots + branches) * by, rel=1e-9), (history, roots, branches)


def test_what_members_share_is_learnt_from_once() -> None:
    members = [attempt(0, "001", None), attempt(1, "1", None), attempt(2, "01", (0, 1))]
    group = Group(members[0].task, tuple(members), (0.7, 0.3, 1.0))
    found = sample(Round(0, 1.0, (group,)), renderer(), objective("rloo"), max_length=9999)
    assert [len(one.turns) for one in found] == [3, 1, 1]
    assert found[2].input_ids[: len(found[2].input_ids) // 2] == found[0].input_ids[: len(found[2].input_ids) // 2]
    assert [one.advantages[0] for one in found if one.advantages] == pytest.approx([0.4, -0.4, 0.5])
    assert found[0].factors is None and found[2].factors == (2 / 2,)  # four turns of two sources; its turn is the 2nd


def test_a_member_that_nobody_can_be_compared_with_is_not_pulled() -> None:
    members = [attempt(0, "001", None), attempt(1, "01", (0, 1))]
    group = Group(members[0].task, tuple(members), (0.7, 1.0))
    mean = sample(Round(0, 1.0, (group,)), renderer(), objective("dr_grpo", budget=9), max_length=9999)
    assert set(mean[0].advantages or ()) == {0.0} and mean[1].advantages == pytest.approx((0.15,) * mean[1].tokens)
    (alone,) = sample(Round(0, 1.0, (group,)), renderer(), objective("rloo"), max_length=9999)
    assert alone.name[-1] == "1"


def test_branches_and_where_they_left_survive_the_log() -> None:
    from offline_agent.rollouts.attempts import from_record, to_record

    one: Sequence[Attempt] = [attempt(2, "01", (0, 1)), attempt(0, "01", None)]
    for each in one:
        assert each.context is not None
        openings = {"x": (each.context.system, each.context.tools)}
        assert from_record(to_record(each, "x"), each.task, openings).branch == each.branch
