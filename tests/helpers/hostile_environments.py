"""Environments that misbehave, each in one way: for everybody's tests.

`Honest` is the game they all spoil: three numbers that add up to the goal.
`tests.helpers.hostile_environments:Hangs` works wherever an environment's name does.
"""

from __future__ import annotations

import builtins
import ctypes
import itertools
import os
import random
import signal
import threading
import time
from asyncio import CancelledError
from typing import Any

from offline_agent.records import Verdict


class Honest:
    """Pick three numbers that add up to the goal."""

    system_prompt = "Pick three numbers from 0 to 9 that add up to the goal."
    terminated = False

    @classmethod
    def tasks(cls, split: str):
        start = {"train": 0, "validation": 10, "test": 20}[split]
        return ({"task_id": f"goal-{goal}", "goal": goal} for goal in range(start + 1, start + 8))

    def reset(self, goal: int) -> str:
        self.goal, self.picked, self.terminated = goal, [], False
        return f"The goal is {goal}."

    def pick(self, n: int) -> Any:
        """Pick a number.

        Args:
            n: The number, 0 to 9.
        """
        if not 0 <= n <= 9:
            raise ValueError(f"n must be from 0 to 9, got {n}")
        self.picked.append(n)
        self.terminated = len(self.picked) == 3
        return f"{sum(self.picked)} so far, {3 - len(self.picked)} to go."

    def get_reward(self) -> Any:
        return float(len(self.picked) == 3 and sum(self.picked) == self.goal)

    @property
    def fingerprint(self) -> str:
        return repr(self.picked)

    @classmethod
    def demonstrate(cls, task, messages, rng: random.Random, noise: float) -> dict[str, Any]:
        made = [m["tool_calls"][0]["function"]["arguments"]["n"] for m in messages if m.get("tool_calls")]
        left = task["goal"] - sum(made)
        n = min(9, max(0, left)) if rng.random() >= noise else rng.randrange(10)
        function = {"name": "pick", "arguments": {"n": n}}
        return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


class RaisesInInit(Honest):
    def __init__(self) -> None:
        raise OSError("no database")


class RaisesInReset(Honest):
    def reset(self, goal: int) -> str:
        raise OSError("no world")


class RaisesInTool(Honest):
    """Breaks, as opposed to refusing bad input, when it is given `bad`."""

    def __init__(self, bad: int = 5) -> None:
        self.bad = bad

    def pick(self, n: int) -> str:
        """Pick a number.

        Args:
            n: The number.
        """
        if n == self.bad:
            raise OSError("the connection was lost")
        return super().pick(n)


class ExitsInTool(Honest):
    def pick(self, n: int) -> str:
        """Pick a number.

        Args:
            n: The number.
        """
        raise SystemExit(3)


class Raises(Honest):
    """Raises an error of a class that no handler of `Exception` catches when it is given `bad`."""

    def __init__(self, error: str = "KeyboardInterrupt", bad: int = 5) -> None:
        self.error, self.bad = error, bad

    def pick(self, n: int) -> str:
        """Pick a number.

        Args:
            n: The number.
        """
        if n == self.bad:
            kinds = {kind.__name__: kind for kind in (Own, CancelledError)}
            raise (kinds.get(self.error) or getattr(builtins, self.error))("enough")
        return super().pick(n)


class Own(BaseException):
    def __str__(self) -> str:
        raise OSError("no message")


class Dies(Honest):
    """Ends its process when it is given `bad`: by `os._exit`, by a crash in C, or by a signal."""

    def __init__(self, how: str = "exit", bad: int = 5) -> None:
        self.how, self.bad = how, bad

    def pick(self, n: int) -> str:
        """Pick a number.

        Args:
            n: The number.
        """
        if n == self.bad:
            if self.how == "exit":
                os._exit(0)
            if self.how == "segfault":
                ctypes.string_at(0)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().pick(n)


class Meddles(Honest):
    """Changes the process that it runs in."""

    def pick(self, n: int) -> str:
        """Pick a number.

        Args:
            n: The number.
        """
        os.umask(0)
        os.chdir("/")
        os.environ.clear()
        return super().pick(n)


class Spins(Honest):
    """Computes for ever in its tool when it is given `bad`."""

    def __init__(self, bad: int = 5) -> None:
        self.bad = bad

    def pick(self, n: int) -> str:
        """Pick a number.

        Args:
            n: The number.
        """
        while n == self.bad:
            pass
        return super().pick(n)


class Generates(Honest):
    """Keeps its state in a generator, which `copy.deepcopy` cannot copy; a new one takes long to begin."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def reset(self, goal: int) -> str:
        time.sleep(self.seconds)
        said = super().reset(goal)
        self.sums = itertools.accumulate(iter(lambda: self.last, None))
        self.beginning = (number for number in itertools.count(1))
        return said

    def pick(self, n: int) -> str:
        """Pick a number.

        Args:
            n: The number.
        """
        self.last = n
        return f"{super().pick(n)} {next(self.sums)} in {next(self.beginning)}."


class Hangs(Honest):
    """Sleeps in its tool when it is given `bad`."""

    def __init__(self, seconds: float = 3600.0, bad: int = 5) -> None:
        self.seconds, self.bad = seconds, bad

    def pick(self, n: int) -> str:
        """Pick a number.

        Args:
            n: The number.
        """
        if n == self.bad:
            time.sleep(self.seconds)
        return super().pick(n)


class HangsInReset(Honest):
    def __init__(self, seconds: float = 3600.0) -> None:
        self.seconds = seconds

    def reset(self, goal: int) -> str:
        time.sleep(self.seconds)
        return super().reset(goal)


class AnswersDifferently(Honest):
    """Counts its calls over all instances, so that no replay repeats."""

    replay_only = True
    _calls = itertools.count()

    def pick(self, n: int) -> str:
        """Pick a number.

        Args:
            n: The number.
        """
        return f"{super().pick(n)} (call {next(self._calls)})"


class BeginsDifferently(Honest):
    _resets = itertools.count()

    def reset(self, goal: int) -> str:
        return f"{super().reset(goal)} (game {next(self._resets)})"


class Huge(Honest):
    """Answers with 10 MB."""

    def pick(self, n: int) -> str:
        """Pick a number.

        Args:
            n: The number.
        """
        return super().pick(n) + "x" * 10_000_000


class BadUnicode(Honest):
    """Answers with a lone surrogate, a NUL and a noncharacter."""

    def pick(self, n: int) -> str:
        """Pick a number.

        Args:
            n: The number.
        """
        return super().pick(n) + " \ud800 \x00 \uffff"


class Returns(Honest):
    """Answers with whatever it is made with."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def pick(self, n: int) -> Any:
        """Pick a number.

        Args:
            n: The number.
        """
        super().pick(n)
        return self.value


class Rewards(Honest):
    """Rewards with whatever it is made with."""

    def __init__(self, reward: Any = 2.0) -> None:
        self.reward = reward

    def get_reward(self) -> Any:
        return self.reward


class VerifierRaises(Honest):
    def get_reward(self) -> float:
        raise ZeroDivisionError("division by zero")


class VerifierFickle(Honest):
    """Says something else each time it is asked."""

    _asked = itertools.count()

    def get_reward(self) -> Verdict:
        return Verdict(0.0, False, "fickle", evidence={"asked": next(self._asked)})


class SharesState(Honest):
    """A copy that is none."""

    def __deepcopy__(self, memo: dict[int, Any]) -> SharesState:
        twin = type(self)()
        twin.__dict__.update(self.__dict__)  # the list of picked numbers is shared
        return twin


class Uncopyable(Honest):
    def __init__(self) -> None:
        self.lock = threading.Lock()


class NeverEnds(Honest):
    """Takes an empty answer for a question."""

    def _reply(self, text: str) -> str:
        return "And now?"


class RewardsNothing(Honest):
    """Gives a reward to whoever does nothing."""

    def get_reward(self) -> float:
        return 1.0 if not self.picked else super().get_reward()


class OverlappingSplits(Honest):
    @classmethod
    def tasks(cls, split: str):
        return ({"task_id": f"{split}-{goal}", "goal": goal} for goal in range(1, 4))


class StaleReset(Honest):
    """Forgets to forget."""

    def reset(self, goal: int) -> str:
        self.goal, self.picked = goal, getattr(self, "picked", [])
        return f"The goal is {goal}."


class CountsResets(Honest):
    """Tells in its first observation how often it was reset."""

    def reset(self, goal: int) -> str:
        self.resets = getattr(self, "resets", 0) + 1
        return f"{super().reset(goal)} This is game {self.resets}."


class OverAtOnce(Honest):
    """Is over after its reset where there is nothing to pick."""

    def reset(self, goal: int) -> str:
        told = super().reset(goal)
        self.terminated = goal % 2 == 0
        return told


class Earns(Honest):
    """Says after each call that it earned what it is made with."""

    turn_reward: Any = None

    def __init__(self, earned: Any = 2.0) -> None:
        self.earned = earned

    def reset(self, goal: int) -> str:
        self.turn_reward = None
        return super().reset(goal)

    def pick(self, n: int) -> Any:
        """Pick a number.

        Args:
            n: The number, 0 to 9.
        """
        said = super().pick(n)
        self.turn_reward = self.earned
        return said


class EarnsUnsaid(Honest):
    turn_reward = None


class EarnsFickle(Honest):
    _asked = itertools.count(1)

    @property
    def turn_reward(self) -> float:
        return 1 / next(self._asked)


class EarnsTooEarly(Honest):
    """Cannot be asked before it was reset."""

    picked: Any = None

    @property
    def turn_reward(self) -> float:
        return len(self.picked) / 3
