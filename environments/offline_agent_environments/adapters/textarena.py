"""Games of TextArena for one player: `env=textarena:ID`.

The policy's turn is the text of one tool, `act`. Games draw from the shared random generators of Python and NumPy, so
their states belong to the game's: they are put in place for a call and taken out again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from offline_agent.envs.base import Environment
from offline_agent.errors import ConfigError, did_you_mean
from offline_agent_environments.adapters import Chance, seeds
from offline_agent_environments.adapters.rewards import Bounds


def adapt(rest: str, args: Mapping[str, Any]) -> type:
    """Return the class of a game; see `envs.base.environment_class`."""
    import textarena
    from textarena.envs.registration import ENV_REGISTRY

    name = rest if rest.endswith("-raw") else f"{rest}-raw"  # without wrappers that repeat the whole game
    if name not in ENV_REGISTRY:
        known = sorted(known.removesuffix("-raw") for known in ENV_REGISTRY if known.endswith("-raw"))
        raise ConfigError(f"env: TextArena has no game {rest!r}.{did_you_mean(rest, known)}")
    options, moves = args.get("options") or {}, args.get("moves")
    with Chance().put_in_place():
        game = textarena.make(name, **options)
        try:
            game.reset(num_players=1, seed=0)
        except (AssertionError, ValueError) as error:
            raise ConfigError(f"env: textarena:{rest} is no game for one player: {error}") from error
    turns = getattr(game.state, "max_turns", None)
    members: dict[str, Any] = {"name": rest, "_id": name, "__module__": __name__}
    members["max_steps"] = turns + 1 if isinstance(turns, int) and turns > 0 else None  # some end a turn later
    if moves is not None:
        members["_tool_schemas"] = [_of_moves(moves)]
    return type("TextArenaGame", (_Game,), members)


def _of_moves(moves: Any) -> dict[str, Any]:
    """Return the schema of `act` where all moves of a game are named."""
    if not isinstance(moves, list | tuple) or not moves or not all(isinstance(move, str) for move in moves):
        raise ConfigError(f"env.moves: got {moves!r}, allowed: a list of texts, such as ['[up]', '[down]']")
    shape = {"type": "object", "required": ["action"],
             "properties": {"action": {"type": "string", "enum": list(moves), "description": "The move."}}}  # fmt: skip
    return {"type": "function", "function": {"name": "act", "description": "Make a move.", "parameters": shape}}


class _Game(Environment):
    """One game of TextArena; `adapt` makes the classes.

    Args:
        options: Arguments of `textarena.make`.
        moves: All moves of the game, where `act` is to take no others.
        low: The reward of a lost game. Less, such as -1 for an invalid move, counts as lost too.
        high: The reward from which on the game is won; None = 1, and more is an error.
        tasks: Tasks of each split: seeds.
        demonstrate: See `envs.base.environment_class`.
    """

    _id: ClassVar[str]
    system_prompt = "You play a game. Send each move with the tool act, in the form that the game asks for."

    def __init__(
        self,
        options: dict[str, Any] | None = None,
        moves: list[str] | None = None,
        low: float = 0.0,
        high: float | None = None,
        tasks: int = 1000,
        demonstrate: str | None = None,
    ) -> None:
        import textarena

        self._bounds = Bounds(self._id, low, high)
        self._chance = Chance()
        self._reward: float | None = None
        self.terminated = False
        with self._chance.put_in_place(0):
            self._game = textarena.make(self._id, **(options or {}))

    @classmethod
    def tasks(cls, split: str, tasks: int = 1000) -> Iterator[dict[str, Any]]:
        """Yield the seeds of a split."""
        for seed in seeds(split, tasks):
            yield {"seed": seed}

    def reset(self, seed: int) -> str:
        """Start a game with a seed."""
        self.terminated, self._reward = False, None
        with self._chance.put_in_place(seed):
            self._game.reset(num_players=1, seed=seed)
            return self._said()

    def act(self, action: str) -> str:
        """Make a move.

        Args:
            action: The move, in the form that the game asks for, such as [1 2].
        """
        with self._chance.put_in_place():
            over, _ = self._game.step(action)
            said = self._said()
            if over:
                rewards, facts = self._game.close()
                self.terminated = True
                self._reward = None if rewards is None or rewards.get(0) is None else float(rewards[0])
                said = "\n".join(filter(None, [said, str((facts or {}).get(0, {}).get("reason") or "")]))
            return said

    def get_reward(self) -> float | None:
        """Return the game's reward, between `low` and `high`; 0 until it is over, None where the game gave none."""
        if not self.terminated:
            return 0.0
        return None if self._reward is None else self._bounds.scaled(self._reward)

    def _said(self) -> str:
        _, messages = self._game.get_observation()
        own = [len(message) > 2 and getattr(message[2], "name", "") == "PLAYER_ACTION" for message in messages]
        return "\n".join(str(message[1]) for message, echo in zip(messages, own, strict=True) if not echo)
