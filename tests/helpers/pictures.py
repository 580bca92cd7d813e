"""An environment of pictures: a plain square, and a tool that says its colour; and the forgetting of kept pictures."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

COLOURS = {"red": (220, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 220), "grey": (120, 120, 120)}


def png(colour: tuple[int, int, int], size: int = 8) -> bytes:
    """Return a PNG of one colour."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    rows = (b"\x00" + bytes(colour) * size) * size
    head = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


class Squares:
    """Two squares, one after the other, in the form of TRL's tools; the reward is the share that was named right."""

    system_prompt = "Name colours."
    max_steps = 3
    terminated = False

    @classmethod
    def tasks(cls, split: str) -> Iterator[dict[str, Any]]:
        names = [*COLOURS]
        for at in range(8):
            yield {"task_id": f"{split}-{at}", "colours": [names[at % 4], names[(at + 1 + at // 4) % 4]]}

    def reset(self, colours: list[str]) -> list[dict[str, Any]]:
        self.colours, self.said, self.terminated = colours, [], False
        return [{"type": "text", "text": "Which colour?"}, {"type": "image", "image": png(COLOURS[colours[0]])}]

    def say(self, colour: str) -> Any:
        """Say the colour.

        Args:
            colour: red, green, blue or grey.
        """
        if colour not in COLOURS:
            raise ValueError(f"there is no colour {colour}")
        self.said.append(colour)
        self.terminated = len(self.said) == 2
        image = {"type": "image", "image": png(COLOURS[self.colours[len(self.said)]])} if not self.terminated else None
        return [image, {"type": "text", "text": "And now?"}] if image else "Done."

    def get_reward(self) -> float:
        return sum(a == b for a, b in zip(self.said, self.colours, strict=False)) / 2

    @property
    def fingerprint(self) -> str:
        return repr((self.colours, self.said))

    @classmethod
    def demonstrate(cls, task: Any, messages: Any, rng: Any, noise: float) -> Any:
        done = sum(message["role"] == "assistant" for message in messages)
        name = rng.choice([*COLOURS]) if rng.random() < noise else task["colours"][min(done, 1)]
        call = {"name": "say", "arguments": {"colour": name}}
        return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}
