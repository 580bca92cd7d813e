"""An environment of one guess, whose tasks say nothing of the number."""

from __future__ import annotations


class Guessing:
    """A number is guessed that the first observation does not show; 50 counts as guessed. `reset` sets `_number`."""

    _number: int
    terminated: bool

    def guess(self, number: int) -> str:
        """Guess.

        Args:
            number: Any.
        """
        self.terminated = True
        return "over"

    def get_reward(self) -> float:
        return float(self._number == 50)
