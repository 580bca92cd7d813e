"""The contract of a policy: propose n actions for each of many contexts, score given ids; outages of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from offline_agent.errors import PolicyError, PolicyMismatch
from offline_agent.records import Action, Context
from offline_agent.seeding import mix

if TYPE_CHECKING:
    from offline_agent.rendering.renderer import Renderer


DEFAULT_MODEL = Path(__file__).parents[1] / "assets" / "default_model"
"""The folder of the model that comes with the package: a policy or trainer without a model uses it."""


class ProposeRequest(NamedTuple):
    """A request for `len(seeds)` actions after one history.

    Attributes:
        context: The history.
        seeds: One per sample, each in [0, 2**63): sample i depends on (context, seeds[i], temperature) alone.
        temperature: 0 = greedy; None = the policy's own.
        max_tokens: Cap on the sampled ids of each action; None = the policy's own.
    """

    context: Context
    seeds: tuple[int, ...]
    temperature: float | None = None
    max_tokens: int | None = None


class Usage(NamedTuple):
    """Token counts of one request: sampled, prefilled (prompt tokens computed), and cached (prompt tokens reused)."""

    generated: int = 0
    prefilled: int = 0
    cached: int = 0


class Proposals(NamedTuple):
    """The answer to a `ProposeRequest`: one action per seed, in the order of the seeds."""

    actions: tuple[Action, ...]
    usage: Usage = Usage()


Answer = Proposals | PolicyError
Done = Callable[[Answer], None]


class Policy(Protocol):
    """The extension point. `offline_agent.policies.conformance` checks an implementation.

    Attributes:
        name: Short name for tables and manifests.
        renderer: The policy's renderer, or None where it has no tokenizer.
        batch_invariant: True where an answer does not depend on what else is in the batch, bit for bit.
        max_tokens: The most ids one action may have; 0 for a policy without tokens. Budgets reserve it.
        identity: JSON-serialisable facts for the manifest (kind, model hash, temperature, …).

    Optional: `free_arguments`, names of constructor arguments that may differ when a run is resumed, because answers do
    not depend on them; `memory()`, bytes held in this process, as `HFPolicy.memory`; and `evidence()`, facts that show
    that the model is still the same (see `server.ServerPolicy`).
    """

    name: str
    renderer: Renderer | None
    batch_invariant: bool
    max_tokens: int
    identity: dict[str, object]

    def propose(self, requests: Sequence[ProposeRequest]) -> list[Answer]:
        """Return one answer per request, in order. A request that fails gets a `PolicyError`; the others are answered.

        A history that leaves no room for another action gets `ContextFull`: a failure of the policy, not an outage.
        """
        ...

    def score(self, context: Context, actions: Sequence[Sequence[int]]) -> list[tuple[float, ...]]:
        """Return the per-token log-probabilities (T = 1) of each given id sequence after `context`.

        Raises:
            PolicyError: The policy cannot score.
        """
        ...

    def engine(self) -> Engine:
        """Return a running engine over this policy; the caller closes it."""
        ...

    def close(self) -> None:
        """Free what the policy holds."""
        ...


class Engine(Protocol):
    """A policy as a queue: requests are submitted at any time; callbacks get the answers, from any thread.

    Attributes:
        busy_seconds: Seconds in which at least one request was being answered.
    """

    busy_seconds: float

    def submit(self, request: ProposeRequest, done: Done) -> None:
        """Queue a request; `done` is called exactly once with its answer, possibly before this method returns."""
        ...

    def close(self) -> None:
        """Stop; requests still queued are answered with a `PolicyError`."""
        ...


def as_policy_error(error: Exception) -> PolicyError:
    """Return `error` itself if it is a `PolicyError`, else one that names it and has it as its cause."""
    if isinstance(error, PolicyError):
        return error
    wrapped = PolicyError(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


T = TypeVar("T")


class Outage(Generic[T]):
    """Failures in a row, and failures that are held back: an outage is no request that the policy cannot answer.

    A failure is reported to its caller only if the policy has answered another request since the failed one was
    sent. Until then it is held back. If no other request is in flight, the held requests are sent again, together
    with a request that the policy has answered before. So an outage either ends without any effect on the results,
    or it ends the run before any failure gets into the results. A `PolicyMismatch` is no outage: it ends the run at
    once.
    Used by one thread; it sends no request itself.

    Args:
        most: Failures in a row after which an error is raised.

    Attributes:
        answers: Number of answers so far; the sender of a request notes it with the request.
        known: A request that the policy has answered, or should be able to answer; None where there is none yet.
    """

    def __init__(self, most: int) -> None:
        self.answers = 0
        self.known: ProposeRequest | None = None
        self._most = most
        self._failures = 0
        self._held: list[T] = []

    def expect(self, request: ProposeRequest) -> None:
        """Use a request as `known` while the policy has not answered any request."""
        if self.known is None:
            self.known = request

    def __len__(self) -> int:
        """Return the number of failures that are held back."""
        return len(self._held)

    def answered(self, request: ProposeRequest) -> list[T]:
        """Record an answer and return the held failures, which may be reported now."""
        self.answers += 1
        self._failures, self.known = 0, request
        return self.release()

    def failed(self, fault: object) -> None:
        """Record a failure.

        Raises:
            PolicyError: The policy failed too often in a row, or the failure is a `PolicyMismatch`.
        """
        if isinstance(fault, PolicyMismatch):
            raise fault
        self._failures += 1
        if self._failures >= self._most:
            raise PolicyError(
                f"the policy failed {self._failures} times in a row, the last time with: {fault}. "
                "Nothing is lost: run the same command again to go on"
            )

    def holds(self, failure: T, answers: int) -> bool:
        """Hold a failure back if no request was answered since `answers` was noted; return whether it is held."""
        if answers == self.answers:
            self._held.append(failure)
        return answers == self.answers

    def release(self) -> list[T]:
        """Return the held failures and hold them no longer."""
        held, self._held = self._held, []
        return held

    def probe(self) -> ProposeRequest | None:
        """Return `known` with a new seed after each failure; a policy that works answers it."""
        known = self.known
        return known and known._replace(seeds=(mix(known.seeds[0], self._failures),))

    def forget(self) -> None:
        """Drop the held failures and the count of failures."""
        self._held, self._failures = [], 0
