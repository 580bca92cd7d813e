"""The environment: six actions of the grid as five tools, the mission's own end as the verifier."""

from __future__ import annotations

import copy
import hashlib
import importlib.metadata
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from offline_agent.envs.base import Environment, ToolError
from offline_agent.records import Message, Verdict
from offline_agent_environments.babyai import demonstrate as expert
from offline_agent_environments.babyai import levels

_FAR = 7  # cells of the field of view to the front


def describe(game: Any) -> str:
    """Return the objects that the agent sees and carries, one a line, the nearest first.

    Args:
        game: The level. Its field of view is 7 by 7 cells, the agent in the middle of the nearest row, and ends at
            walls and closed doors.
    """
    grid, visible = game.gen_obs_grid()
    middle = grid.width // 2
    seen = []
    for side in range(grid.width):
        for row in range(grid.height):
            thing, ahead = grid.get(side, row), grid.height - 1 - row
            if visible[side, row] and thing is not None and thing.type != "wall" and (ahead, side) != (0, middle):
                seen.append((ahead + abs(side - middle), ahead, side - middle, thing))
    lines = [f"You see {named(thing)} {_place(ahead, side)}." for _, ahead, side, thing in sorted(seen, key=_order)]
    lines.append(_way(game, grid, visible))
    if game.carrying is not None:
        lines.append(f"You carry {named(game.carrying)}.")
    return "\n".join(lines)


def named(thing: Any) -> str:
    """Return a thing with its article, colour and, for doors, state."""
    words = f"{thing.color} {thing.type}"
    if thing.type == "door":
        words = f"{'open' if thing.is_open else 'locked' if thing.is_locked else 'closed'} {words}"
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _order(seen: tuple[int, int, int, Any]) -> tuple[int, int, int]:
    return seen[:3]


def _place(ahead: int, side: int) -> str:
    parts = [f"{ahead} ahead"] if ahead else []
    if side:
        parts.append(f"{abs(side)} to the {'left' if side < 0 else 'right'}")
    return " and ".join(parts)


def _way(game: Any, grid: Any, visible: Any) -> str:
    """Return how many steps are free to the front."""
    middle, free = grid.width // 2, 0
    for ahead in range(1, min(_FAR, grid.height)):
        row = grid.height - 1 - ahead
        thing = grid.get(middle, row)
        if not visible[middle, row] or (thing is not None and not thing.can_overlap()):
            break
        free += 1
    return f"The way ahead is free for {free} step{'' if free == 1 else 's'}." if free else "The way ahead is blocked."


LEFT, RIGHT, FORWARD, PICK_UP, DROP, TOGGLE = range(6)
"""The package's numbers of its actions."""


class BabyAI(Environment):
    """BabyAI's levels (Chevalier-Boisvert et al. 2019, arXiv 1810.08272) with observations in words.

    The mission is fulfilled or not: 1 or 0. The level's own limit of moves ends the episode as a failure, and so does
    a final answer.

    Args:
        level: `GoToLocal`, `PickupLoc`, `GoToObjMazeS4`, `SynthS5R2`, … or the package's full names; several,
            separated by commas or as a list, in turn.
    """

    name = "babyai"
    system_prompt = (
        "You are an agent on a grid of cells. Fulfil the mission. You see what is in front of you, up to six cells"
        " ahead and three to each side; positions are told from where you stand and look. Turn to look around."
        " Picking up, dropping and toggling (opening and closing doors and boxes, with the right key for what is"
        " locked) act on the cell directly in front of you. Answering without a call gives up."
    )
    _answers_differ: ClassVar[bool] = False

    def __init__(self, level: str | Sequence[str] = "GoToLocal") -> None:
        levels.checked(level)
        self._game: Any = None

    @classmethod
    def tasks(cls, split: str, level: str | Sequence[str] = "GoToLocal") -> Iterable[dict[str, Any]]:
        """Yield the seeds of a split, for each level in turn.

        Raises:
            ConfigError: The package is missing, or there is no such level.
        """
        names = levels.checked(level)
        for seed in levels.SPLITS[split]:
            for name in names:
                yield {"task_id": f"{name}-{seed}", "level": name, "seed": seed}

    def reset(self, level: str, seed: int, **_: Any) -> str:
        """Start a mission; return it and the first view."""
        self._game = levels.begin(level, seed)
        self._won, self.terminated = False, False
        return f"Your mission: {self._game.mission}.\n{describe(self._game)}"

    def turn(self, direction: Literal["left", "right"]) -> str:
        """Turn by a quarter and look.

        Args:
            direction: Where to turn.
        """
        return self._do(LEFT if direction == "left" else RIGHT)

    def forward(self, steps: int) -> str:
        """Walk ahead, as far as the way is free.

        Args:
            steps: Number of cells, 1 to 7.
        """
        if not 1 <= steps <= 7:
            raise ToolError(f"steps: got {steps}, allowed: 1 to 7.")
        for walked in range(steps):
            before = tuple(self._now.agent_pos)
            view = self._do(FORWARD)
            if self.terminated:
                return view
            if tuple(self._now.agent_pos) == before:
                return f"You walk {walked} of {steps} steps; {self._ahead()} is in the way.\n{describe(self._now)}"
        return view

    def pick_up(self) -> str:
        """Pick up the thing directly in front of you."""
        held = self._now.carrying
        view = self._do(PICK_UP)
        if self._now.carrying is held:
            return f"You cannot pick up {self._ahead()}{' while you carry something' if held else ''}.\n{view}"
        return view

    def drop(self) -> str:
        """Put what you carry into the free cell directly in front of you."""
        held = self._now.carrying
        view = self._do(DROP)
        if held is None or self._now.carrying is held:
            reason = "you carry nothing" if held is None else f"{self._ahead()} is in the way"
            return f"You cannot drop anything: {reason}.\n{view}"
        return view

    def toggle(self) -> str:
        """Open or close the door or the box directly in front of you."""
        return self._do(TOGGLE)

    def get_reward(self) -> Verdict:
        """Return 1 where the mission is fulfilled, else 0."""
        game = self._now
        evidence = {"mission": game.mission, "moves": int(game.step_count), "most_moves": int(game.max_steps)}
        version = f"minigrid {importlib.metadata.version('minigrid')}"
        return Verdict(float(self._won), self._won, "babyai.mission", version, evidence)

    @property
    def fingerprint(self) -> str:
        """Hash of the grid, the agent, what it carries and which parts of the mission are done; not of the moves."""
        game = self._now
        held = None if game.carrying is None else named(game.carrying)
        done = [(name, value) for name, value in sorted(_flags(game.instrs)) if isinstance(value, (bool, str))]
        state = (game.mission, tuple(map(int, game.agent_pos)), int(game.agent_dir), held, done, self._won)
        return hashlib.sha256(game.grid.encode().tobytes() + repr(state).encode()).hexdigest()

    @classmethod
    def demonstrate(
        cls, task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float
    ) -> Message:
        """Return the next call of the package's own bot, or with `noise` a careless one."""
        return expert.next_turn(task, messages, rng, noise)

    def __deepcopy__(self, memo: dict[int, Any]) -> BabyAI:
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        game = self._game
        if game is not None and getattr(game, "window", None) is None:
            memo[id(game.spec)] = game.spec  # never changes, and takes half of the time
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    def _do(self, action: int) -> str:
        game = self._now
        if self.terminated:
            raise ToolError("the episode is over.")
        _, reward, over, late, _ = game.step(action)
        self._won = bool(over and reward > 0)
        self.terminated = bool(over or late)
        if self._won:
            return "The mission is fulfilled."
        if self.terminated:
            return "The mission failed." if over else "No moves are left: the mission failed."
        return describe(game)

    def _ahead(self) -> str:
        thing = self._now.grid.get(*self._now.front_pos)
        return "nothing" if thing is None else "a wall" if thing.type == "wall" else named(thing)

    @property
    def _now(self) -> Any:
        if self._game is None:
            raise RuntimeError("reset the level first")
        return self._game


def _flags(instruction: Any, path: str = "") -> list[tuple[str, Any]]:
    """Return the fields of a mission and of its parts: some record which parts are done."""
    found = []
    for name, value in vars(instruction).items():
        if name.startswith("instr_"):
            found += _flags(value, f"{path}{name}.")
        elif name in ("a_done", "b_done", "lastStepMatch"):
            found.append((f"{path}{name}", value))
    return found
