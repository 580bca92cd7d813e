"""Games of TextArena for one player: `env=textarena:ID`.

The policy's turn is the text of one tool, `act`. Games draw from Python's shared random generator, so its state belongs to
the game's: it is put in place for a call and taken out again.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from offline_agent.envs.adapters import check_bounds, scaled, seeds
from offline_agent.envs.base import Environment
from offline_agent.errors import ConfigError


def adapt(rest: str, args: Mapping[str, Any]) -> type:
    """Return the class of a game; see `adapters.environment_class`."""
    import textarena
    from textarena.envs.registration import ENV_REGISTRY

    name = rest if rest.endswith("-raw") else f"{rest}-raw"  # without wrappers that repeat the whole game
    if name not in ENV_REGISTRY:
        from offline_agent.errors import did_you_mean

        known = sorted(known.removesuffix("-raw") for known in ENV_REGISTRY if known.endswith("-raw"))
        raise ConfigError(f"env: TextArena has no game {rest!r}.{did_you_mean(rest, known)}")
    options = args.get("options") or {}
    game = textarena.make(name, **options)
    try:
        game.reset(num_players=1, seed=0)
    except AssertionError as error:
        raise ConfigError(f"env: textarena:{rest} is no game for one player: {error}") from error
    return type("TextArenaGame", (_Game,), {"name": rest, "_id": name, "__module__": __name__})


class _Game(Environment):
    """One game of TextArena; `adapt` makes the classes.

    Args:
        options: Arguments of `textarena.make`.
        low: The reward of a lost game.
        high: From here on the game is won.
        tasks: Tasks of each split: seeds.
    """

    _id: ClassVar[str]
    system_prompt = "You play a game. Send each move with the tool act, in the form that the game asks for."

    def __init__(
        self, options: dict[str, Any] | None = None, low: float = 0.0, high: float = 1.0, tasks: int = 1000
    ) -> None:
        import textarena

        check_bounds(low, high)
        self._low, self._high = low, high
        self._random: Any = None
        self._reward = low
        self.terminated = False
        with self._own_chance():
            self._game = textarena.make(self._id, **(options or {}))

    @classmethod
    def tasks(cls, split: str, tasks: int = 1000) -> Iterator[dict[str, Any]]:
        """Yield the seeds of a split."""
        for seed in seeds(split, tasks):
            yield {"seed": seed}

    def reset(self, seed: int) -> str:
        """Start a game with a seed."""
        with self._own_chance():
            random.seed(seed)
            self._game.reset(num_players=1, seed=seed)
            self.terminated, self._reward = False, self._low
            return self._said()

    def act(self, action: str) -> str:
        """Make a move.

        Args:
            action: The move, in the form that the game asks for, such as [1 2].
        """
        with self._own_chance():
            over, _ = self._game.step(action)
            said = self._said()
            if over:
                rewards, facts = self._game.close()
                self.terminated = True
                self._reward = float((rewards or {}).get(0, self._low))
                said = "\n".join(filter(None, [said, str((facts or {}).get(0, {}).get("reason") or "")]))
            return said

    def get_reward(self) -> float:
        """Return the game's reward, between `low` and `high`; that of a lost game until it is over."""
        return scaled(self._reward, self._low, self._high)

    def _said(self) -> str:
        _, messages = self._game.get_observation()
        return "\n".join(str(text) for sender, text, *_ in messages if sender != 0)

    @contextlib.contextmanager
    def _own_chance(self) -> Iterator[None]:
        outside = random.getstate()
        if self._random is not None:
            random.setstate(self._random)
        try:
            yield
        finally:
            self._random = random.getstate()
            random.setstate(outside)
