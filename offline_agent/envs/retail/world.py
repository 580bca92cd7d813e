"""Embedded shop: products, users and orders drawn from one seed, a written policy, and the requests of its customers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from offline_agent.seeding import derive_seed

SEED = 7
USERS = 240

POLICY = """# Policy

1. Find out first who the customer is: look the user up by email, or by name and zip code. Speak about this user's data only.
2. Before you change anything, name the order and everything that will be changed, and ask for a yes. Call the tool only
   after the yes.
3. Only pending orders can be cancelled, and only because they are "no longer needed" or were "ordered by mistake". Refuse
   to cancel for any other reason.
4. Items of pending orders can be changed to available items of the same product with other options, once for an order.
   Their address and payment method can be changed, too.
5. Items of delivered orders can be returned: the refund goes to the order's payment method or to a gift card of the
   user. They can be exchanged for available items of the same product with other options.
6. A gift card has to hold what it is to pay. Processed orders cannot be changed at all.
7. Answer questions from what the tools show, with the exact figure.
8. Refuse what this policy does not allow, and go on with the customer's other requests. Ask in the end whether there is
   anything else."""

_FIRST = "Alma Ben Cleo Dara Egon Fay Gus Hana Ivo June Kai Lena Milo Nora Otto Pia Rolf Sara Theo Uma".split()
_LAST = "Ames Birk Cole Dorn Ellis Frey Gale Hart Ivers Jost Kerr Lowe Marsh Nash Orr Penn Quade Rhys Stone Tate".split()
_STREETS = "Birch Cedar Elm Harbour Lake Maple Mill Oak Pine River".split()
_CITIES = (("Aldham", "NY", "10"), ("Brook", "TX", "75"), ("Carver", "CA", "90"), ("Dalton", "IL", "60"), ("Easton", "WA", "98"))
_PRODUCTS: dict[str, tuple[tuple[str, tuple[str, ...]], tuple[str, tuple[str, ...]], int, int]] = {
    "backpack": (("color", ("black", "green", "grey")), ("size", ("small", "medium", "large")), 30, 120),
    "bottle": (("color", ("blue", "red", "white")), ("capacity", ("500 ml", "750 ml", "1000 ml")), 10, 40),
    "desk lamp": (("color", ("black", "brass", "white")), ("brightness", ("low", "medium", "high")), 25, 150),
    "headphones": (("color", ("black", "silver", "blue")), ("connection", ("wired", "wireless")), 40, 300),
    "jacket": (("color", ("navy", "red", "olive")), ("size", ("S", "M", "L", "XL")), 60, 260),
    "keyboard": (("switches", ("clicky", "linear", "tactile")), ("backlight", ("none", "white", "RGB")), 50, 240),
    "notebook": (("cover", ("hard", "soft")), ("paper", ("lined", "plain", "dotted")), 5, 25),
    "running shoes": (("color", ("black", "white", "yellow")), ("size", ("8", "9", "10", "11")), 70, 180),
    "skateboard": (("deck", ("bamboo", "maple", "plastic")), ("length", ("28 inch", "31 inch", "34 inch")), 60, 220),
    "tent": (("persons", ("2", "4", "6")), ("color", ("green", "orange")), 120, 480),
    "vacuum": (("type", ("canister", "robot", "upright")), ("bag", ("bagged", "bagless")), 90, 500),
    "watch": (("strap", ("leather", "metal", "rubber")), ("dial", ("black", "blue", "white")), 60, 400),
}
_REASONS = {"no longer needed": "I no longer need it.", "ordered by mistake": "I ordered it by mistake."}
_WRONG_REASONS = ("I found it cheaper elsewhere.", "The colour is not to my taste.", "A friend gives me his.")

_WRITES = (
    "cancel_pending_order", "exchange_delivered_order_items", "modify_pending_order_items",
    "return_delivered_order_items", "modify_pending_order_address", "modify_user_address",
    "modify_pending_order_payment",
)  # fmt: skip


@cache
def database() -> Mapping[str, Any]:
    """Return the shop's users, products and orders; to be read only."""
    rng = random.Random(SEED)
    numbers = iter(rng.sample(range(1_000_000, 10_000_000), 9000))
    products = dict(_product(name, numbers, rng) for name in _PRODUCTS)
    users: dict[str, Any] = {}
    orders: dict[str, Any] = {}
    names = rng.sample(list(itertools.product(_FIRST, _LAST)), USERS)
    for first, last in names:
        user = _user(first, last, numbers, rng)
        users[user["user_id"]] = user
        for _ in range(rng.randint(2, 4)):
            order = _order(user, products, numbers, rng)
            orders[order["order_id"]] = order
            user["orders"].append(order["order_id"])
    return {"products": products, "users": users, "orders": orders}


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
    address = _address(rng)
    call = {"name": "modify_pending_order_address", "arguments": address}
    told = f"Send it to {_in_words(address)}."
    wish = "An order of mine has to go to another address."
    return _wish("address", order, wish, {"address": told}, call, (address["address1"], address["zip"]))


def _move(user: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return a request that is about no order."""
    address = _address(rng)
    call = {"name": "modify_user_address", "arguments": {"user_id": user["user_id"], **address}}
    return {
        "kind": "move", "wish": "I have moved; please change my default address.",
        "tells": {"address": f"It is {_in_words(address)}."}, "needs": [address["address1"], address["zip"]], "call": call,
    }  # fmt: skip


def _in_words(address: Mapping[str, str]) -> str:
    return ", ".join((address["address1"], address["address2"], address["city"], f"{address['state']} {address['zip']}", address["country"]))


def _change_payment(order: Mapping[str, Any], user: Mapping[str, Any], rng: random.Random) -> dict[str, Any] | None:
    paid = order["payment_history"][0]
    method = _payer(user, paid["amount"], rng, without=paid["payment_method_id"])
    if method is None:
        return None
    call = {"name": "modify_pending_order_payment", "arguments": {"payment_method_id": method}}
    return _wish("payment", order, "I want to pay an order in another way.", {"payment": f"With {method}."}, call, (method,))


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
    variants = database_products()[item["product_id"]]["variants"]
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


def database_products() -> Mapping[str, Any]:
    """Return the shop's products."""
    products: Mapping[str, Any] = database()["products"]
    return products


def _payer(user: Mapping[str, Any], amount: float, rng: random.Random, without: str = "") -> str | None:
    able = [key for key, method in user["payment_methods"].items()
            if key != without and (method["source"] != "gift_card" or method["balance"] >= amount)]  # fmt: skip
    return rng.choice(sorted(able)) if able else None


def _product(name: str, numbers: Iterator[int], rng: random.Random) -> tuple[str, dict[str, Any]]:
    (one, ones), (two, twos), low, high = _PRODUCTS[name]
    key, variants = f"{next(numbers)}", {}
    for first, second in itertools.product(ones, twos):
        item = f"{next(numbers)}"
        price = round(rng.uniform(low, high), 2)
        variants[item] = {"item_id": item, "options": {one: first, two: second}, "available": rng.random() < 0.8, "price": price}
    return key, {"name": name, "product_id": key, "variants": variants}


def _user(first: str, last: str, numbers: Iterator[int], rng: random.Random) -> dict[str, Any]:
    number = next(numbers)
    methods: dict[str, Any] = {}
    for source in rng.sample(("credit_card", "gift_card", "paypal"), rng.randint(1, 3)):
        key = f"{source}_{next(numbers)}"
        methods[key] = {"source": source, "id": key}
        if source == "gift_card":
            methods[key]["balance"] = round(rng.uniform(20, 500), 2)
    return {
        "user_id": f"{first.lower()}_{last.lower()}_{number % 10_000:04d}",
        "name": {"first_name": first, "last_name": last},
        "address": _address(rng),
        "email": f"{first.lower()}.{last.lower()}{number % 1000}@example.com",
        "payment_methods": methods,
        "orders": [],
    }


def _order(user: Mapping[str, Any], products: Mapping[str, Any], numbers: Iterator[int], rng: random.Random) -> dict[str, Any]:
    items = []
    for key in rng.sample(sorted(products), rng.randint(1, 3)):
        variant = rng.choice(sorted(products[key]["variants"].values(), key=lambda v: v["item_id"]))
        items.append({"name": products[key]["name"], "product_id": key, **{k: variant[k] for k in ("item_id", "price", "options")}})
    status = rng.choice(("pending", "pending", "delivered", "delivered", "processed"))
    sent = [] if status == "pending" else [{"tracking_id": [f"{next(numbers)}{next(numbers)}"], "item_ids": [i["item_id"] for i in items]}]
    paid = {"transaction_type": "payment", "amount": round(sum(i["price"] for i in items), 2),
            "payment_method_id": rng.choice(sorted(user["payment_methods"]))}  # fmt: skip
    return {
        "order_id": f"#W{next(numbers)}", "user_id": user["user_id"], "address": dict(user["address"]), "items": items,
        "status": status, "fulfillments": sent, "payment_history": [paid],
    }  # fmt: skip


def _address(rng: random.Random) -> dict[str, str]:
    city, state, zips = rng.choice(_CITIES)
    return {
        "address1": f"{rng.randint(1, 999)} {rng.choice(_STREETS)} Street", "address2": f"Suite {rng.randint(1, 99)}",
        "city": city, "country": "USA", "state": state, "zip": f"{zips}{rng.randint(0, 999):03d}",
    }  # fmt: skip


def _named(item: Mapping[str, Any]) -> str:
    return f"{item['name']} ({_options(item['options'])})"


def _options(options: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items())


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
