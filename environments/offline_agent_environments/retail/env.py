"""The environment: a shop's service desk, whose customers want orders and addresses changed."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from offline_agent.envs.base import ToolError
from offline_agent.records import Message
from offline_agent_environments.retail import demonstrate as expert
from offline_agent_environments.retail import world
from offline_agent_environments.retail.desk import Desk

_INSTRUCTIONS = (
    "You work at the service desk of a shop. Speak to the customer by answering without a call; look things up and"
    " change them with calls, one at a time. Follow the policy."
)


class Retail(Desk):
    """Requests of a shop's customers: cancel, change, return, exchange, or tell them something (tau-bench's kind).

    Success: the database is in the state that the right calls lead to, and the customer was told what they asked for.

    Args:
        user: Who plays the customer: `scripted`, the URL of an OpenAI-compatible server, or `module:callable`.
        user_model: The server's model.
    """

    name = "retail"
    system_prompt = f"{_INSTRUCTIONS}\n\n{world.POLICY}"
    max_steps = 40

    @classmethod
    def demonstrate(
        cls, task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float
    ) -> Message:
        """Return the scripted agent's next turn; see `demonstrate.next_turn`."""
        return expert.next_turn(task, messages, rng, noise)

    def cancel_pending_order(self, order_id: str, reason: str) -> str:
        """Cancel a pending order and refund it. The user must have confirmed.

        Args:
            order_id: The order's id.
            reason: One of "no longer needed", "ordered by mistake".
        """
        order = self._order(order_id, "pending")
        if reason not in ("no longer needed", "ordered by mistake"):
            raise ToolError(f"reason: got {reason[:60]!r}, allowed: 'no longer needed' or 'ordered by mistake'")
        refunds = []
        for payment in order["payment_history"]:
            method, amount = payment["payment_method_id"], payment["amount"]
            refunds.append({"transaction_type": "refund", "amount": amount, "payment_method_id": method})
        changed = self._edit("orders", order_id)
        changed["status"], changed["cancel_reason"] = "cancelled", reason
        changed["payment_history"] += refunds
        for refund in refunds:
            self._add_balance(order["user_id"], refund["payment_method_id"], refund["amount"])
        return json.dumps(changed)

    def return_delivered_order_items(self, order_id: str, item_ids: list[str], payment_method_id: str) -> str:
        """Return items of a delivered order. The user must have confirmed.

        Args:
            order_id: The order's id.
            item_ids: The items' ids; an id twice for two of them.
            payment_method_id: Where the refund goes: the order's payment method, or a gift card of the user.
        """
        order = self._order(order_id, "delivered")
        method = self._method(order["user_id"], payment_method_id)
        if method["source"] != "gift_card" and payment_method_id != order["payment_history"][0]["payment_method_id"]:
            raise ToolError("payment_method_id: allowed: the order's own payment method, or a gift card")
        self._items(order, item_ids)
        changed = self._edit("orders", order_id)
        changed["status"], changed["return_items"] = "return requested", sorted(item_ids)
        changed["return_payment_method_id"] = payment_method_id
        return json.dumps(changed)

    def exchange_delivered_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> str:
        """Exchange items of a delivered order for others of the same product. The user must have confirmed.

        Args:
            order_id: The order's id.
            item_ids: The ids of the items that go back.
            new_item_ids: The ids of the new items, in the same order.
            payment_method_id: What pays, or is paid, the difference.
        """
        order = self._order(order_id, "delivered")
        _, difference = self._replacements(order, item_ids, new_item_ids)
        self._can_pay(order["user_id"], payment_method_id, difference)
        changed = self._edit("orders", order_id)
        changed["status"] = "exchange requested"
        changed["exchange_items"], changed["exchange_new_items"] = sorted(item_ids), sorted(new_item_ids)
        changed["exchange_payment_method_id"], changed["exchange_price_difference"] = payment_method_id, difference
        return json.dumps(changed)

    def modify_pending_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> str:
        """Change items of a pending order to others of the same product, once. The user must have confirmed.

        Args:
            order_id: The order's id.
            item_ids: The ids of the items to be changed.
            new_item_ids: The ids of the new items, in the same order.
            payment_method_id: What pays, or is paid, the difference.
        """
        order = self._order(order_id, "pending")
        new, difference = self._replacements(order, item_ids, new_item_ids)
        self._can_pay(order["user_id"], payment_method_id, difference)
        changed = self._edit("orders", order_id)
        kind = "payment" if difference > 0 else "refund"
        changed["payment_history"].append(
            {"transaction_type": kind, "amount": abs(difference), "payment_method_id": payment_method_id}
        )
        self._add_balance(order["user_id"], payment_method_id, -difference)
        for item_id, variant in zip(item_ids, new, strict=True):
            item = next(item for item in changed["items"] if item["item_id"] == item_id)
            item.update({name: variant[name] for name in ("item_id", "price", "options")})
        changed["status"] = "pending (item modified)"
        return json.dumps(changed)

    def modify_pending_order_address(
        self, order_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> str:
        """Change the address of a pending order. The user must have confirmed.

        Args:
            order_id: The order's id.
            address1: Street and number.
            address2: The rest of it, such as "Suite 7"; may be empty.
            city: The city.
            state: The state.
            country: The country.
            zip: The zip code.
        """
        self._order(order_id, "pending", "pending (item modified)")
        changed = self._edit("orders", order_id)
        changed["address"] = _address(address1, address2, city, state, country, zip)
        return json.dumps(changed)

    def modify_pending_order_payment(self, order_id: str, payment_method_id: str) -> str:
        """Change how a pending order is paid. The user must have confirmed.

        Args:
            order_id: The order's id.
            payment_method_id: Another payment method of the user.
        """
        order = self._order(order_id, "pending", "pending (item modified)")
        payments = order["payment_history"]
        if len(payments) != 1 or payments[0]["transaction_type"] != "payment":
            raise ToolError("the order has more than one payment, and cannot be paid otherwise")
        old, amount = payments[0]["payment_method_id"], payments[0]["amount"]
        if payment_method_id == old:
            raise ToolError("payment_method_id: is the order's own payment method; allowed: another one")
        self._can_pay(order["user_id"], payment_method_id, amount)
        changed = self._edit("orders", order_id)
        changed["payment_history"] += [
            {"transaction_type": "payment", "amount": amount, "payment_method_id": payment_method_id},
            {"transaction_type": "refund", "amount": amount, "payment_method_id": old},
        ]
        self._add_balance(order["user_id"], payment_method_id, -amount)
        self._add_balance(order["user_id"], old, amount)
        return json.dumps(changed)

    def modify_user_address(
        self, user_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> str:
        """Change the default address of a user. The user must have confirmed.

        Args:
            user_id: The user's id.
            address1: Street and number.
            address2: The rest of it, such as "Suite 7"; may be empty.
            city: The city.
            state: The state.
            country: The country.
            zip: The zip code.
        """
        changed = self._edit("users", user_id)
        changed["address"] = _address(address1, address2, city, state, country, zip)
        return json.dumps(changed)

    def _order(self, order_id: str, *allowed: str) -> Mapping[str, Any]:
        order = self._record("orders", order_id)
        if order["status"] not in allowed:
            raise ToolError(f"the order is {order['status']}; allowed: {' or '.join(allowed)}")
        return order

    def _items(self, order: Mapping[str, Any], item_ids: Sequence[str]) -> list[Mapping[str, Any]]:
        """Return the order's items of these ids; raises ToolError where it has fewer of them."""
        if not item_ids:
            raise ToolError("item_ids: got none, allowed: one or more")
        found = {item["item_id"]: item for item in order["items"]}
        have = Counter(item["item_id"] for item in order["items"])
        for item_id, count in Counter(item_ids).items():
            if count > have[item_id]:
                raise ToolError(f"the order has {have[item_id]} of item {item_id[:40]!r}, not {count}")
        return [found[item_id] for item_id in item_ids]

    def _replacements(
        self, order: Mapping[str, Any], item_ids: Sequence[str], new_item_ids: Sequence[str]
    ) -> tuple[list[Mapping[str, Any]], float]:
        """Return the new items and what they cost more, in dollars; raises ToolError where they do not fit."""
        old = self._items(order, item_ids)
        if len(item_ids) != len(new_item_ids):
            raise ToolError(f"got {len(item_ids)} item_ids and {len(new_item_ids)} new_item_ids; allowed: as many")
        new = []
        for item, new_id in zip(old, new_item_ids, strict=True):
            product, variant = self._variant(new_id)
            if product != item["product_id"]:
                raise ToolError(f"item {new_id} is another product than item {item['item_id']}")
            if not variant["available"]:
                raise ToolError(f"item {new_id} is not available")
            new.append(variant)
        return new, round(sum(v["price"] for v in new) - sum(item["price"] for item in old), 2)

    def _method(self, user_id: str, method: str) -> Mapping[str, Any]:
        methods = self._record("users", user_id)["payment_methods"]
        if method not in methods:
            raise ToolError(f"the user has no payment method {method[:40]!r}; allowed: {', '.join(methods)}")
        return methods[method]  # type: ignore[no-any-return]

    def _can_pay(self, user_id: str, method: str, amount: float) -> None:
        found = self._method(user_id, method)
        if found["source"] == "gift_card" and found["balance"] < amount:
            raise ToolError(f"the gift card holds {found['balance']}, and {amount} are to be paid")

    def _add_balance(self, user_id: str, method: str, amount: float) -> None:
        """Pay to a gift card; other methods keep no balance."""
        if self._method(user_id, method)["source"] == "gift_card":
            card = self._edit("users", user_id)["payment_methods"][method]
            card["balance"] = round(card["balance"] + amount, 2)


def _address(address1: str, address2: str, city: str, state: str, country: str, zip: str) -> dict[str, str]:
    return {"address1": address1, "address2": address2, "city": city, "country": country, "state": state, "zip": zip}
