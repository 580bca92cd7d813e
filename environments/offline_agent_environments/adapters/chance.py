"""States of the shared random generators of Python and NumPy, for environments that draw from them."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any, ClassVar


class Chance:
    """States of the shared random generators, which a game has to itself in its calls."""

    _lock: ClassVar[threading.RLock] = threading.RLock()  # the generators are one for all threads

    def __init__(self) -> None:
        self._own: tuple[Any, ...] | None = None

    @contextlib.contextmanager
    def put_in_place(self, seed: int | None = None) -> Iterator[None]:
        """Let code draw from the game's states, and print to stderr; begin with a seed where one is given."""
        with self._lock, contextlib.redirect_stdout(sys.stderr):
            outside = _states()
            try:
                if seed is not None:
                    _seed(seed)
                elif self._own is not None:
                    _set_states(self._own)
                yield
            finally:
                self._own = _states()
                _set_states(outside)


def _states() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    return random.getstate(), None if numpy is None else numpy.random.get_state()


def _set_states(states: tuple[Any, ...]) -> None:
    random.setstate(states[0])
    if states[1] is not None:
        sys.modules["numpy"].random.set_state(states[1])


def _seed(seed: int) -> None:
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed)
