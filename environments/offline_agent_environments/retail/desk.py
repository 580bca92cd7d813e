"""The desk: a conversation with a customer, tools that look things up, snapshots, and the verdict.

Tools read records with `_record` and change the copies that `_edit` gives; the changes are kept apart from the
database, so that a snapshot copies nothing.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from offline_agent.envs.base import Environment, ToolError, twin
from offline_agent.judges.verifiers import goal_state
from offline_agent.records import Verdict
from offline_agent_environments.retail import world
from offline_agent_environments.retail.shop import database
from offline_agent_environments.retail.users import call_of, make_user, without_none

_OPERATORS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def evaluate(expression: str) -> float:
    """Return the value of sums, differences, products and quotients of numbers.

    Raises:
        ValueError: It is something else, or cannot be computed.
    """
    if len(expression) > 500:
        raise ValueError("the expression is longer than 500 characters")
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError, ZeroDivisionError, OverflowError) as error:
        raise ValueError(f"cannot compute {expression[:80]!r}: {type(error).__name__}") from error


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError("allowed: numbers, + - * / and brackets")


Changes = Mapping[tuple[str, str], Any]


class Desk(Environment):
    """A conversation about records of the shop; see the module, and `env.Retail` for the arguments."""

    one_thread = False
    hindsight = "what a conversation changed in the database is no request that a user has made"

    def __init__(self, user: str = "scripted", user_model: str = "default") -> None:
        self._speaker = make_user(user, user_model)
        self._user: Any = None

    @classmethod
    def tasks(cls, split: str) -> Iterator[dict[str, Any]]:
        """Yield the tasks of a split."""
        return world.tasks(split)

    def reset(
        self,
        scenario: Mapping[str, Any],
        actions: Sequence[Mapping[str, Any]],
        communicate: Sequence[str] = (),
        **_: Any,
    ) -> str:
        """Begin a conversation and return the user's first words.

        Args:
            scenario: Who the user is and what they want; see `users`.
            actions: Calls that lead to the goal state: `name` and `arguments`.
            communicate: What has to be said to the user.
            **_: Other columns of a data set. Not used.
        """
        self._base = database()
        self._actions = [call_of(action) for action in actions]
        self._communicate = tuple(communicate)
        self._key = json.dumps(self._actions, sort_keys=True)
        self._changes: Changes = {}
        self._said: tuple[str, ...] = ()
        self._user = self._speaker(without_none(scenario))
        self.terminated = False
        return self._user.open()

    def get_reward(self) -> Verdict:
        """Return 1 where the database is in the goal state and what has to be said was said, else 0."""
        if self._user is None:
            raise RuntimeError(f"{type(self).__name__}: get_reward before reset")
        goal, refused = _goal(self, self._key)
        verdict = goal_state(_tree(self._changes, self._base), _tree(goal, self._base))
        heard = " ".join(self._said).lower().replace(",", "")
        unsaid = [fact for fact in self._communicate if fact.lower().replace(",", "") not in heard]
        evidence: dict[str, Any] = {"database": verdict.success, "unsaid": unsaid}
        if not verdict.success:
            evidence["differences"] = dict(verdict.evidence)
        if refused:
            evidence["gold_refused"] = refused
        if verdict.score is None:
            return Verdict(None, None, "service.goal", self.version, evidence, verdict.error)
        success = bool(verdict.success) and not unsaid
        return Verdict(float(success), success, "service.goal", self.version, evidence)

    @property
    def fingerprint(self) -> str:
        """A hash of the changes, of what was said, and of the user's state."""
        changes = sorted((list(key), record) for key, record in self._changes.items())
        state = json.dumps([changes, self._said, self._user.state(), self.terminated], sort_keys=True, default=str)
        return hashlib.blake2b(state.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    def __deepcopy__(self, memo: dict[int, Any]) -> Desk:
        other = twin(self)  # changes are replaced, never changed in place
        other._user = copy.copy(self._user)
        return other

    def _reply(self, text: str) -> str | None:
        """Tell the user; return what they answer, or None where they go."""
        self._said = (*self._said, text)
        answer = self._user.reply(text)
        if answer is None:
            self.terminated = True
        return answer

    def find_user_id_by_email(self, email: str) -> str:
        """Find a user by email address.

        Args:
            email: The address, such as "ada.berg12@example.com".
        """
        for key in self._base["users"]:
            if str(self._record("users", key)["email"]).lower() == email.strip().lower():
                return str(key)
        raise ToolError("there is no user with this email")

    def find_user_id_by_name_zip(self, first_name: str, last_name: str, zip: str) -> str:
        """Find a user by name and zip code.

        Args:
            first_name: The first name.
            last_name: The last name.
            zip: The zip code of the user's address.
        """
        wanted = (first_name.strip().lower(), last_name.strip().lower(), zip.strip())
        for key in self._base["users"]:
            user = self._record("users", key)
            name = user["name"]
            if (name["first_name"].lower(), name["last_name"].lower(), user["address"]["zip"]) == wanted:
                return str(key)
        raise ToolError("there is no user with this name and zip code")

    def get_user_details(self, user_id: str) -> str:
        """Show a user's profile: name, address, email, payment methods and orders.

        Args:
            user_id: The user's id.
        """
        return json.dumps(self._record("users", user_id))

    def get_order_details(self, order_id: str) -> str:
        """Show an order: its status, items, address and payments.

        Args:
            order_id: The order's id, such as "#W0000000".
        """
        return json.dumps(self._record("orders", order_id))

    def get_product_details(self, product_id: str) -> str:
        """Show a type of product with its items: their options, prices and whether they are available.

        Args:
            product_id: The product's id, which is no item's id.
        """
        return json.dumps(self._record("products", product_id))

    def get_item_details(self, item_id: str) -> str:
        """Show an item: its options, its price and whether it is available.

        Args:
            item_id: The item's id.
        """
        return json.dumps(self._variant(item_id)[1])

    def list_all_product_types(self) -> str:
        """List the names and ids of all types of products."""
        products = self._base["products"]
        return json.dumps({product["name"]: key for key, product in sorted(products.items(), key=_by_name)})

    def calculate(self, expression: str) -> str:
        """Compute an expression.

        Args:
            expression: Numbers with + - * / and brackets, such as "12.5 + 3 * 4".
        """
        return f"{round(evaluate(expression), 2)}"

    def transfer_to_human_agents(self, summary: str) -> str:
        """Hand the user over to a human; only where nothing else is allowed by the policy.

        Args:
            summary: What the user wants.
        """
        return "Transfer successful"

    def _record(self, table: str, key: str) -> Mapping[str, Any]:
        """Return a record as it is now, to be read only.

        Raises:
            ToolError: There is none.
        """
        found = self._changes.get((table, key))
        if found is None:
            found = self._base[table].get(key)
        if found is None:
            raise ToolError(f"there is no {key[:60]!r} among the {table}")
        return found  # type: ignore[no-any-return]

    def _edit(self, table: str, key: str) -> dict[str, Any]:
        """Return a copy of a record that stands for it from now on; check everything before it is taken."""
        record: dict[str, Any] = copy.deepcopy(dict(self._record(table, key)))
        self._changes = {**self._changes, (table, key): record}
        return record

    def _variant(self, item_id: str) -> tuple[str, Mapping[str, Any]]:
        """Return an item's product and its entry there."""
        for key, product in self._base["products"].items():
            if item_id in product["variants"]:
                return str(key), product["variants"][item_id]
        raise ToolError(f"there is no item {item_id[:40]!r}")


def _goal(desk: Desk, key: str) -> tuple[Changes, list[str]]:
    """Return the changes of the goal actions, and those of them that the tools refuse."""
    if key not in _goals:
        if len(_goals) > 4096:
            _goals.clear()
        fresh = twin(desk)
        fresh._changes, fresh.terminated = {}, False
        refused = []
        for call in desk._actions:
            try:
                getattr(fresh, call["name"])(**call["arguments"])
            except (ToolError, ValueError, TypeError, LookupError, AttributeError) as error:
                refused.append(f"{call['name']}: {error}")
        _goals[key] = fresh._changes, refused
    return _goals[key]


_goals: dict[str, tuple[Changes, list[str]]] = {}


def _tree(changes: Changes, base: Mapping[str, Any]) -> dict[str, Any]:
    """Return what differs from the database: table → key → record."""
    tree: dict[str, Any] = {}
    for (table, key), record in changes.items():
        if record != base[table].get(key):
            tree.setdefault(table, {})[key] = record
    return tree


def _by_name(entry: tuple[str, Mapping[str, Any]]) -> str:
    return str(entry[1]["name"])
