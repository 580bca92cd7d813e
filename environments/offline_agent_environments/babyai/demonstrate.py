"""The package's own bot as a scripted expert: the conversation's calls are repeated, then the bot is asked."""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from offline_agent.records import Message, call_message
from offline_agent_environments.babyai import levels

_MOVES = {"pick_up": 3, "drop": 4, "toggle": 5}
_TOOLS = {number: name for name, number in _MOVES.items()}
_AHEAD = 7  # most steps of one call


def next_turn(task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float) -> Message:
    """Return the next assistant message.

    Args:
        task: `reset`'s arguments.
        messages: The conversation so far.
        rng: The source of its carelessness.
        noise: Probability, in [0, 1], of a random call in place of the bot's.
    """
    if noise > 0 and rng.random() < noise:
        return _careless(rng)
    with contextlib.redirect_stdout(io.StringIO()):
        moves = _plan(task, messages)
    if not moves:
        return {"role": "assistant", "content": "I give up."}
    if moves[0] == 2:
        steps = next((i for i, move in enumerate(moves) if move != 2), len(moves))
        return call_message("forward", {"steps": min(steps, _AHEAD)})
    if moves[0] in (0, 1):
        return call_message("turn", {"direction": ("left", "right")[moves[0]]})
    return call_message(_TOOLS[moves[0]], {})


def _careless(rng: random.Random) -> Message:
    """Return a call that any state allows, drawn at random."""
    calls: list[tuple[str, dict[str, Any]]] = [
        ("turn", {"direction": "left"}),
        ("turn", {"direction": "right"}),
        ("forward", {"steps": rng.randint(1, 3)}),
        ("pick_up", {}),
        ("toggle", {}),
    ]
    return call_message(*rng.choice(calls))


def _plan(task: Mapping[str, Any], messages: Sequence[Message]) -> list[int]:
    """Return the bot's next moves: one, or as many steps ahead as it takes in a row. Empty where the bot fails."""
    from minigrid.utils.baby_ai_bot import BabyAIBot

    game = levels.begin(task["level"], task["seed"])
    try:
        bot, taken = BabyAIBot(game), None
        for move in _made(messages, game):
            bot.replan(taken)
            game.step(move)
            taken = move
        moves: list[int] = []
        while len(moves) < _AHEAD:
            move = int(bot.replan(taken))
            moves.append(move)
            if move != 2:
                break
            if game.step(move)[2]:
                break
            taken = move
    except Exception:  # the bot raises on missions that it does not understand; it then gives up
        return []
    return moves


def _made(messages: Sequence[Message], game: Any) -> Iterator[int]:
    """Yield the package's actions that the conversation's calls took; `game` moves along between them."""
    for message in messages:
        for call in message.get("tool_calls") or ():
            function = call["function"]
            arguments = function["arguments"]
            if isinstance(arguments, str):
                arguments = json.loads(arguments)
            name = function["name"]
            if name == "turn" and arguments.get("direction") in ("left", "right"):
                yield 0 if arguments["direction"] == "left" else 1
            elif name == "forward" and arguments.get("steps") in range(1, _AHEAD + 1):
                for _ in range(arguments["steps"]):
                    before = tuple(game.agent_pos)
                    yield 2
                    if tuple(game.agent_pos) == before:
                        break
            elif name in _MOVES:
                yield _MOVES[name]
