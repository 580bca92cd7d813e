"""Where simulations ask policy and critic; it tells an outage of the policy from a request that it cannot answer.

A failure is handed to its simulation only where the policy has answered something else since the request was sent.
Until then it is held back; once nothing else is under way, what is held back is sent again, beside a request that the
policy has answered before. So an outage either passes, and has changed nothing, or ends the run before anything of it
is in a tree: what it interrupted is simulated when the run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from offline_agent.errors import PolicyError
from offline_agent.policies.base import Engine, Proposals, ProposeRequest
from offline_agent.records import Action, Context
from offline_agent.search.pool import EnvPool
from offline_agent.search.simulation import ASK
from offline_agent.search.ticket import Request, Ticket
from offline_agent.seeding import mix

FREE = Proposals(()).usage  # of answers that say nothing about their cost

Critic = Callable[[Context, Sequence[Action], int], Sequence[float | None]]
"""Scores each action in [0, 1], or None where it has no opinion; the last argument is a seed."""


@dataclass
class RunCounts:
    """What a run cost and met, over all trees; wall-clock figures included, so it is not part of any tree."""

    requests: int = 0
    generated: int = 0
    prefilled: int = 0
    cached: int = 0
    policy_errors: int = 0
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
        if len(self.fault_examples) < 20 and text not in self.fault_examples:
            self.fault_examples.append(text)


class Sent:
    """A request under way.

    Attributes:
        ticket: Who asked; None = nobody, it shows whether the policy answers.
        request: What was asked, `ASK` or `CRITICISE`.
        answers: How many answers had come when it was sent.
    """

    __slots__ = ("answers", "request", "ticket")

    def __init__(self, ticket: Ticket | None, request: Request, answers: int) -> None:
        self.ticket = ticket
        self.request = request
        self.answers = answers


class Desk:
    """See the module. For one thread; answers come back to it through `post`.

    Args:
        engine: Answers proposals.
        pool: Where the critic is called.
        critic: Scores proposals.
        counts: Takes what is asked, and what comes of it.
        most_errors: Failures of the policy in a row after which the run stops.
        post: Takes a `Sent` and its answer, from any thread; they are to be given to `take`.
    """

    def __init__(
        self,
        engine: Engine,
        pool: EnvPool,
        critic: Critic | None,
        counts: RunCounts,
        most_errors: int,
        post: Callable[[Sent, Any], None],
    ) -> None:
        self._engine = engine
        self._pool = pool
        self._critic = critic
        self._counts = counts
        self._most_errors = most_errors
        self._post = post
        self._known: ProposeRequest | None = None
        self._answers = self._under_way = self._errors_in_a_row = 0
        self._held: list[tuple[Sent, Any]] = []
        self._last_error = ""

    def expect(self, request: ProposeRequest) -> None:
        """Take a request for one that the policy can answer, as long as it has not answered any."""
        if self._known is None:
            self._known = request

    def send(self, ticket: Ticket | None, request: Request) -> None:
        """Put a question of a ticket to the policy or the critic."""
        post = partial(self._post, Sent(ticket, request, self._answers))
        self._under_way += 1
        if request[0] == ASK:
            self._counts.requests += 1
            self._engine.submit(request[1], post)
        else:
            assert self._critic is not None  # the tree was made with a critic
            self._pool.submit(partial(self._critic, *request[1:]), post)

    def take(self, sent: Sent, value: Any) -> list[tuple[Ticket, Any]]:
        """Return what may be handed on, now that a request was answered.

        To a critic's request, None is handed on where the policy failed it.

        Raises:
            PolicyError: The policy failed too often in a row.
        """
        self._under_way -= 1
        free: list[tuple[Ticket, Any]] = []
        if sent.request[0] == ASK:
            value = self._note(value)
            failed = type(value) is not Proposals
            if not failed:
                self._answers += 1
                self._known = sent.request[1]
                free, self._held = [(held.ticket, fault) for held, fault in self._held if held.ticket is not None], []
        else:
            value = self._scores(value, len(sent.request[2]))
            failed = value is None
        if failed and sent.answers == self._answers:
            self._held.append((sent, value))
        elif sent.ticket is not None:
            free.append((sent.ticket, value))
        return free

    def go_on(self) -> None:
        """Ask again what is held back where nothing is under way that could show whether the policy answers."""
        if not self._held or self._under_way:
            return
        held, self._held = self._held, []
        for sent, _ in held:
            if sent.ticket is not None:
                self.send(sent.ticket, sent.request)
        self.send(None, (ASK, self._probe()))

    def at_once(self, answer: Callable[[ProposeRequest], Any]) -> Callable[[ProposeRequest], Any]:
        """Return a call that asks an engine that answers at once; it raises as `take`."""
        counts = self._counts

        def ask(request: ProposeRequest) -> Any:
            counts.requests += 1
            value = answer(request)
            if type(value) is not Proposals:
                value = self._note(value)
                while True:
                    counts.requests += 1
                    if type(self._note(answer(self._probe()))) is Proposals:
                        return value
            if value[1] is not FREE:
                self._note(value)
            self._known = request
            return value

        return ask

    def _probe(self) -> ProposeRequest:
        """Return a request that a policy that is there answers; each with another seed."""
        assert self._known is not None  # a tree was opened
        return self._known._replace(seeds=(mix(self._known.seeds[0], self._errors_in_a_row),))

    def _note(self, answer: Any) -> Any:
        """Count an answer; return it, or the failure that it is."""
        counts = self._counts
        if type(answer) is Proposals:
            self._errors_in_a_row = 0
            usage = answer.usage
            if usage.generated:
                counts.generated += usage.generated
                counts.prefilled += usage.prefilled
                counts.cached += usage.cached
            return answer
        if not isinstance(answer, PolicyError):
            answer = PolicyError(f"the policy answered with a {type(answer).__name__}, not with Proposals")
        counts.policy_errors += 1
        self._errors_in_a_row += 1
        self._last_error = str(answer)
        counts.fault(f"policy: {answer}")
        if self._errors_in_a_row >= self._most_errors:
            raise PolicyError(
                f"the policy failed {self._errors_in_a_row} times in a row, the last time with: {self._last_error}. "
                "Nothing is lost: run the same command again to go on"
            )
        return answer

    def _scores(self, scores: Any, n: int) -> Any:
        if not isinstance(scores, Exception) and len(scores) == n:
            return scores
        self._counts.fault(f"critic: {scores}")
        cause: Any = scores
        while isinstance(cause, BaseException):
            if isinstance(cause, PolicyError):
                return None
            cause = cause.__cause__
        return [None] * n  # no opinion: the search goes on with its own values
