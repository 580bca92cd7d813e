"""Records of the embedded shop: products, users and orders, drawn from one seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

SEED = 7
USERS = 240


def _words(text: str) -> list[str]:
    return text.split()


_FIRST = _words("Alma Ben Cleo Dara Egon Fay Gus Hana Ivo June Kai Lena Milo Nora Otto Pia Rolf Sara Theo Uma")
_LAST = _words(
    "Ames Birk Cole Dorn Ellis Frey Gale Hart Ivers Jost Kerr Lowe Marsh Nash Orr Penn Quade Rhys Stone Tate"
)
_STREETS = _words("Birch Cedar Elm Harbour Lake Maple Mill Oak Pine River")
_CITIES = (
    ("Aldham", "NY", "10"),
    ("Brook", "TX", "75"),
    ("Carver", "CA", "90"),
    ("Dalton", "IL", "60"),
    ("Easton", "WA", "98"),
)
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


def products() -> Mapping[str, Any]:
    """Return the shop's products."""
    products: Mapping[str, Any] = database()["products"]
    return products


def _product(name: str, numbers: Iterator[int], rng: random.Random) -> tuple[str, dict[str, Any]]:
    (one, ones), (two, twos), low, high = _PRODUCTS[name]
    key, variants = f"{next(numbers)}", {}
    for first, second in itertools.product(ones, twos):
        item = f"{next(numbers)}"
        price, options = round(rng.uniform(low, high), 2), {one: first, two: second}
        variants[item] = {"item_id": item, "options": options, "available": rng.random() < 0.8, "price": price}
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
        "address": drawn_address(rng),
        "email": f"{first.lower()}.{last.lower()}{number % 1000}@example.com",
        "payment_methods": methods,
        "orders": [],
    }


def _order(
    user: Mapping[str, Any], products: Mapping[str, Any], numbers: Iterator[int], rng: random.Random
) -> dict[str, Any]:
    items = []
    for key in rng.sample(sorted(products), rng.randint(1, 3)):
        variant = rng.choice(sorted(products[key]["variants"].values(), key=lambda v: v["item_id"]))
        about = {k: variant[k] for k in ("item_id", "price", "options")}
        items.append({"name": products[key]["name"], "product_id": key, **about})
    status = rng.choice(("pending", "pending", "delivered", "delivered", "processed"))
    sent = []
    if status != "pending":
        sent = [{"tracking_id": [f"{next(numbers)}{next(numbers)}"], "item_ids": [item["item_id"] for item in items]}]
    paid = {"transaction_type": "payment", "amount": round(sum(i["price"] for i in items), 2),
            "payment_method_id": rng.choice(sorted(user["payment_methods"]))}  # fmt: skip
    return {
        "order_id": f"#W{next(numbers)}", "user_id": user["user_id"], "address": dict(user["address"]), "items": items,
        "status": status, "fulfillments": sent, "payment_history": [paid],
    }  # fmt: skip


def drawn_address(rng: random.Random) -> dict[str, str]:
    """Return an address drawn at random."""
    city, state, zips = rng.choice(_CITIES)
    return {
        "address1": f"{rng.randint(1, 999)} {rng.choice(_STREETS)} Street", "address2": f"Suite {rng.randint(1, 99)}",
        "city": city, "country": "USA", "state": state, "zip": f"{zips}{rng.randint(0, 999):03d}",
    }  # fmt: skip
