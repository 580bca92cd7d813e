"""Goals of the shop's customers: their texts, their reward, and the three disjoint splits."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from typing import Any

from offline_agent.envs.shop.catalogue import (
    DEPARTMENT_OF,
    DEPARTMENTS,
    RESULTS_PER_PAGE,
    Catalogue,
    Product,
    catalogue,
)
from offline_agent.judges.verifiers import purchase_reward
from offline_agent.seeding import derive_seed

SPLITS = {"train": 10000, "validation": 400, "test": 400}
"""Goals per split."""

MAX_LOOKS = 4
"""A goal's first matching product is among this many affordable results of the plain query."""

PRICE_LIMITS = (30, 50, 70, 90)

FIRST_LOOK = 0.3
"""Share of the goals fulfilled by the first affordable hit that are kept."""


@dataclass(frozen=True, slots=True)
class Goal:
    """One request.

    Attributes:
        kind: The product type.
        attributes: Attributes that the product must have.
        options: Option name → the value to choose.
        max_price: Whole dollars; the price may be equal.
    """

    kind: str
    attributes: tuple[str, ...]
    options: Mapping[str, str]
    max_price: int

    def instruction(self) -> str:
        """Return the request in words."""
        wishes = "".join(f", {name} {value}" for name, value in self.options.items())
        return f"Buy one {' '.join((*self.attributes, self.kind))}{wishes}, for at most ${self.max_price}."

    def task(self) -> dict[str, Any]:
        """Return the goal as the keyword arguments of `Shop.reset`."""
        return {
            "instruction": self.instruction(),
            "kind": self.kind,
            "attributes": list(self.attributes),
            "options": dict(self.options),
            "max_price": self.max_price,
        }

    @classmethod
    def from_task(cls, task: Mapping[str, Any]) -> Goal:
        """Rebuild a goal from the keyword arguments of `Shop.reset`."""
        # Arrow gives every row of a column of structs every key, with None where a row had none.
        options = {str(name): str(value) for name, value in dict(task["options"]).items() if value is not None}
        return cls(str(task["kind"]), tuple(map(str, task["attributes"])), options, int(task["max_price"]))

    def query(self) -> str:
        """Return the plain query: the wanted attributes and the type."""
        return " ".join((*self.attributes, self.kind))

    def fits(self, item: Product) -> bool:
        """Return whether `item` can be bought, with the right options chosen, for a reward of 1."""
        if item.kind != self.kind or item.price > self.max_price or not set(self.attributes) <= set(item.attributes):
            return False
        return all(value in item.options.get(name, ()) for name, value in self.options.items())


def reward(goal: Goal, item: Product, chosen: Mapping[str, str]) -> tuple[float, dict[str, Any]]:
    """Return WebShop's reward in [0, 1] of buying `item` with the options `chosen`, and the facts it rests on."""
    bought = {
        "type": item.kind, "category": DEPARTMENT_OF.get(item.kind), "attributes": item.attributes, "options": chosen,
        "price": item.price,
    }  # fmt: skip
    wanted = {
        "type": goal.kind, "category": DEPARTMENT_OF.get(goal.kind), "attributes": goal.attributes,
        "options": goal.options, "max_price": goal.max_price,
    }  # fmt: skip
    score, matched = purchase_reward(bought, wanted)
    evidence = {
        "bought": item.number,
        "title": item.title,
        "price": item.price,
        "price_ok": matched["price_ok"],
        "chosen": dict(chosen),
        "type_reward": matched["type"],
        "attributes_matched": matched["attributes"],
        "options_matched": matched["options"],
    }
    return score, evidence


def split_of(kind: str, attributes: Sequence[str]) -> str:
    """Return the split that every request for these attributes of this type belongs to.

    Splitting by what is searched for, and not by the whole goal, keeps validation's result pages out of training.
    """
    lot = derive_seed(0, "shop split", kind, *sorted(attributes)) % 10
    return "validation" if lot == 0 else "test" if lot == 1 else "train"


def goals(split: str) -> tuple[Goal, ...]:
    """Return the goals of a split, always in the same order.

    Raises:
        ValueError: There is no such split.
    """
    if split not in SPLITS:
        raise ValueError(f"shop: no split {split!r}; there are {', '.join(SPLITS)}")
    return _goals()[split]


@cache
def _goals() -> dict[str, tuple[Goal, ...]]:
    found: dict[str, list[Goal]] = {split: [] for split in SPLITS}
    known = cache(split_of)  # many goals have the attributes of another
    for goal in _candidates(catalogue()):
        found[known(goal.kind, goal.attributes)].append(goal)
    out: dict[str, tuple[Goal, ...]] = {}
    for split, size in SPLITS.items():
        random.Random(derive_seed(0, "shop goals", split)).shuffle(found[split])
        out[split] = tuple(found[split][:size])
    return out


def _candidates(shop: Catalogue) -> Iterator[Goal]:
    """Yield goals that need several results to be opened, but not too many."""
    for kind, name in DEPARTMENT_OF.items():
        department = DEPARTMENTS[name]
        for pair in combinations(department.attributes, 2):
            rng = random.Random(derive_seed(0, "shop goal", kind, *pair))
            attributes = pair if rng.random() < 0.5 else pair[::-1]
            hits = [shop.products[number] for number in shop.search(f"{kind} {' '.join(pair)}")]
            shown = [item for item in hits[: 2 * RESULTS_PER_PAGE] if item.kind == kind]
            fitting: dict[tuple[str, ...], list[Product]] = {}
            for item in shown:
                if set(pair) <= set(item.attributes):
                    for values in product(*(item.options[name] for name in department.options)):
                        fitting.setdefault(values, []).append(item)
            for values in product(*department.options.values()):
                options = dict(zip(department.options, values, strict=True))
                for limit in PRICE_LIMITS if values in fitting else ():
                    first = next((item for item in fitting[values] if item.price <= limit), None)
                    if first is None:
                        continue
                    looks = sum(item.price <= limit for item in shown[: shown.index(first) + 1])
                    # Few goals are fulfilled by the first look, and still enough that it must be looked at.
                    if looks <= MAX_LOOKS and (looks > 1 or rng.random() < FIRST_LOOK):
                        yield Goal(kind, attributes, options, limit)
