"""The agent's field of view in words. Positions are relative to the agent: so far ahead, so far to one side."""

from __future__ import annotations

from typing import Any

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
