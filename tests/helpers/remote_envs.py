"""Environments for interpreters of their own; this file imports the standard library alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class Clashes:
    """Says which pydantic it has, which is not the one of this program."""

    @classmethod
    def tasks(cls, split: str) -> Iterator[dict[str, Any]]:
        import pydantic

        start = {"train": 0, "validation": 1000, "test": 2000}[split]
        return ({"number": start + n, "has": pydantic.VERSION} for n in range(250))

    def reset(self, number: int, has: str) -> str:
        import pydantic

        self.terminated = False
        return f"{number} {has} {pydantic.VERSION}"

    def stop(self) -> str:
        """End it."""
        self.terminated = True
        return "over"

    def get_reward(self) -> float:
        return float(self.terminated)


class Breaks:
    """Fails where its tasks are listed."""

    @classmethod
    def tasks(cls, split: str) -> Iterator[dict[str, Any]]:
        yield {"number": 1}
        raise ZeroDivisionError("no more")

    def reset(self, number: int) -> str:
        return ""

    def stop(self) -> str:
        """End it."""
        return ""


class RunsCode(Breaks):
    """Says that it runs what a policy wrote."""

    runs_code = True
