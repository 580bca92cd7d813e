"""Scripted expert that follows the game's winning path, with a given rate of careless turns.

Once it has read a recipe, it says in each turn which parts of it are left, so that a policy that learns from it need
not infer that from the whole episode.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from offline_agent.records import Message
from offline_agent_environments.textworld.server import gold_path, replay

_OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
_AHEAD = 3
_RECIPE = re.compile(r"\nIngredients:\n(.*?)\nDirections:\n(.*)", re.DOTALL)
_DONE = re.compile(r"You (\w+) the (.+?)(?: with the .+)?\.")
_IDLE = "look around"  # shows what moving, or the beginning, has shown already; winning paths begin with one or two


def next_turn(task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float) -> Message:
    """Return the next assistant message.

    With noise 0 it is the winning path without its looks around, command by command. With probability `noise` each
    time, it is one of: a wrong turn or another possible command, a command left out, one that the game does not know,
    giving up. It walks back from a wrong turn, but does not undo other commands.

    Args:
        task: `reset`'s arguments.
        messages: The conversation so far.
        rng: Source of its careless turns.
        noise: In [0, 1].
    """
    where = (task["game"], task.get("params", ""), task["fold"], task["seed"])
    path = tuple(command for command in gold_path(*where) if command != _IDLE)
    exchanges = _exchanges(messages)
    made, left = _commands(exchanges), to_do(exchanges)
    done, detour = follow(path, made)
    if noise > 0 and rng.random() < noise:
        careless = _careless(where, path, done, made, left, rng)
        if careless is not None:
            return careless
    if detour:
        return _act(f"move {_OPPOSITE[detour[-1]]}", left, "That was the wrong way.")
    if done >= len(path):
        return {"role": "assistant", "content": "I give up."}
    return _act(path[done], left)


def to_do(exchanges: Sequence[tuple[str, str]]) -> list[str]:
    """Return the steps of the recipe read that are not done yet, in its order, from fetching to eating.

    Args:
        exchanges: The commands made, and the game's answers.
    """
    recipe = next((found for _, answer in reversed(exchanges) if (found := _RECIPE.search(answer))), None)
    if recipe is None:
        return []
    ingredients, directions = (
        [line.strip().replace(" the ", " ", 1) for line in part.splitlines() if line.strip()]
        for part in recipe.groups()
    )
    done = {command for command, answer in exchanges if not answer.startswith("Error: ")}
    done |= {" ".join(found.groups()) for _, answer in exchanges if (found := _DONE.fullmatch(answer))}
    return [each for each in (*(f"take {name}" for name in ingredients), *directions, "eat meal") if each not in done]


def follow(path: Sequence[str], made: Sequence[tuple[str, bool]]) -> tuple[int, list[str]]:
    """Return how far along the path the commands made have come, and the directions of wrong turns to walk back.

    A command that is one of the next few of the path takes it up from there; the ones between are left out. One that
    had no effect counts only where the path has it next: some winning paths hold such commands.
    """
    done = 0
    detour: list[str] = []
    for command, effective in made:
        verb, _, rest = command.partition(" ")
        if not effective:
            done += not detour and command == "".join(path[done : done + 1])
        elif verb == "move" and detour and rest == _OPPOSITE.get(detour[-1]):
            detour.pop()
        elif not detour and command in path[done : done + _AHEAD]:
            done = path.index(command, done) + 1
        elif verb == "move" and rest in _OPPOSITE:
            detour.append(rest)
    return done, detour


def _commands(exchanges: Sequence[tuple[str, str]]) -> list[tuple[str, bool]]:
    """Return the commands made, first to last, and whether each had an effect."""
    out = []
    for command, answer in exchanges:
        moved = not command.startswith("move ") or answer.startswith("You are in")
        out.append((command, moved and not answer.startswith("Error: ")))
    return out


def _exchanges(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Return the commands made, first to last, and the game's answers."""
    out: list[tuple[str, str]] = []
    pending: str | None = None
    for message in messages:
        calls = message.get("tool_calls")
        if calls and calls[0]["function"]["name"] == "act":
            arguments = calls[0]["function"]["arguments"]
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
            pending = " ".join(str(arguments.get("command", "")).split())
        elif message["role"] == "tool" and pending is not None:
            out.append((pending, str(message["content"])))
            pending = None
    return out


def _careless(
    where: tuple[str, str, str, int],
    path: Sequence[str],
    done: int,
    made: Sequence[tuple[str, bool]],
    left: Sequence[str],
    rng: random.Random,
) -> Message | None:
    """Return a careless turn; None where there is none of the kind that was drawn."""
    kind = rng.choices(("wrong", "skip", "unknown", "stop"), (6, 2, 1, 1))[0]
    if kind == "stop":
        return {"role": "assistant", "content": "I give up."}
    if kind == "skip" and done + 1 < len(path):
        return _act(path[done + 1], left)
    if kind == "unknown" and done < len(path):
        return _act(f"please {path[done]}", left)
    if kind == "wrong":
        states = replay(*where, tuple(command for command, _ in made) or ("look around",))
        others = sorted(set(states[-1]["validActions"]) - {path[min(done, len(path) - 1)]})
        return _act(rng.choice(others), left) if others else None
    return None


def _act(command: str, left: Sequence[str], thought: str = "") -> Message:
    thought = thought or f"Next: {command}."
    function = {"name": "act", "arguments": {"command": command}}
    return {
        "role": "assistant",
        "content": f"Left: {'; '.join(left)}. {thought}" if left else thought,
        "tool_calls": [{"type": "function", "function": function}],
    }
