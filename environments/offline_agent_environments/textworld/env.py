"""The TextWorld environment: one tool that acts, one that lists the possible commands."""

from __future__ import annotations

import importlib.metadata
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from offline_agent.envs.base import Environment, ToolError
from offline_agent.errors import ConfigError, did_you_mean
from offline_agent.records import Message, Verdict
from offline_agent_environments.textworld import demonstrate as expert
from offline_agent_environments.textworld.server import (
    FIRST_SEED,
    FOLDS,
    GAMES,
    SEEDS_PER_FOLD,
    Interface,
    missing,
    server,
)


class TextWorld(Environment):
    """Households, kitchens and mazes in text: CookingWorld, TextWorldCommonsense, CoinCollector and four more.

    The game's own score in [0, 1] is the reward; winning it is success. A final answer gives up. The turn
    reward of a call is what it adds to the best score so far: a score that falls and rises again earns nothing twice.

    Args:
        game: `cookingworld`, `twc` (TextWorldCommonsense), `coin` (CoinCollector), `mapreader`, `arithmetic`,
            `simonsays` or `peckingorder`; several, comma-separated or as a list, in turn.
        params: The game's own parameters, e.g. `numLocations=5,includeDoors=0`; "" for its defaults. With several
            games a dict, game to parameters.
    """

    name = "textworld"
    system_prompt = (
        "You play a text game. Do one thing at a time with act(command), in the game's own words, such as"
        " 'look around', 'inventory', 'open fridge', 'take knife', 'put knife in drawer' or 'move north'."
        " commands() lists everything that can be done at the moment. Answering without a call gives the game up."
    )
    replay_only = True  # the state lives in Java
    turn_reward: float | None = None
    _answers_differ: ClassVar[bool] = False

    def __init__(self, game: str | Sequence[str] = "cookingworld", params: str | Mapping[str, str] = "") -> None:
        _params(_games(game), params)
        self._state: dict[str, Any] | None = None
        self._interface: Interface | None = None

    @classmethod
    def tasks(
        cls, split: str, game: str | Sequence[str] = "cookingworld", params: str | Mapping[str, str] = ""
    ) -> Iterable[dict[str, Any]]:
        """Yield the 1,000 seeds of the package's own fold, for each game in turn.

        Raises:
            ConfigError: The package or Java is missing.
        """
        fault = missing()
        if fault is not None:
            raise ConfigError(fault)
        fold, own = FOLDS[split], _params(_games(game), params)
        first = FIRST_SEED[fold]
        for seed in range(first, first + SEEDS_PER_FOLD):
            for name in _games(game):
                task_id = f"{name}-{fold}-{seed}"
                yield {"task_id": task_id, "game": name, "fold": fold, "seed": seed, "params": own[name]}

    def reset(self, game: str, fold: str, seed: int, params: str = "", **_: Any) -> str:
        """Start a game and return its task and the first view."""
        self._release()
        interface = self._interface = server().take(game, params)
        self._state = interface.begin(fold, seed)
        self._moves = 0
        self._best, self.turn_reward = self._score(), None
        self.terminated = False
        return f"{interface.task().strip()}\n\n{self._state['observation'].strip()}"

    def act(self, command: str) -> str:
        """Do one thing in the game and see what happens.

        Args:
            command: What to do, in the game's words, e.g. "open fridge".
        """
        said = " ".join(command.split())
        if said not in self._now["validActions"]:  # the games tell capitals apart
            said = next((c for c in self._now["validActions"] if c.lower() == said.lower()), said)
        assert self._interface is not None  # the game was reset
        state = self._state = self._interface.step(said)
        self._moves += 1
        self.turn_reward = max(0.0, self._score() - self._best)
        self._best = max(self._best, self._score())
        self.terminated = bool(state["tasksuccess"] or state["taskfailure"])
        if state["observation"].startswith("Unknown action") and not self.terminated:
            near = did_you_mean(said, state["validActions"])
            raise ToolError(f"the game does not know how to {said!r} here.{near} commands() lists what can be done.")
        return str(state["observation"]).strip()

    def commands(self) -> str:
        """List every command that can be done at the moment."""
        self.turn_reward = 0.0
        return "\n".join(sorted(self._now["validActions"]))

    def get_reward(self) -> Verdict:
        """Return the game's own score."""
        state = self._now
        won = bool(state["tasksuccess"])
        score = self._score()
        evidence = {
            "score": state["score"],
            "score_raw": state["scoreRaw"],
            "won": won,
            "lost": bool(state["taskfailure"]),
            "commands": self._moves,
        }
        version = f"textworld-express {importlib.metadata.version('textworld-express')}"
        return Verdict(score, won, "textworld.score", version, evidence)

    @classmethod
    def demonstrate(
        cls, task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float
    ) -> Message:
        """Return the next command of a winning path, or with `noise` a careless one; see `demonstrate.next_turn`."""
        return expert.next_turn(task, messages, rng, noise)

    def _score(self) -> float:
        """Return the game's score in [0, 1]."""
        state = self._now
        return 1.0 if state["tasksuccess"] else min(max(float(state["score"]), 0.0), 1.0)

    @property
    def _now(self) -> dict[str, Any]:
        if self._state is None:
            raise RuntimeError("reset the game first")
        return self._state

    def _release(self) -> None:
        if self._interface is not None:
            self._interface.close()
            self._interface = None

    def __enter__(self) -> TextWorld:
        return self

    def __exit__(self, *_: object) -> None:
        self._release()


def _games(given: str | Sequence[str]) -> list[str]:
    names = [n.strip() for n in given.split(",")] if isinstance(given, str) else list(given)
    for name in names:
        if name not in GAMES:
            raise ConfigError(f"env.game: got {name!r}, allowed: {', '.join(GAMES)}.{did_you_mean(str(name), GAMES)}")
    return names


def _params(games: Sequence[str], given: str | Mapping[str, str]) -> dict[str, str]:
    """Return each game's parameters."""
    if isinstance(given, str):
        return dict.fromkeys(games, given)
    for name in given:
        if name not in games:
            raise ConfigError(
                f"env.params: {name!r} is not among the games: {', '.join(games)}.{did_you_mean(name, games)}"
            )
    return {name: str(given.get(name, "")) for name in games}
