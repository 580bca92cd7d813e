"""Environments that an audit must not let pass: each breaks one promise. `Quiz` is the game that most of them spoil."""

from __future__ import annotations

import json
import random
from typing import Any

from tests.helpers.hostile_environments import Honest

CAPITALS = [
    ("France", "Paris"), ("Japan", "Tokyo"), ("Peru", "Lima"), ("Kenya", "Nairobi"), ("Norway", "Oslo"),
    ("Cuba", "Havana"), ("Egypt", "Cairo"), ("Ghana", "Accra"), ("Iraq", "Baghdad"), ("Chile", "Santiago"),
    ("Nepal", "Kathmandu"), ("Qatar", "Doha"),
]  # fmt: skip


class Quiz:
    """Capitals: look a country up, then answer. It keeps what it promises."""

    terminated = False

    @classmethod
    def tasks(cls, split: str):
        start = {"train": 0, "validation": 4, "test": 8}[split]
        return ({"task_id": f"{c}", "country": c, "gold": g} for c, g in CAPITALS[start : start + 4])

    def reset(self, country: str, gold: str, task_id: str = "") -> str:
        self.country, self.gold, self.terminated, self.given, self.looked = country, gold, False, None, []
        return f"Name the capital of {country}."

    def look_up(self, subject: str) -> str:
        """Look up a country.

        Args:
            subject: Its name.
        """
        self.looked.append(subject)
        return f"The capital is {self.gold}." if subject == self.country else "Nothing was found."

    def submit(self, text: str) -> str:
        """Submit the answer.

        Args:
            text: The answer.
        """
        self.given, self.terminated = text, True
        return "Submitted."

    def get_reward(self) -> Any:
        return float(self.given == self.gold)

    @classmethod
    def demonstrate(cls, task, messages, rng: random.Random, noise: float) -> dict[str, Any]:
        wrong = rng.random() < noise
        return _call("submit", {"text": rng.choice(CAPITALS)[1] if wrong else task["gold"]})


def _call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "role": "assistant", "content": "",
        "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}],
    }  # fmt: skip


# -- what is leaked ----------------------------------------------------------------------------------------------------


class GoldInPrompt(Quiz):
    def reset(self, country: str, gold: str, task_id: str = "") -> str:
        super().reset(country, gold)
        return f"Name the capital of {country}. <!-- expected: {gold} -->"


class UnnamedGold(GoldInPrompt):
    """The column of the gold answer has a name that says nothing."""

    @classmethod
    def tasks(cls, split: str):
        return ({"country": task["country"], "city": task["gold"]} for task in Quiz.tasks(split))

    def reset(self, country: str, city: str) -> str:
        return super().reset(country, city)

    @classmethod
    def demonstrate(cls, task, messages, rng: random.Random, noise: float) -> dict[str, Any]:
        return Quiz.demonstrate({"gold": task["city"]}, messages, rng, noise)


class GoldInTools(Quiz):
    """Each task has its own tools, and their description says the answer."""

    def reset(self, country: str, gold: str, task_id: str = "") -> str:
        from offline_agent.envs.tools import ToolSet

        schemas = json.loads(json.dumps(list(ToolSet.of(type(self)).schemas)))
        schemas[-1]["function"]["description"] += f" For this task that is {gold}."
        self._tools = ToolSet(schemas)
        return super().reset(country, gold)


class GoldInErrors(Quiz):
    def look_up(self, subject: str) -> str:
        """Look up a country.

        Args:
            subject: Its name.
        """
        raise ValueError(f"assertion failed: expected {self.gold!r}, got {subject!r}")


class GoldInObservations(Quiz):
    def look_up(self, subject: str) -> str:
        """Look up a country.

        Args:
            subject: Its name.
        """
        return f"Nothing was found on {subject}. [debug] state={{'gold': '{self.gold}'}}"


# -- what is paid for --------------------------------------------------------------------------------------------------


class PaysEcho(GoldInObservations):
    """Finds the gold anywhere in the answer, and shows it."""

    def get_reward(self) -> Any:
        return float(self.given is not None and self.gold in self.given)


class PaysPrompt(Quiz):
    """Takes an answer that names the country for right."""

    def get_reward(self) -> Any:
        return float(self.given is not None and self.country in self.given)


class PaysForm(Quiz):
    """Looks at the tags, not between them."""

    def get_reward(self) -> Any:
        return float(self.given is not None and "<answer>" in self.given and "</answer>" in self.given)


class PaysTools(Quiz):
    """Pays for having used each tool."""

    def get_reward(self) -> Any:
        return float(bool(self.looked) and self.terminated)

    @classmethod
    def demonstrate(cls, task, messages, rng: random.Random, noise: float) -> dict[str, Any]:
        looked = any(message.get("tool_calls") for message in messages)
        return _call("submit", {"text": "x"}) if looked else _call("look_up", {"subject": "x"})


class PaysSubmission(Quiz):
    def get_reward(self) -> Any:
        return float(self.given is not None)


class PaysLength(Quiz):
    """Finds the answer among others: whoever lists all words, numbers and letters has it."""

    def get_reward(self) -> Any:
        return float(self.given is not None and "4711" in self.given)

    @classmethod
    def demonstrate(cls, task, messages, rng: random.Random, noise: float) -> dict[str, Any]:
        return _call("submit", {"text": "0" if rng.random() < noise else "4711"})


class PaysChance(Honest):
    """Is content with any three numbers."""

    def get_reward(self) -> Any:
        return float(len(self.picked) == 3)


class VerifierChokes(Quiz):
    """Cannot judge a long answer."""

    def get_reward(self) -> Any:
        if self.given is not None and len(self.given) > 1000:
            raise RecursionError("too deep")
        return float(self.given == self.gold)


# -- what is not the same again ----------------------------------------------------------------------------------------


class UnstableTasks(Honest):
    @classmethod
    def tasks(cls, split: str):
        start = {"train": 0, "validation": 100, "test": 200}[split]
        return [{"goal": start % 10 + random.randrange(3)} for _ in range(30)]


class HashOrder(Honest):
    """Speaks of things in the order of a set."""

    def reset(self, goal: int) -> str:
        return f"{super().reset(goal)} You have {set('abcdefghij')}."


class Leftovers(Honest):
    """Numbers that were picked once are gone for all."""

    gone: list[int] = []

    def pick(self, n: int) -> Any:
        """Pick a number.

        Args:
            n: The number, 0 to 9.
        """
        self.gone.append(n)
        return f"{super().pick(n)} {len(self.gone)} are gone."


class CountsLooks(Honest):
    """Counts how often its end was looked at, and tells."""

    looks = 0

    @property
    def terminated(self) -> bool:
        self.looks += 1
        return getattr(self, "over", False)

    @terminated.setter
    def terminated(self, over: bool) -> None:
        self.over = over

    def reset(self, goal: int) -> str:
        self.looks = 0
        return super().reset(goal)

    def pick(self, n: int) -> Any:
        """Pick a number.

        Args:
            n: The number, 0 to 9.
        """
        return f"{super().pick(n)} {self.looks}"


# -- data, goals, resources --------------------------------------------------------------------------------------------


class WrongGoals(Honest):
    """Names goals that its reset does not take."""

    @property
    def achieved_goal(self) -> dict[str, Any] | None:
        return {"aim": 3}
