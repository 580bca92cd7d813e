"""Gymnasium's FrozenLake on random maps as an environment of one's own; docs/environments.md builds it step by step.

python -m offline_agent.envs.conformance examples.frozen_lake:FrozenLake
"""

import zlib
from collections import deque
from typing import Literal

import gymnasium
from gymnasium.envs.toy_text.frozen_lake import generate_random_map

MOVES = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
SIZE, SAFE = 5, 0.7


def lake(map_seed):
    """Return the rows of a random map on which G can be reached."""
    return generate_random_map(SIZE, SAFE, seed=map_seed)


class FrozenLake:
    system_prompt = "Walk over the frozen lake from S to G. F is ice. A step into a hole H ends the walk."

    @classmethod
    def tasks(cls, split):
        part = {"train": range(8), "validation": range(8, 9), "test": range(9, 10)}[split]
        seen = set()
        for map_seed in range(20_000):
            rows = lake(map_seed)
            # The map decides its split, so that no map is in two.
            if zlib.crc32("".join(rows).encode()) % 10 in part and tuple(rows) not in seen:
                seen.add(tuple(rows))
                yield {"map_seed": map_seed}

    def reset(self, map_seed: int) -> str:
        self.rows = lake(map_seed)
        self.world = gymnasium.make("FrozenLake-v1", desc=self.rows, is_slippery=False).unwrapped
        self.place, _ = self.world.reset(seed=map_seed)
        self.terminated, self.earned = False, 0.0
        return "\n".join(self.rows) + "\n" + self._where()

    def move(self, direction: Literal["left", "down", "right", "up"]) -> str:
        """Take one step.

        Args:
            direction: Where to go.
        """
        action = list(MOVES).index(direction)
        self.place, reward, self.terminated, _, _ = self.world.step(action)
        self.earned = float(reward)
        return self._where()

    def _where(self) -> str:
        row, column = divmod(int(self.place), SIZE)
        return f"You are in row {row}, column {column}, on {self.rows[row][column]}."

    def get_reward(self) -> float:
        return self.earned

    @property
    def fingerprint(self) -> str:
        return f"{''.join(self.rows)} {self.place}"

    @classmethod
    def demonstrate(cls, task, messages, rng, noise):
        """Return the first step of a shortest way to G; with probability `noise` any step."""
        rows = lake(task["map_seed"])
        told = [str(message["content"]) for message in messages if message["role"] in ("user", "tool")]
        said = next(text for text in reversed(told) if "You are in row " in text)  # an error says nothing of it
        words = said.rsplit("You are in row ", 1)[1].split(",")
        at = (int(words[0]), int(words[1].split()[1]))
        direction = rng.choice(list(MOVES)) if rng.random() < noise else way(rows, at)
        call = {"type": "function", "function": {"name": "move", "arguments": {"direction": direction}}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}


def way(rows, start):
    """Return the first move of a shortest way from `start` (row, column) to G, by breadth-first search."""
    queue, seen = deque([(start, None)]), {start}
    while queue:
        (row, column), first = queue.popleft()
        if rows[row][column] == "G":
            return first
        for name, (down, right) in MOVES.items():
            to = (row + down, column + right)
            if min(to) < 0 or max(to) >= SIZE or to in seen or rows[to[0]][to[1]] == "H":
                continue
            seen.add(to)
            queue.append((to, first or name))
    raise ValueError(f"there is no way from {start}")
