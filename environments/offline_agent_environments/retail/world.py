"""Requests of the embedded shop's customers, and its written policy."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from offline_agent.seeding import derive_seed
from offline_agent_environments.retail.shop import SEED, database, drawn_address, products

POLICY = """# Policy

1. Find out first who the customer is: look the user up by email, or by name and zip code. Speak about no other
   user's data.
2. Before you change anything, name the order and everything that will be changed, and ask for a yes. Call the tool
   only after the yes.
3. Only pending orders can be cancelled, and only because they are "no longer needed" or were "ordered by mistake".
   Refuse to cancel for any other reason.
4. Items of pending orders can be changed to available items of the same product with other options, once for an
   order. Their address and payment method can be changed, too.
5. Items of delivered orders can be returned: the refund goes to the order's payment method or to a gift card of the
   user. They can be exchanged for available items of the same product with other options.
6. A gift card has to hold what it is to pay. Processed orders cannot be changed at all.
7. Answer questions from what the tools show, with the exact figure.
8. Refuse what this policy does not allow, and go on with the customer's other requests. Ask in the end whether there is
   anything else."""

_REASONS = {"no longer needed": "I no longer need it.", "ordered by mistake": "I ordered it by mistake."}
_WRONG_REASONS = ("I found it cheaper elsewhere.", "The colour is not to my taste.", "A friend gives me his.")

_WRITES = (
    "cancel_pending_order", "exchange_delivered_order_items", "modify_pending_order_items",
    "return_delivered_order_items", "modify_pending_order_address", "modify_user_address",
    "modify_pending_order_payment",
)  # fmt: skip


def split_of(user_id: str) -> str:
    """Return the split to which all tasks of a user belong."""
    lot = derive_seed(SEED, "retail split", user_id) % 8
    return "validation" if lot == 0 else "test" if lot == 1 else "train"


def tasks(split: str) -> Iterator[dict[str, Any]]:
    """Yield the tasks of a split as `reset`'s arguments: one and two requests of each of its users.

    The first ones need different tools, those of another split others.
    """
    return iter(_listed()[split])


@cache
def _listed() -> dict[str, tuple[dict[str, Any], ...]]:
    found: dict[str, list[dict[str, Any]]] = {"train": [], "validation": [], "test": []}
    for turn in range(3):
        for user_id in database()["users"]:
            task = _task(user_id, turn)
            if task is not None:
                found[split_of(user_id)].append({"task_id": f"{user_id}-{turn}", **task})
    return {split: tuple(_varied(listed, 2 * place)) for place, (split, listed) in enumerate(found.items())}


def _varied(listed: list[dict[str, Any]], start: int) -> Iterator[dict[str, Any]]:
    """Yield the tasks, first one for each pair of tools, from the tool at `start` on."""
    left = {task["task_id"]: task for task in listed}
    for place in range(0, len(_WRITES), 2):
        pair = {_WRITES[(start + place) % len(_WRITES)], _WRITES[(start + place + 1) % len(_WRITES)]}
        best = max(left.values(), key=lambda task: (len(pair & _tools(task)), "email" in task["scenario"]["find"]))
        yield left.pop(best["task_id"])
    yield from left.values()


def _tools(task: Mapping[str, Any]) -> set[str]:
    return {str(action["name"]) for action in task["actions"]}


def _task(user_id: str, turn: int) -> dict[str, Any] | None:
    data = database()
    user = data["users"][user_id]
    rng = random.Random(derive_seed(SEED, "retail task", user_id, turn))
    orders = [data["orders"][name] for name in user["orders"]]
    rng.shuffle(orders)
    requests: list[dict[str, Any]] = []
    for order in orders:
        made = _request(order, user, rng)
        if made is not None and len(requests) < (1 if turn == 0 else 2):
            requests.append(made)
    if not requests:
        return None
    if turn == 1 and rng.random() < 0.25:
        requests[-1] = _move(user, rng)
    if turn == 2 and len(requests) == 2:
        refused = _refused(orders, [request.get("order") for request in requests[1:]], rng)
        requests = [refused, requests[1]] if refused is not None else requests
    actions = [request["call"] for request in requests if "call" in request]
    facts = [request["fact"] for request in requests if "fact" in request]
    name = f"{user['name']['first_name']} {user['name']['last_name']}"
    email = rng.random() < 0.5
    known = f"my email is {user['email']}" if email else f"my zip code is {user['address']['zip']}"
    scenario = {
        "identity": f"I am {name}, and {known}.",
        "user_id": user_id,
        "find": {"email": user["email"]} if email else {**user["name"], "zip": user["address"]["zip"]},
        "requests": requests,
    }
    return {"scenario": scenario, "actions": actions, "communicate": facts}


def _request(order: Mapping[str, Any], user: Mapping[str, Any], rng: random.Random) -> dict[str, Any] | None:
    """Return a request about an order; None where nothing can be asked for."""
    if order["status"] == "processed":
        tracking = order["fulfillments"][0]["tracking_id"][0]
        return _wish("track", order, "What is the tracking number of an order of mine?", {}, fact=tracking)
    kinds = {"pending": (_cancel, _change_items, _change_address, _change_payment, _total),
             "delivered": (_return, _exchange, _exchange, _total)}[order["status"]]  # fmt: skip
    for make in rng.sample(kinds, len(kinds)):
        made = make(order, user, rng)
        if made is not None:
            return made
    return None


def _wish(
    kind: str,
    order: Mapping[str, Any],
    wish: str,
    tells: Mapping[str, str],
    call: Mapping[str, Any] | None = None,
    needs: tuple[str, ...] = (),
    fact: str | None = None,
) -> dict[str, Any]:
    made: dict[str, Any] = {"kind": kind, "order": order["order_id"], "wish": wish}
    made["tells"] = {"order": f"It is order {order['order_id']}.", **tells}
    made["needs"] = [order["order_id"], *needs]
    if call is not None:
        made["call"] = {"name": call["name"], "arguments": {"order_id": order["order_id"], **call["arguments"]}}
    if fact is not None:
        made["fact"] = fact
    return made


def _cancel(order: Mapping[str, Any], user: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    reason = rng.choice(sorted(_REASONS))
    call = {"name": "cancel_pending_order", "arguments": {"reason": reason}}
    return _wish("cancel", order, "I want to cancel an order.", {"reason": _REASONS[reason]}, call, (reason,))


def _refused(orders: list[Mapping[str, Any]], others: list[str | None], rng: random.Random) -> dict[str, Any] | None:
    """Return a request to cancel for a reason that the policy does not allow."""
    for order in orders:
        if order["status"] == "pending" and order["order_id"] not in others:
            return _wish("refuse", order, "I want to cancel an order.", {"reason": rng.choice(_WRONG_REASONS)})
    return None


def _total(order: Mapping[str, Any], user: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    paid = f"{order['payment_history'][0]['amount']:.2f}"
    return _wish("total", order, "How much did I pay for an order of mine?", {}, fact=paid)


def _change_address(order: Mapping[str, Any], user: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    address = drawn_address(rng)
    call = {"name": "modify_pending_order_address", "arguments": address}
    told = f"Send it to {_in_words(address)}."
    wish = "An order of mine has to go to another address."
    return _wish("address", order, wish, {"address": told}, call, (address["address1"], address["zip"]))


def _move(user: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return a request that is about no order."""
    address = drawn_address(rng)
    call = {"name": "modify_user_address", "arguments": {"user_id": user["user_id"], **address}}
    return {
        "kind": "move",
        "wish": "I have moved; please change my default address.",
        "tells": {"address": f"It is {_in_words(address)}."},
        "needs": [address["address1"], address["zip"]],
        "call": call,
    }


def _in_words(address: Mapping[str, str]) -> str:
    parts = (address["address1"], address["address2"], address["city"], f"{address['state']} {address['zip']}")
    return ", ".join((*parts, address["country"]))


def _change_payment(order: Mapping[str, Any], user: Mapping[str, Any], rng: random.Random) -> dict[str, Any] | None:
    paid = order["payment_history"][0]
    method = _payer(user, paid["amount"], rng, without=paid["payment_method_id"])
    if method is None:
        return None
    call = {"name": "modify_pending_order_payment", "arguments": {"payment_method_id": method}}
    wish = "I want to pay an order in another way."
    return _wish("payment", order, wish, {"payment": f"With {method}."}, call, (method,))


def _return(order: Mapping[str, Any], user: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    items = rng.sample(order["items"], rng.randint(1, len(order["items"])))
    ids, method = [item["item_id"] for item in items], order["payment_history"][0]["payment_method_id"]
    call = {"name": "return_delivered_order_items", "arguments": {"item_ids": ids, "payment_method_id": method}}
    tells = {"item": f"I want to send back the {_and([_named(item) for item in items])}.",
             "payment": f"The refund should go to {method}."}  # fmt: skip
    return _wish("return", order, "I want to return something.", tells, call, (*ids, method))


def _exchange(order: Mapping[str, Any], user: Mapping[str, Any], rng: random.Random) -> dict[str, Any] | None:
    return _other_items("exchange_delivered_order_items", "I want to exchange something.", order, user, rng)


def _change_items(order: Mapping[str, Any], user: Mapping[str, Any], rng: random.Random) -> dict[str, Any] | None:
    return _other_items("modify_pending_order_items", "I want something else in an order.", order, user, rng)


def _other_items(
    tool: str, wish: str, order: Mapping[str, Any], user: Mapping[str, Any], rng: random.Random
) -> dict[str, Any] | None:
    item = rng.choice(order["items"])
    variants = products()[item["product_id"]]["variants"]
    others = [v for v in variants.values() if v["available"] and v["item_id"] != item["item_id"]]
    if not others:
        return None
    new = rng.choice(others)
    method = _payer(user, round(new["price"] - item["price"], 2), rng)
    if method is None:
        return None
    arguments = {"item_ids": [item["item_id"]], "new_item_ids": [new["item_id"]], "payment_method_id": method}
    tells = {"item": f"Instead of the {_named(item)} I want the one with {_options(new['options'])}.",
             "payment": f"Use {method} for the difference."}  # fmt: skip
    made = _wish("items", order, wish, tells, {"name": tool, "arguments": arguments}, (new["item_id"], method))
    return {**made, "product": item["product_id"]}


def _payer(user: Mapping[str, Any], amount: float, rng: random.Random, without: str = "") -> str | None:
    able = [key for key, method in user["payment_methods"].items()
            if key != without and (method["source"] != "gift_card" or method["balance"] >= amount)]  # fmt: skip
    return rng.choice(sorted(able)) if able else None


def _named(item: Mapping[str, Any]) -> str:
    return f"{item['name']} ({_options(item['options'])})"


def _options(options: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items())


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
