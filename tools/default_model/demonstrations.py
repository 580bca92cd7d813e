"""Endless, seeded streams of the shop's demonstrations as token rows."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offline_agent.envs.shop import Shop
from offline_agent.envs.shop.demonstrate import decide, remark
from offline_agent.envs.tools import ToolSet
from offline_agent.records import Message
from offline_agent.seeding import derive_seed


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One demonstration, tokenised.

    Attributes:
        input_ids: int [n].
        action_mask: int [n], 1 = a token of the demonstrator's turns, end-of-turn included.
    """

    input_ids: Sequence[int]
    action_mask: Sequence[int]


def conversation(task: Mapping[str, Any], rng: random.Random, noise: float, max_steps: int) -> list[Message]:
    """Return one demonstration as messages, at most `max_steps` actions long."""
    shop = Shop()
    observation = shop.reset(**task)
    messages: list[Message] = [
        {"role": "system", "content": Shop.system_prompt},
        {"role": "user", "content": observation},
    ]
    for _ in range(max_steps):
        said, decision = remark(shop, observation), decide(shop, observation, rng, noise)
        if decision is None:
            break
        name, arguments = decision
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        messages.append({"role": "assistant", "content": said, "tool_calls": [call]})
        observation = getattr(shop, name)(**arguments)
        if shop.terminated:
            break
        messages.append({"role": "tool", "name": name, "content": observation})
    if messages[-1]["role"] == "tool":
        messages.pop()  # nobody acts on it
    return messages


def rows(tokenizer: Any, seed: int, noise: Sequence[float], max_steps: int) -> Iterator[Demonstration]:
    """Yield demonstrations of the train split without end; the same seed gives the same stream.

    Args:
        tokenizer: A tokenizer whose template has generation markers.
        seed: Number `i` of the stream depends on `(seed, i)` alone.
        noise: Carelessness; each demonstrator's is drawn evenly from these.
        max_steps: Longest demonstration, in actions.
    """
    tasks = list(Shop.tasks("train"))
    tools = list(ToolSet.of(Shop).schemas)
    number = 0
    while True:
        rng = random.Random(derive_seed(seed, "demonstration", number))
        messages = conversation(rng.choice(tasks), rng, rng.choice(noise), max_steps)
        encoded = tokenizer.apply_chat_template(
            messages, tools=tools, return_dict=True, return_assistant_tokens_mask=True
        )
        yield Demonstration(encoded["input_ids"], encoded["assistant_masks"])
        number += 1
