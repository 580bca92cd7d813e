"""The contract of a policy: propose n actions for each of many contexts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from offline_agent.errors import ConfigError, PolicyError
from offline_agent.records import Action, Context

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
    """The extension point. `tests/contract/test_policies.py` checks an implementation.

    Attributes:
        name: Short name for tables and manifests.
        renderer: The policy's renderer, or None where it has no tokenizer.
        batch_invariant: True where an answer does not depend on what else is in the batch, bit for bit.
        max_tokens: The most ids one action may have; 0 for a policy without tokens. Budgets reserve it.
        identity: JSON-serialisable facts for the manifest (kind, model hash, temperature, …).

    Optional: `free_arguments`, names of constructor arguments that may differ when a run is resumed, because answers do
    not depend on them; and `evidence()`, facts that show that the model is the same (see `server.policy.ServerPolicy`).
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


def check_least(**given: float | None) -> None:
    """Raise ConfigError with every argument of a policy that is below 1; `temperature` and `cache_bytes` may be 0."""
    faults = []
    for name, value in given.items():
        least = 0 if name in ("temperature", "cache_bytes") else 1
        if value is not None and value < least:
            faults.append(f"policy.{name}: got {value!r}, allowed: {least} or more")
    if faults:
        raise ConfigError(faults)
