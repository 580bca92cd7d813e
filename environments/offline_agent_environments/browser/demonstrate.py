"""Scripted experts of the pages: what they do next follows from what was asked for and from the page's text alone."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

from offline_agent.envs.shop import Shop
from offline_agent.envs.shop import demonstrate as customer
from offline_agent.envs.shop.goals import Goal
from offline_agent.records import Message, call_message
from offline_agent_environments.browser import demonstrate_miniwob
from offline_agent_environments.browser.view import Call, View, careless, click


def _next_in_shop(goal: Mapping[str, Any], views: Sequence[View], rng: random.Random, noise: float) -> Call | None:
    """Return the next call: what the shop's own customer would do in the same place; None where nothing is left.

    Args:
        goal: The task of `Shop.reset`.
        views: The pages so far, the present one last.
        rng: See `offline_agent.envs.shop.demonstrate.next_turn`.
        noise: See there.
    """
    here = views[-1]
    shop = _stand_in(goal, views)
    decision = customer.decide(shop, "error" if here.refused else "", rng, noise)
    if decision is None:
        return None
    name, arguments = decision
    if name == "search":
        field = here.find("textbox", "Search")
        if field is None:  # a page without the form
            return "goto", {"address": "/"}
        if field.value == arguments["query"] and here.address != "/":
            return click(here.find("button", "Search"))
        return "type", {"element": field.number, "text": arguments["query"] + "\n"}
    if name == "open":
        places = [e for e in here.all("link") if "$" in e.text]
        return click(places[arguments["rank"] - 1]) if arguments["rank"] <= len(places) else None
    if name == "choose":
        return _choose(here, Goal.from_task(goal), arguments["value"])
    if name == "back" and here.find("link", "Back to results") is None:  # it came by address
        return "goto", {"address": "/"}
    told = {"next": "Next page", "previous": "Previous page", "back": "Back to results"}
    return click(here.find("button", "Buy") if name == "buy" else here.find("link", told[name]))


def _choose(here: View, goal: Goal, value: str) -> Call | None:
    lists = here.all("select")
    option = next((name for name, wanted in goal.options.items() if wanted == value), None)
    found = next((e for e in lists if value in e.options), None) or next((e for e in lists if e.text == option), None)
    return None if not lists else ("select", {"element": (found or lists[0]).number, "option": value})


def _stand_in(goal: Mapping[str, Any], views: Sequence[View]) -> Shop:
    """Return the shop in the state that the pages show."""
    shop = Shop()
    shop.reset(**goal)
    before = ""
    for view in views:
        number = _product(view.address)
        opened = view.call is None or view.call[0] in ("click", "goto")
        if number is not None and opened and not view.refused and view.address != before:
            shop._seen += (number,)
        before = view.address
    here = views[-1]
    asked = {name: values[0] for name, values in parse_qs(urlsplit(here.address).query).items()}
    shop._hits = shop._shop.search(asked.get("q", ""))
    page = asked.get("page", "1")
    shop._page = min(max(int(page) if page.isdecimal() else 1, 1), max(shop._pages(), 1)) - 1
    number = _product(here.address)
    if number is not None:
        shop._item = shop._shop.products[number]
        shop._chosen = {e.text: e.value for e in here.all("select") if e.value}
    return shop


def _product(address: str) -> int | None:
    path = urlsplit(address).path
    number = path.removeprefix("/product/")
    return int(number) if path.startswith("/product/") and number.isdecimal() else None


def next_turn(task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float) -> Message:
    """Return the next assistant message.

    Args:
        task: `reset`'s arguments.
        messages: The conversation so far.
        rng: The source of its carelessness.
        noise: Probability, in [0, 1], of a careless call on a MiniWoB page; the carelessness of the shop's customer.
    """
    views = View.of(messages)
    if task["suite"] == "shop":
        call = _next_in_shop(task["goal"], views, rng, noise)
    elif noise > 0 and rng.random() < noise:
        call = careless(views[-1], rng)
    else:
        call = demonstrate_miniwob.decide(task["level"], views[-1])
    if call is None:
        return {"role": "assistant", "content": "I give up."}
    return call_message(*call)
