"""Credit by states: turns that were taken in equal states of one group, compared with one another."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offline_agent.training.online.credit import shared_states, state_advantages
from offline_agent.training.online.groups import Group
from offline_agent.training.online.objectives import objective
from offline_agent.training.online.samples import sample
from tests.helpers.online import credited
from tests.unit.training.online.test_samples import PLAIN, attempt, renderer, round_of

GRPO, RLOO = objective("grpo"), objective("rloo")
BATCH = replace(GRPO, scale="batch_std")

REWARDS = [1.0, 0.0, 0.5, None, 1.0]
STATES = ["ABAC", "AB", "BxC", "AB", "AD"]  # x: not known
GROUPS = [0, 0, 0, 0, 1]


def visited(states: str) -> list[str | None]:
    return [None if state == "x" else state for state in states]


def loops(discount: float, scale: str, others: bool) -> list[list[float] | None]:
    """Return the advantages by loops over the definition."""
    every = [
        discount ** (len(path) - 1 - t) * r for r, path in zip(REWARDS, STATES, strict=True) if r is not None
        for t in range(len(path))
    ]  # fmt: skip
    out: list[list[float] | None] = []
    for i, reward in enumerate(REWARDS):
        if reward is None:
            out.append(None)
            continue
        out.append([])
        for t, state in enumerate(STATES[i]):
            alike = {
                (j, s): discount ** (len(STATES[j]) - 1 - s) * r
                for j, r in enumerate(REWARDS) if r is not None and GROUPS[j] == GROUPS[i]
                for s, other in enumerate(STATES[j]) if other == state and state != "x"
            }  # fmt: skip
            own = discount ** (len(STATES[i]) - 1 - t) * reward
            rivals = [value for place, value in alike.items() if not others or place != (i, t)]
            if len(alike) < 2 or max(alike.values()) == min(alike.values()):
                out[-1].append(0.0)  # type: ignore[union-attr]
                continue
            divisor = {"none": 1.0, "group_std": statistics.stdev(alike.values()) + 1e-4}.get(
                scale, statistics.stdev(every) + 1e-4
            )
            out[-1].append((own - math.fsum(rivals) / len(rivals)) / divisor)  # type: ignore[union-attr]
    return out


@pytest.mark.parametrize("discount", [1.0, 0.95, 0.5])
@pytest.mark.parametrize("chosen", [PLAIN, GRPO, RLOO, BATCH], ids=["plain", "group_std", "others", "batch_std"])
def test_turns_of_one_state_are_compared_as_the_formula_says(chosen: Any, discount: float) -> None:
    found = state_advantages(REWARDS, [*map(visited, STATES)], GROUPS, chosen, discount)
    wanted = loops(discount, chosen.scale, chosen.baseline == "leave_one_out")
    assert [None if turns is None else pytest.approx(turns, abs=1e-12) for turns in wanted] == found
    assert found[0] is not None and found[0][0] != 0  # B of two trajectories, A twice in the first


EPISODES = st.lists(
    st.tuples(st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0])), st.text("ABCx", min_size=1, max_size=5)),
    min_size=1, max_size=6,
)  # fmt: skip


@given(EPISODES, st.randoms(), st.sampled_from([PLAIN, GRPO, RLOO]))
def test_the_order_of_a_group_changes_nothing(episodes: Any, chance: Any, chosen: Any) -> None:
    def of(some: Any) -> list[list[float] | None]:
        paths = [visited(path) for _, path in some]
        return state_advantages([reward for reward, _ in some], paths, [0] * len(some), chosen, 0.9)

    order = list(range(len(episodes)))
    chance.shuffle(order)
    found, mixed = of(episodes), of([episodes[place] for place in order])
    assert mixed == [None if found[place] is None else pytest.approx(found[place]) for place in order]


@given(EPISODES, st.sampled_from([PLAIN, GRPO, RLOO]))
def test_advantages_of_a_state_add_up_to_0_and_one_that_occurs_once_has_none(episodes: Any, chosen: Any) -> None:
    paths = [visited(path) for _, path in episodes]
    found = state_advantages([reward for reward, _ in episodes], paths, [0] * len(episodes), chosen, 0.9)
    by_state: dict[str | None, list[float]] = {}
    for path, turns in zip(paths, found, strict=True):
        for state, value in zip(path, turns or [0.0] * len(path), strict=True):
            by_state.setdefault(state, []).append(value)
    assert not any(by_state.pop(None, ()))
    assert all(abs(math.fsum(values)) < 1e-9 for values in by_state.values())
    assert all(values == [0.0] for values in by_state.values() if len(values) == 1)


def test_a_state_of_another_group_is_another_state() -> None:
    assert state_advantages([1.0, 0.0], [["A"], ["A"]], [0, 1], PLAIN) == [[0.0], [0.0]]
    assert state_advantages([1.0, 0.0], [["A"], ["A"]], [0, 0], PLAIN) == [[0.5], [-0.5]]


def test_samples_get_the_trajectorys_advantage_and_the_states() -> None:
    one = attempt(0, 1.0, ("red", "shoes"), states=("A", "B"))
    two = attempt(1, 0.0, ("red", "hats", "caps"), states=("A", "C", "B"))
    credit = credited("state", state_discount=0.5, state_weight=2.0)
    first, second = sample(round_of(one, two), renderer(), PLAIN, max_length=999, settings=credit)
    # returns of the first: 0.5 in A, 1 in B; of the second 0; half of the difference each, twice
    assert first.advantages == (0.5 + 0.5,) * first.turns[0] + (0.5 + 1.0,) * first.turns[1]
    assert second.advantages == (-1.0,) * second.turns[0] + (-0.5,) * second.turns[1] + (-1.5,) * second.turns[2]
    weightless = credited("state", state_discount=0.5, state_weight=0.0)
    none = sample(round_of(one, two), renderer(), PLAIN, max_length=999, settings=weightless)
    plain = sample(round_of(one, two), renderer(), PLAIN, max_length=999)
    assert [each.advantages for each in none] == [each.advantages for each in plain]


def test_turns_in_states_that_others_share_are_counted() -> None:
    paths = ((1.0, ("A", "B")), (0.0, ("A", None)), (None, ("B", "B")))
    members = tuple(attempt(n, reward, states=states) for n, (reward, states) in enumerate(paths))
    assert shared_states(Group(members[0].task, members, (1.0, 0.0, None))) == (2, 4)


def test_a_row_that_cannot_be_trained_on_stays_in_the_means() -> None:
    refused: list[tuple[str, str]] = []
    made = round_of(attempt(0, 1.0, ("red",), states=("a",)), attempt(1, 0.0, ("red",) * 30, states=("a",) * 30))
    (one,) = sample(made, renderer(), PLAIN, max_length=700, settings=credited("state"), refused=refused)
    assert len(refused) == 1 and one.advantages is not None and one.advantages[0] > 0.5
