"""Samples for the page: which items are shown, whole, within a number of bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True)
class Sample:
    """Items that were chosen.

    Attributes:
        items: What the page shows, in the order of choice; each is whole.
        total: Number of items there are.
        too_large: Number of items that were passed over because one alone has more than the bytes that are left.
        rule: One sentence that says how they were chosen.
    """

    items: tuple[Any, ...]
    total: int
    too_large: int
    rule: str

    @property
    def words(self) -> str:
        """The counts and the rule, for the page."""
        if len(self.items) == self.total:
            return f"All {self.total:,} are shown, each whole."
        passed = f" {self.too_large:,} did not fit and were passed over." if self.too_large else ""
        return f"{len(self.items):,} of {self.total:,} are shown, each whole; nothing is cut. {self.rule}{passed}"


def in_turn(groups: Mapping[str, Sequence[Item]]) -> Iterator[Item]:
    """Yield one item of each group in turn, so that a small group is not crowded out by a large one."""
    waiting = [iter(group) for group in groups.values()]
    while waiting:
        left = []
        for group in waiting:
            for item in group:
                yield item
                left.append(group)
                break
        waiting = left


def from_both_ends(items: Sequence[Item]) -> Iterator[Item]:
    """Yield the first item, the last, the second, the last but one, and so on."""
    for number in range(len(items)):
        yield items[-(number // 2 + 1) if number % 2 else number // 2]


def choose(
    order: Iterable[Item], total: int, most_bytes: int, make: Callable[[Item], tuple[Any, int] | None], rule: str
) -> Sample:
    """Return items in an order of preference while they fit.

    An item that does not fit is passed over, and the next is tried; after five in a row no more are tried.

    Args:
        order: The items, the first the most wanted.
        total: Number of items there are.
        most_bytes: Bytes that all of them may have.
        make: Returns what is shown of an item and its bytes; None where it cannot be shown.
        rule: One sentence that says how the order was made.
    """
    items: list[Any] = []
    left, passed, in_a_row = most_bytes, 0, 0
    for item in order:
        made = make(item)
        if made is None:
            continue
        shown, size = made
        if size > left:
            passed, in_a_row = passed + 1, in_a_row + 1
            if in_a_row == _IN_A_ROW:
                break
            continue
        in_a_row = 0
        items.append(shown)
        left -= size
    return Sample(tuple(items), total, passed, rule)


_IN_A_ROW = 5
