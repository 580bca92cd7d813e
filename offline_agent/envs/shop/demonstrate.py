"""Scripted customers of the shop: an oracle, and one that uses the tools correctly but decides carelessly."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from offline_agent.envs.shop.catalogue import Product
from offline_agent.envs.shop.goals import Goal
from offline_agent.records import Message, call_message

Shop = Any
"""Stands for `env.Shop`: that module imports this one."""

NOTICE = 0.35
"""Probability, for each option, that the careless customer notices that the product does not fit."""

PATIENCE = 3
"""Result pages that the careless customer looks at."""

Call = tuple[str, dict[str, Any]]


def next_turn(
    shop: Shop, task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float
) -> Message:
    """Return the next assistant message of a conversation about `task`.

    Args:
        shop: A fresh environment; the calls of the conversation are made again in it.
        task: The keyword arguments of `reset`.
        messages: The conversation so far.
        rng: Source of the careless customer's choices.
        noise: 0 for the oracle, which knows the catalogue and always earns 1; above 0 a customer that sees only the
            pages, more careless the higher it is (0.3 is usual, 1 is random).
    """
    observation = shop.reset(**task)
    for message in messages:
        for call in message.get("tool_calls") or ():
            observation = replay(shop, call["function"]["name"], call["function"]["arguments"], observation)
    answer, call = remark(shop, observation), decide(shop, observation, rng, noise)
    if call is None:
        return {"role": "assistant", "content": "Nothing here fits."}
    name, arguments = call
    return {**call_message(name, arguments), "content": answer}


def replay(shop: Shop, name: str, arguments: Mapping[str, Any], before: str) -> str:
    """Repeat a recorded call; return its answer, or `before` where the tools' schemas refuse it."""
    if name not in ("search", "open", "next", "previous", "back", "choose", "buy"):
        return before
    try:
        return str(getattr(shop, name)(**arguments))
    except TypeError:
        return before


def remark(shop: Shop, observation: str) -> str:
    """Return the text of both customers about a product just opened, e.g. `mild yes, sugarfree yes, double no`.

    It says of each requested attribute and option, in that order, whether the page has it. It is always true, however
    careless the decision after it, so a policy that learns from it learns to look first. Empty on other pages.
    """
    goal, item = shop._goal, shop._item
    if goal is None or item is None or shop._chosen or observation.startswith("error"):
        return ""
    has = {word: word in item.attributes for word in goal.attributes}
    has |= {value: item.option_of(value) is not None for value in goal.options.values()}
    return ", ".join(f"{word} {'yes' if there else 'no'}" for word, there in has.items())


def decide(shop: Shop, observation: str, rng: random.Random, noise: float) -> Call | None:
    """Return the next call from the state of `shop` and its last answer; None when there is nothing left to do."""
    goal = shop._goal
    if goal is None or shop.terminated:
        return None
    if noise <= 0:
        return _oracle(shop, goal)
    if shop._item is not None:
        return _at_product(shop, goal, shop._item, observation, rng, noise)
    return _at_results(shop, goal, rng, noise)


def _oracle(shop: Shop, goal: Goal) -> Call | None:
    if shop._item is not None:
        if not goal.fits(shop._item):
            return "back", {}
        missing = [value for name, value in goal.options.items() if shop._chosen.get(name) != value]
        return ("choose", {"value": missing[0]}) if missing else ("buy", {})
    place = _first_fit(shop, goal, shop._hits)
    if place is not None:
        page, rank = divmod(place, shop.page_size)
        if page == shop._page:
            return "open", {"rank": rank + 1}
        return ("next", {}) if page > shop._page else ("previous", {})
    if _first_fit(shop, goal, shop._shop.search(goal.query())) is not None:
        return "search", {"query": goal.query()}
    fitting = next(filter(goal.fits, shop._shop.products), None)
    if fitting is None:
        return None
    return "search", {"query": " ".join((*fitting.attributes, fitting.keyword, fitting.kind))}


def _first_fit(shop: Shop, goal: Goal, hits: Sequence[int]) -> int | None:
    return next((place for place, number in enumerate(hits) if goal.fits(shop._shop.products[number])), None)


def _at_results(shop: Shop, goal: Goal, rng: random.Random, noise: float) -> Call:
    if not shop._hits:
        words = list(goal.attributes)
        if len(words) > 1 and rng.random() < 0.3 * noise:
            words.pop(rng.randrange(len(words)))
        return "search", {"query": " ".join((*words, goal.kind))}
    shown = [shop._shop.products[number] for number in shop._shown()]
    unseen = [rank for rank, item in enumerate(shown, 1) if item.number not in shop._seen]
    good = [rank for rank in unseen if shown[rank - 1].price <= goal.max_price and shown[rank - 1].kind == goal.kind]
    more = shop._page + 1 < min(PATIENCE, shop._pages())
    if unseen and rng.random() < 0.25 * noise:
        return "open", {"rank": unseen[0]}
    if good and not (more and rng.random() < 0.1 * noise):
        return "open", {"rank": good[0]}
    if more:
        return "next", {}
    full = shop._shop.search(goal.query())
    if shop._hits != full:
        return "search", {"query": goal.query()}
    # Out of patience: something seen before will have to do.
    return "open", {"rank": rng.randrange(len(shown)) + 1}


def _at_product(shop: Shop, goal: Goal, item: Product, observation: str, rng: random.Random, noise: float) -> Call:
    resigned = shop._seen.count(item.number) > 1
    wrong = item.kind != goal.kind or item.price > goal.max_price or not set(goal.attributes) <= set(item.attributes)
    missing = [value for name, value in goal.options.items() if shop._chosen.get(name) != value]
    absent = [value for value in missing if item.option_of(value) is None]
    refused = observation.startswith("error")
    if not resigned and _turns_away(wrong, bool(absent), bool(shop._chosen), refused, rng, noise):
        return "back", {}
    offered = [value for value in missing if value not in absent]
    if absent and absent[0] == missing[0] and not refused and not resigned and not _passed_over(absent[0], shop, goal):
        return "choose", {"value": absent[0]}
    if offered and rng.random() >= 0.12 * noise:
        return "choose", {"value": offered[0]}
    return "buy", {}


def _passed_over(value: str, shop: Shop, goal: Goal) -> bool:
    """Return whether an option after `value` is chosen already: then `value` was refused before."""
    wanted = list(goal.options.values())
    later = wanted[wanted.index(value) + 1 :]
    return any(other in shop._chosen.values() for other in later)


def _turns_away(wrong: bool, absent: bool, committed: bool, refused: bool, rng: random.Random, noise: float) -> bool:
    """Return whether the careless customer leaves a product that does not fit."""
    if refused:  # told so in words: hard to overlook
        return rng.random() >= 0.4 * noise
    if committed:
        return (wrong or absent) and rng.random() < NOTICE
    return (wrong and rng.random() >= noise) or (absent and rng.random() >= noise)
