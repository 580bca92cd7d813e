"""Scripted agents of a service desk: one that follows the policy, and one that makes usual mistakes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from offline_agent.records import Message
from offline_agent_environments.retail import shop
from offline_agent_environments.retail.users import Turn, call_of, without_none

_ASKED = {
    "order": "Which order is it?",
    "item": "Which item do you mean, and which option would you like?",
    "reason": "What is the reason?",
    "payment": "Which payment method is to be used?",
    "address": "What is the new address?",
}
_ELSE = "Is there anything else?"


def next_turn(task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float) -> Message:
    """Return the next assistant message.

    Args:
        task: `reset`'s arguments.
        messages: The conversation so far.
        rng: The source of mistakes.
        noise: Probability, in [0, 1], of a mistake in a turn; some do harm, others cost a turn.
    """
    scenario = without_none(task["scenario"])
    plan = list(_plan(scenario))
    turn = plan[min(_position(plan, messages), len(plan) - 1)]
    return (_mistaken(turn, scenario, rng) if rng.random() < noise else turn).message()


def _plan(scenario: Mapping[str, Any]) -> Iterator[Turn]:
    """Yield the turns of an agent that follows the policy."""
    yield Turn(None, {}, "Please tell me your email, or your name and zip code.")
    find = scenario["find"]
    yield Turn("find_user_id_by_email" if "email" in find else "find_user_id_by_name_zip", find, "")
    yield Turn("get_user_details", {"user_id": scenario["user_id"]}, "")
    for number, request in enumerate(scenario["requests"], 1):
        yield Turn(None, {}, f"About request {number}: {' '.join(_ASKED[name] for name in request['tells'])}", request)
        if "order" in request:
            yield Turn("get_order_details", {"order_id": request["order"]}, "", request)
        if "product" in request:
            yield Turn("get_product_details", {"product_id": request["product"]}, "", request)
            yield Turn("get_item_details", {"item_id": request["call"]["arguments"]["new_item_ids"][0]}, "", request)
        if "call" in request:
            call = call_of(request["call"])
            told = ", ".join(f"{key} {_text(value)}" for key, value in call["arguments"].items())
            yield Turn(None, {}, f"Please confirm request {number} (yes/no): {call['name']} with {told}.", request)
            yield Turn(call["name"], call["arguments"], "", request)
            yield Turn(None, {}, f"Request {number} is done. {_ELSE}", request)
        elif "fact" in request:
            yield Turn(None, {}, f"The answer to request {number} is {request['fact']}. {_ELSE}", request)
        else:
            yield Turn(None, {}, f"I am sorry, request {number} is against our policy. {_ELSE}", request)


def _position(plan: Sequence[Turn], messages: Sequence[Message]) -> int:
    """Return how many planned turns the conversation has behind it; a call that was answered with an error has not."""
    at = 0
    for number, message in enumerate(messages):
        if message["role"] != "assistant" or at >= len(plan):
            continue
        turn, calls = plan[at], message.get("tool_calls")
        if calls:
            function = calls[0]["function"]
            answer = str(messages[number + 1].get("content", "")) if number + 1 < len(messages) else ""
            same = function["name"] == turn.name and _about(function["arguments"]) == _about(turn.arguments)
            at += same and not answer.startswith("Error")
        else:
            at += turn.name is None and _head(str(message.get("content", ""))) == _head(turn.words)
    return at


def _about(arguments: Mapping[str, Any]) -> Any:
    """Return what a call is about: a changed detail does not make it another step of the plan."""
    return arguments.get("order_id") or dict(arguments)


def _head(words: str) -> str:
    """Return the first words, up to the request's number."""
    return " ".join(words.split()[:4])


def _mistaken(turn: Turn, scenario: Mapping[str, Any], rng: random.Random) -> Turn:
    request = turn.request
    if turn.name is not None and request is not None and "call" in request and turn.name == request["call"]["name"]:
        return turn._replace(arguments=_wrong(turn.arguments, scenario, rng))
    if turn.name is None and request is not None and _ELSE in turn.words:
        if "fact" in request:
            return turn._replace(words=turn.words.replace(str(request["fact"]), "not known to me"))
        if request["kind"] == "refuse":
            return Turn("cancel_pending_order", {"order_id": request["order"], "reason": "no longer needed"}, "")
    if rng.random() < 0.3:
        return Turn(None, {}, "I cannot do that. You are being transferred to a human agent.")
    return Turn("list_all_product_types", {}, "")


def _wrong(arguments: Mapping[str, Any], scenario: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return a write's arguments with one of them changed."""
    changed = dict(arguments)
    if "reason" in changed:
        changed["reason"] = "ordered by mistake" if changed["reason"] == "no longer needed" else "no longer needed"
    elif "zip" in changed:
        changed["zip"] = changed["zip"][::-1]
    elif "new_item_ids" in changed:
        (old,) = changed["new_item_ids"]
        products = shop.products().values()
        variants: dict[str, Any] = next((p["variants"] for p in products if old in p["variants"]), {})
        others = sorted(
            key for key, one in variants.items() if one["available"] and key not in (old, *changed["item_ids"])
        )
        changed["new_item_ids"] = [rng.choice(others) if others else old]
    elif "item_ids" in changed and len(changed["item_ids"]) > 1:
        changed["item_ids"] = changed["item_ids"][1:]
    else:
        methods = shop.database()["users"].get(scenario.get("user_id"), {}).get("payment_methods", {})
        others = sorted(key for key in methods if key != changed.get("payment_method_id"))
        changed["payment_method_id"] = rng.choice(others) if others else "credit_card_0000000"
    return changed


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
