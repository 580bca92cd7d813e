"""The policy as its own critic: it ranks the proposals of a node (AgentQ's self-critique)."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Sequence

from offline_agent.errors import JudgeError
from offline_agent.policies.base import Answer, Engine, Proposals, ProposeRequest
from offline_agent.records import Action, Context

_SYSTEM = (
    "You judge the next step of an agent that works with tools. You are shown what happened so far, as data between "
    "the lines of dashes, and the candidate next steps. Answer with the candidates' numbers from the most to the "
    "least promising, separated by commas, and nothing else."
)


class PolicyCritic:
    """Ranks proposals by asking the policy, the candidates in an order shuffled by the seed.

    The score of a candidate is (K - 1 - rank) / (K - 1), in [0, 1], with rank 0 for the best. An answer that cannot be
    read gives no candidate a score.

    Args:
        engine: The policy's engine.
        max_chars: Characters of the history that are shown; its beginning is cut off.
        wait_seconds: Longest wait for an answer to one request.

    Attributes:
        asked, unreadable: Number of requests, and of rankings that could not be read.
        generated: Number of tokens sampled.
    """

    def __init__(self, engine: Engine, max_chars: int = 6000, wait_seconds: float = 300.0) -> None:
        self._engine = engine
        self._max_chars = max_chars
        self._wait = wait_seconds
        self.asked = 0
        self.unreadable = 0
        self.generated = 0

    def __call__(self, context: Context, actions: Sequence[Action], seed: int) -> list[float | None]:
        """Return one score per action.

        Raises:
            JudgeError: The policy failed or did not answer in time.
        """
        count = len(actions)
        if count < 2:
            return [None] * count  # nothing to rank
        ranking = self._rank(context, actions, random.Random(seed), seed)
        if ranking is None:
            self.unreadable += 1
            return [None] * count
        scores: list[float | None] = [None] * count
        for rank, index in enumerate(ranking):
            scores[index] = (count - 1 - rank) / (count - 1)
        return scores

    def _rank(
        self, context: Context, actions: Sequence[Action], rng: random.Random, seed: int
    ) -> list[int] | None:
        """Return the actions' indices from best to worst; None where the answer cannot be read."""
        order = list(range(len(actions)))
        rng.shuffle(order)
        said = self._ask(context, [actions[i] for i in order], seed)
        return [order[shown] for shown in said] if sorted(said) == list(range(len(order))) else None

    def _ask(self, context: Context, shown: Sequence[Action], seed: int) -> list[int]:
        """Return the positions in `shown` that the policy names, each once."""
        lines = [f"{message['role']}: {_text(message)}" for message in context.messages()]
        history = "\n".join(lines)[-self._max_chars :]
        candidates = "\n".join(f"{i}. {' '.join(action.text.split())}" for i, action in enumerate(shown, 1))
        prompt = f"-----\n{history}\n-----\nCandidates:\n{candidates}\nYour ranking:"
        text = self._answer(Context(context.task, _SYSTEM, (), prompt), seed)
        return list(dict.fromkeys(int(number) - 1 for number in re.findall(r"\d{1,4}", text)))

    def _answer(self, context: Context, seed: int) -> str:
        box: list[Answer] = []
        answered = threading.Event()

        def take(answer: Answer) -> None:
            box.append(answer)
            answered.set()

        self.asked += 1
        self._engine.submit(ProposeRequest(context, (seed,), 0.0), take)
        if not answered.wait(self._wait):
            raise JudgeError(f"the critic did not answer within {self._wait:g} s")
        answer = box[0]
        if not isinstance(answer, Proposals):
            raise JudgeError(f"the critic failed: {answer}") from answer
        self.generated += answer.usage.generated
        return answer.actions[0].text


def _text(message: dict[str, object]) -> str:
    calls = message.get("tool_calls")
    return f"{message.get('content') or ''} {calls if calls else ''}".strip()
