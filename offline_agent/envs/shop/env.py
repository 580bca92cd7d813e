"""The shop: WebShop's task (Yao et al. 2022) in pure Python. Find and buy the product that fits a request."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from offline_agent.envs.shop.catalogue import RESULTS_PER_PAGE, Catalogue, Product, catalogue
from offline_agent.envs.shop.demonstrate import next_turn
from offline_agent.envs.shop.goals import Goal, goals, reward, split_of
from offline_agent.errors import Refusal
from offline_agent.records import Message, Verdict


class Shop:
    """A shop with a search engine, result pages, product pages, options and one purchase.

    Result pages show one attribute of a product, its price, and whether it was opened before; its other attributes and
    its options are on its page, and sellers have words indexed that their products do not live up to: so one has to
    look, and to go back.
    """

    name = "shop"
    version = "2"
    system_prompt = "Buy what is asked for."
    page_size = RESULTS_PER_PAGE
    max_steps = 15
    one_thread = False  # nothing in it is bound to a thread; a search without a model is a fifth faster

    def __init__(self) -> None:
        self._shop: Catalogue = catalogue()
        self._goal: Goal | None = None
        self._clear()

    def _clear(self) -> None:
        self.terminated = False
        self._hits: tuple[int, ...] = ()
        self._page = 0
        self._item: Product | None = None
        self._chosen: dict[str, str] = {}
        self._bought: Product | None = None
        self._seen: tuple[int, ...] = ()

    @classmethod
    def tasks(cls, split: str) -> Iterator[dict[str, Any]]:
        """Yield the goals of `train`, `validation` or `test` as keyword arguments of `reset`; no goal is in two splits.

        Raises:
            ValueError: There is no such split.
        """
        return iter([goal.task() for goal in goals(split)])

    def reset(
        self,
        instruction: str,
        kind: str,
        attributes: Sequence[str],
        options: Mapping[str, str],
        max_price: int,
        **columns: Any,
    ) -> str:
        """Open the shop for a new customer.

        Args:
            instruction: The request in words; the first observation.
            kind: The product type asked for.
            attributes: What the product has to be.
            options: Option name → the value to choose.
            max_price: The highest price, in whole dollars.
            **columns: Other columns of a data set; TRL hands over the whole row. Not used.

        Returns:
            The request.
        """
        self._clear()
        task = {"kind": kind, "attributes": attributes, "options": options, "max_price": max_price}
        self._goal = Goal.from_task(task)
        return instruction

    def search(self, query: str) -> str:
        """Search the catalogue.

        Args:
            query: What to look for.

        Returns:
            The first page of results.
        """
        if self.terminated:
            return _CLOSED
        self._hits, self._page = self._shop.search(str(query)), 0
        self._item, self._chosen = None, {}
        return self._results()

    def open(self, rank: int) -> str:
        """Open a product of the result page.

        Args:
            rank: Its number on the page.

        Returns:
            The product's page.
        """
        if self.terminated:
            return _CLOSED
        if self._item is not None:
            return Refusal("error: go back first")
        shown = self._shown()
        if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= len(shown):
            allowed = f"1 to {len(shown)}" if shown else "nothing, search first"
            return Refusal(f"error: no such rank, allowed: {allowed}")
        self._item, self._chosen = self._shop.products[shown[rank - 1]], {}
        self._seen += (self._item.number,)
        return _product_page(self._item)

    def next(self) -> str:
        """Turn to the next page of results.

        Returns:
            The next page.
        """
        return self._turn(1)

    def previous(self) -> str:
        """Turn to the previous page of results.

        Returns:
            The previous page.
        """
        return self._turn(-1)

    def back(self) -> str:
        """Go back from a product to the results; its chosen options are forgotten.

        Returns:
            The page of results.
        """
        if self.terminated:
            return _CLOSED
        if self._item is None:
            return Refusal("error: no product is open")
        self._item, self._chosen = None, {}
        return self._results()

    def choose(self, value: str) -> str:
        """Choose an option of the open product.

        Args:
            value: One of the values that the product's page lists.

        Returns:
            What is chosen now.
        """
        if self.terminated:
            return _CLOSED
        if self._item is None:
            return Refusal("error: no product is open")
        name = self._item.option_of(str(value))
        if name is None:
            return Refusal("error: no such option")
        self._chosen[name] = str(value)
        return f"{name}: {value}"

    def buy(self) -> str:
        """Buy the open product with the chosen options; this ends the visit.

        Returns:
            A receipt.
        """
        if self.terminated:
            return _CLOSED
        if self._item is None:
            return Refusal("error: no product is open")
        self._bought, self.terminated = self._item, True
        return "bought"

    def get_reward(self) -> Verdict:
        """Return WebShop's reward for what was bought; nothing bought is worth 0. Success is a reward of 1.

        Raises:
            RuntimeError: The shop was never reset.
        """
        if self._goal is None:
            raise RuntimeError("shop: get_reward before reset")
        if self._bought is None:
            return Verdict(0.0, False, "shop", self.version, {"bought": None})
        score, evidence = reward(self._goal, self._bought, self._chosen)
        return Verdict(score, score == 1.0, "shop", self.version, evidence)

    @property
    def fingerprint(self) -> str:
        """A hash of all that later observations and the reward depend on."""
        item = None if self._item is None else self._item.number
        bought = None if self._bought is None else self._bought.number
        goal = None if self._goal is None else sorted(self._goal.task().items())
        seen = sorted(set(self._seen))
        state = (goal, self._hits, self._page, item, sorted(self._chosen.items()), seen, bought, self.terminated)
        return hashlib.blake2b(repr(state).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    @property
    def achieved_goal(self) -> dict[str, Any] | None:
        """The task, as `reset`'s keyword arguments, that what was bought fulfils exactly; None if nothing was bought.

        It asks for as many attributes as the original, for those of the original first, and stays in the original's
        split; None too where no such request exists.
        """
        if self._goal is None or self._bought is None:
            return None
        goal, item = self._goal, self._bought
        wanted = sorted(item.attributes, key=lambda word: word not in goal.attributes)
        split = split_of(goal.kind, goal.attributes)
        choices = combinations(wanted, min(len(goal.attributes), len(wanted)))
        attributes = next((words for words in choices if split_of(item.kind, words) == split), None)
        if attributes is None:
            return None
        limit = goal.max_price if item.price <= goal.max_price else -(-item.price // 10) * 10
        return Goal(item.kind, attributes, dict(self._chosen), limit).task()

    @classmethod
    def demonstrate(
        cls, task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float
    ) -> Message:
        """Return the scripted customer's next turn; see `offline_agent.envs.shop.demonstrate`."""
        return next_turn(cls(), task, messages, rng, noise)

    def __deepcopy__(self, memo: dict[int, Any]) -> Shop:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)  # everything but the chosen options is shared or immutable
        other._chosen = dict(self._chosen)
        return other

    def _turn(self, pages: int) -> str:
        if self.terminated:
            return _CLOSED
        if self._item is not None:
            return Refusal("error: go back first")
        if not self._hits:
            return Refusal("error: search first")
        if not 0 <= self._page + pages < self._pages():
            return Refusal("error: no such page")
        self._page += pages
        return self._results()

    def _pages(self) -> int:
        return -(-len(self._hits) // RESULTS_PER_PAGE)

    def _shown(self) -> tuple[int, ...]:
        return self._hits[self._page * RESULTS_PER_PAGE : (self._page + 1) * RESULTS_PER_PAGE]

    def _results(self) -> str:
        if not self._hits:
            return "no results"
        items = [self._shop.products[number] for number in self._shown()]
        rows = [
            f"{rank} {item.title} ${item.price}{' seen' if item.number in self._seen else ''}"
            for rank, item in enumerate(items, 1)
        ]
        return "\n".join([f"page {self._page + 1}/{self._pages()}", *rows])


_CLOSED = Refusal("error: the visit is over")


def _product_page(item: Product) -> str:
    options = [f"{name}: {', '.join(values)}" for name, values in item.options.items()]
    return "\n".join([f"{item.title} ${item.price}", f"is: {', '.join(item.attributes)}", *options])
