"""Countdown: the solver against other searches, its turns, tasks that need all moves, splits, refusals, relabelling."""

import copy
import itertools
import random
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from offline_agent.envs.base import ToolError
from offline_agent.envs.countdown import SPLITS, Countdown, after, moves, reachable, shortest, split_of, targets
from offline_agent.errors import ConfigError


def by_expressions(numbers):
    """Return every number that uses all of `numbers` once, from expressions whose parts are whole and above 0."""
    if len(numbers) == 1:
        return {numbers[0]}
    found = set()
    for size in range(1, len(numbers)):
        for chosen in itertools.combinations(range(len(numbers)), size):
            left = by_expressions(tuple(numbers[i] for i in chosen))
            right = by_expressions(tuple(n for i, n in enumerate(numbers) if i not in chosen))
            for a, b in itertools.product(left, right):
                values = (Fraction(a + b), Fraction(a - b), Fraction(a * b), Fraction(a, b))
                found |= {int(value) for value in values if value > 0 and value.denominator == 1}
    return found


@pytest.mark.parametrize("numbers", [(3, 7, 25), (2, 2, 4), (1, 5, 6, 9), (3, 3, 8, 8)])
def test_what_all_numbers_make_is_what_expressions_make(numbers):
    ends = {numbers}
    for _ in numbers[1:]:
        ends = {after(state, move) for state in ends for move in moves(state)}
    assert {state[0] for state in ends} == by_expressions(numbers)
    assert set(reachable(numbers)) >= by_expressions(numbers)


def fewest_calls(game):
    """Return the fewest calls of the tool that win the game, of every call there is; None where none do."""
    if game.terminated:
        return 0 if game.get_reward().success else None
    found = []
    for (a, b), op in itertools.product(itertools.permutations(game._left, 2), "+-*/"):
        branch = copy.deepcopy(game)
        try:
            branch.combine(a, op, b)
        except ToolError:
            continue
        calls = fewest_calls(branch)
        if calls is not None:
            found.append(calls + 1)
    return min(found, default=None)


@given(st.lists(st.integers(1, 20), min_size=2, max_size=3), st.integers(1, 99), st.data())
def test_the_solvers_value_is_that_of_exhaustive_play(numbers, target, data):
    if data.draw(st.booleans()):  # else few targets can be made
        target = data.draw(st.sampled_from(sorted(reachable(tuple(sorted(numbers))))))
    assume(target not in numbers)
    game = Countdown()
    game.reset(numbers, target)
    assert shortest(game._left, target) == fewest_calls(game)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_the_expert_solves_every_task_in_one_call_less_than_it_has_numbers(n):
    for task in itertools.islice(Countdown.tasks("validation", n), 12):
        game = Countdown()
        messages = [{"role": "user", "content": game.reset(**task)}]
        while not game.terminated:
            turn = Countdown.demonstrate(task, messages, random.Random(0), 0.0)
            told = game.combine(**turn["tool_calls"][0]["function"]["arguments"])
            messages += [turn, {"role": "tool", "content": told}]
        assert game.get_reward().success and len(messages) == 2 * n - 1


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_tasks_need_all_their_moves_and_are_in_one_split(n):
    for split in SPLITS:
        tasks = list(itertools.islice(Countdown.tasks(split, n), 12))
        assert tasks == list(itertools.islice(Countdown.tasks(split, n), 12)) and len(tasks) == 12
        for task in tasks:
            assert shortest(tuple(task["numbers"]), task["target"]) == n - 1
            assert task["target"] in targets(n) and split_of(task["numbers"], task["target"]) == split


def test_few_possible_tasks_end():
    assert len(list(Countdown.tasks("test", 2, 3))) == 0
    assert 0 < len(list(Countdown.tasks("test", 2, 20))) < 200


def started():
    game = Countdown()
    game.reset([25, 3, 7], 28)
    return game


@pytest.mark.parametrize(
    "call, said",
    [((3, "+", 3), "not both left"), ((3, "-", 25), "whole number"), ((25, "/", 3), "whole number"),
     ((9, "+", 3), "left: 3 7 25")],
)  # fmt: skip
def test_a_refused_call_changes_nothing(call, said):
    game = started()
    before = game.fingerprint
    with pytest.raises(ToolError, match=said):
        game.combine(*call)
    assert game.fingerprint == before and not game.terminated


def test_the_target_ends_the_game_and_so_does_the_last_number():
    game = started()
    assert game.combine(25, "+", 3) == "left: 7 28 target 28" and game.terminated
    assert game.get_reward().success
    with pytest.raises(ToolError, match="over"):
        game.combine(7, "+", 28)
    game = started()
    game.combine(7, "-", 3)
    assert game.achieved_goal is None and not game.terminated
    game.combine(25, "*", 4)
    assert game.terminated and game.get_reward().score == 0.0


def test_equal_states_are_equal_whatever_made_them():
    games = [Countdown(), Countdown()]
    for game, numbers in zip(games, ([4, 6, 9], [9, 4, 6]), strict=True):
        game.reset(numbers, 33)
        game.combine(4, "+", 6) if game is games[0] else game.combine(6, "+", 4)
    assert games[0].fingerprint == games[1].fingerprint


def test_what_was_made_is_another_task_of_the_same_split_that_the_calls_solve():
    rng, found = random.Random(0), 0
    for task in itertools.islice(Countdown.tasks("train", 3), 60):
        game, calls = Countdown(), []
        game.reset(**task)
        while not game.terminated:
            calls.append(rng.choice(moves(game._left)))
            game.combine(*calls[-1])
        goal = game.achieved_goal
        if goal is not None:
            found += 1
            assert split_of(**goal) == "train"
            again = Countdown()
            again.reset(**goal)
            for call in calls:
                again.combine(*call)
            assert again.get_reward().success
    assert found > 10


@pytest.mark.parametrize("args", [{"n": 1}, {"n": 6}, {"n": True}, {"largest": 1}, {"largest": 101}])
def test_sizes_are_bounded(args):
    with pytest.raises(ConfigError, match="allowed: whole numbers from"):
        Countdown(**args)


NO_TASKS = [([], 5), ([3], 3), ([1] * 7, 7), ([1, 0], 1), ([2, 2.5], 5), ([2, 3], 0)]


@pytest.mark.parametrize(("numbers", "target"), NO_TASKS)
def test_what_takes_days_to_solve_or_is_no_number_is_no_task(numbers, target):
    with pytest.raises(ValueError, match="2 to 6 whole numbers above 0"):
        Countdown().reset(numbers, target)
