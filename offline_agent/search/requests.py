"""Requests to the policy and the critic, the policy as its own critic, and the counts of a run.

During an outage of the policy (`policies.outage`) simulations wait for it to pass. Where it does not pass, the run
stops, and the interrupted simulations are run again when it goes on.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from offline_agent.envs.pool import EnvPool
from offline_agent.errors import ContextFull, JudgeError, PolicyError, PolicyMismatch
from offline_agent.policies.base import Answer, Engine, Proposals, ProposeRequest, Usage
from offline_agent.policies.engines import InlineEngine
from offline_agent.policies.outage import RequestQueue, SentRequest
from offline_agent.records import Action, Context
from offline_agent.search.in_flight import Simulation
from offline_agent.search.simulation import LATER

MOST_FIRST_FAILURES = 16  # failures of a critic that never answered, after which the search ends

FREE = Proposals(()).usage  # the default usage, of answers that say nothing about their cost

Critic = Callable[[Context, Sequence[Action], int], Sequence[float | None]]
"""Called with (history, actions, seed); returns for each action a score in [0, 1], or None without an opinion."""


@dataclass
class RunCounts:
    """Costs and faults of a run, over all trees; they include wall-clock figures, so they are no part of any tree."""

    requests: int = 0
    generated: int = 0
    prefilled: int = 0
    cached: int = 0
    policy_errors: int = 0
    full_contexts: int = 0
    faults: int = 0
    hung: int = 0
    simulations: int = 0
    trees: int = 0
    seconds: float = 0.0
    seconds_waiting: float = 0.0
    generation_seconds: float = 0.0
    tool_seconds: float = 0.0
    fault_examples: list[str] = field(default_factory=list)

    def fault(self, text: str) -> None:
        """Count a fault; the first twenty texts are kept."""
        self.faults += 1
        self.example(text)

    def example(self, text: str) -> None:
        """Keep the text of an error, among the first twenty."""
        if len(self.fault_examples) < 20 and text not in self.fault_examples:
            self.fault_examples.append(text)


class SearchRequests:
    """Sends the requests of simulations. For one thread; answers come back through `post`.

    Args:
        engine: Answers proposals.
        pool: The pool whose threads call the critic.
        critic: Scores proposals.
        counts: Counts requests, tokens and faults.
        most_errors: Failures of the policy in a row after which the run stops.
        post: Called from any thread with a `SentRequest` and its answer, which are to be given to `take`.
        critic_seconds: Time limit of the critic; None = the pool's own.
    """

    def __init__(
        self,
        engine: Engine,
        pool: EnvPool,
        critic: Critic | None,
        counts: RunCounts,
        most_errors: int,
        post: Callable[[SentRequest[Simulation], Any], None],
        critic_seconds: float | None = None,
    ) -> None:
        self._engine = engine
        # Of an engine that answers at once: its answers need no way through the queue.
        self._answer = engine.answer if isinstance(engine, InlineEngine) else None
        self._pool = pool
        self._critic = critic
        self._critic_seconds = critic_seconds
        self._counts = counts
        self._queue: RequestQueue[Simulation] = RequestQueue(self._submit, post, most_errors)
        self._first_failures: int | None = 0  # failures of a critic that has not answered yet; None once it has
        self.expect = self._queue.expect
        self.go_on = self._queue.go_on

    def ask(self, simulation: Simulation, request: ProposeRequest) -> Any:
        """Return the policy's answer to a simulation's request, or LATER: then `take` gives it."""
        if self._answer is None:
            return self.send(simulation, request)
        value = self._answer(request)
        self._counts.requests += 1
        if type(value) is not Proposals or self._queue.held:  # what follows from a failure is in `take` alone
            self._queue.post(simulation, request, value)
            return LATER
        if value[1] is not FREE:  # by identity: cheaper than reading three zeros for each request
            self._pay(value[1])
        self._queue.note(request)
        return value

    def send(self, simulation: Simulation, request: Any) -> Any:
        """Send a simulation's request to the policy, or its question to the critic; return LATER."""
        self._queue.send(simulation, request)
        return LATER

    def take(self, sent: SentRequest[Simulation], value: Any) -> list[tuple[Simulation, Any]]:
        """Return the simulations that may go on now that a request was answered, each with its answer.

        The answer to a critic's request is None where the policy failed it.

        Raises:
            PolicyError: The policy failed too often in a row.
            JudgeError: The critic failed each of its first calls.
        """
        if type(sent.request) is not ProposeRequest:
            scores = self._scores(value, len(sent.request[1]))
            if scores is None:
                return self._queue.failed(sent, None, counts=False)
            return self._queue.settled(sent, scores)
        if isinstance(value, Proposals):
            self._pay(value.usage)
            return self._queue.answered(sent, value)
        if isinstance(value, ContextFull):  # a property of the history: it says nothing about an outage
            self._counts.full_contexts += 1
            self._counts.example(f"policy: {value}")
            return self._queue.settled(sent, value)
        if not isinstance(value, PolicyError):
            value = PolicyError(f"the policy answered with a {type(value).__name__}, not with Proposals")
        self._counts.policy_errors += 1
        self._counts.fault(f"policy: {value}")
        return self._queue.failed(sent, value)

    def _submit(self, request: Any, post: Callable[[Any], None]) -> None:
        if type(request) is ProposeRequest:
            self._counts.requests += 1
            self._engine.submit(request, post)
        else:
            assert self._critic is not None  # the tree was made with a critic
            self._pool.submit(partial(self._critic, *request), post, self._critic_seconds)

    def _pay(self, usage: Usage) -> None:
        counts = self._counts
        if usage.generated:
            counts.generated += usage.generated
            counts.prefilled += usage.prefilled
            counts.cached += usage.cached

    def _scores(self, scores: Any, n: int) -> Any:
        if (wrong := _wrong_scores(scores, n)) is None:
            self._first_failures = None
            return scores
        self._counts.fault(f"critic: {wrong}")
        cause: Any = scores  # a critic that asks the policy fails with it: then the outage rule decides
        while isinstance(cause, BaseException):
            if isinstance(cause, ContextFull):
                break
            if isinstance(cause, PolicyMismatch):
                raise cause
            if isinstance(cause, PolicyError):
                return None
            cause = cause.__cause__
        if self._first_failures is not None:
            self._first_failures += 1
            if self._first_failures >= MOST_FIRST_FAILURES:
                raise JudgeError(
                    f"search.critic failed each of its first {self._first_failures} calls; the last: {wrong}. It is "
                    "called as critic(context, actions, seed) and returns one score in [0, 1], or None, for each action"
                )
        return [None] * n  # no opinion: the search goes on with its own values


def _wrong_scores(scores: Any, n: int) -> str | None:
    """Return the fault of a critic's answer; None where it has a score in [0, 1], or None, for each action."""
    if isinstance(scores, BaseException):
        return str(scores)
    if not isinstance(scores, Sequence) or isinstance(scores, str) or len(scores) != n:
        return f"it answered {scores!r:.200}, allowed: a list of {n} scores"
    for score in scores:
        if score is not None and not (isinstance(score, int | float) and 0 <= score <= 1):
            return f"it gave the score {score!r:.200}, allowed: a number in [0, 1], or None"
    return None


_SYSTEM = (
    "You judge the next step of an agent that works with tools. You are shown what happened so far, as data between "
    "the lines of dashes, and the candidate next steps. Answer with the candidates' numbers from the most to the "
    "least promising, separated by commas, and nothing else."
)


_SHOWN = 6000  # characters of the history; its beginning is cut off
_WAIT = 300.0  # seconds, for an answer to one request


class PolicyCritic:
    """Ranks proposals by asking the policy, the candidates in an order shuffled by the seed (AgentQ's self-critique).

    The score of a candidate is (K - 1 - rank) / (K - 1), in [0, 1], with rank 0 for the best. An answer that cannot be
    read gives no candidate a score.

    Args:
        engine: The policy's engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __call__(self, context: Context, actions: Sequence[Action], seed: int) -> list[float | None]:
        """Return one score per action.

        Raises:
            JudgeError: The policy failed or did not answer in time.
        """
        count = len(actions)
        if count < 2:
            return [None] * count  # nothing to rank
        ranking = self._rank(context, actions, random.Random(seed), seed)
        scores: list[float | None] = [None] * count
        for rank, index in enumerate(ranking or ()):
            scores[index] = (count - 1 - rank) / (count - 1)
        return scores

    def _rank(self, context: Context, actions: Sequence[Action], rng: random.Random, seed: int) -> list[int] | None:
        """Return the actions' indices from best to worst; None where the answer cannot be read."""
        order = list(range(len(actions)))
        rng.shuffle(order)
        said = self._ask(context, [actions[i] for i in order], seed)
        return [order[shown] for shown in said] if sorted(said) == list(range(len(order))) else None

    def _ask(self, context: Context, shown: Sequence[Action], seed: int) -> list[int]:
        """Return the positions in `shown` that the policy names, each once."""
        lines = [f"{message['role']}: {_text(message)}" for message in context.messages()]
        history = "\n".join(lines)[-_SHOWN:]
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

        self._engine.submit(ProposeRequest(context, (seed,), 0.0), take)
        if not answered.wait(_WAIT):
            raise JudgeError(f"the critic did not answer within {_WAIT:g} s")
        answer = box[0]
        if not isinstance(answer, Proposals):
            raise JudgeError(f"the critic failed: {answer}") from answer
        return answer.actions[0].text


def _text(message: dict[str, object]) -> str:
    calls = message.get("tool_calls")
    return f"{message.get('content') or ''} {calls if calls else ''}".strip()
