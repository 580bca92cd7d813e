"""Predicates over the shop's state, for subgoals (`judge=planned`).

The state is that of the same calls in a fresh shop.
"""

from __future__ import annotations

import json
from functools import lru_cache

from offline_agent.envs.shop.env import Shop
from offline_agent.records import Trajectory


def listed(trajectory: Trajectory, kind: str) -> bool:
    """The page of results shows a product of this type."""
    shop = _state(trajectory)
    return shop._item is None and any(shop._shop.products[number].kind == kind for number in shop._shown())


def opened(trajectory: Trajectory, kind: str, attribute: str) -> bool:
    """The page of a product of this type that has this attribute is open."""
    item = _state(trajectory)._item
    return item is not None and item.kind == kind and attribute in item.attributes


def affordable(trajectory: Trajectory, most: int) -> bool:
    """The page of a product that costs at most so many dollars is open."""
    item = _state(trajectory)._item
    return item is not None and item.price <= most


def chosen(trajectory: Trajectory, option: str, value: str) -> bool:
    """This value of this option is chosen on the open page."""
    return _state(trajectory)._chosen.get(option) == value


def bought(trajectory: Trajectory, kind: str) -> bool:
    """A product of this type was bought."""
    item = _state(trajectory)._bought
    return item is not None and item.kind == kind


PREDICATES = (listed, opened, affordable, chosen, bought)


def _state(trajectory: Trajectory) -> Shop:
    calls = [step.action.call for step in trajectory.steps if step.fault is None]
    made = tuple((call.name, json.dumps(dict(call.arguments), sort_keys=True)) for call in calls if call is not None)
    return _replayed(json.dumps(dict(trajectory.task.args), sort_keys=True), made)


@lru_cache(256)  # the predicates of one plan ask for the same state
def _replayed(task: str, calls: tuple[tuple[str, str], ...]) -> Shop:
    shop = Shop()
    shop.reset(**json.loads(task))
    for name, arguments in calls:
        getattr(shop, name)(**json.loads(arguments))
    return shop
