"""One error class per boundary; a foreign error is wrapped once, with its cause."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class OfflineAgentError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigError(OfflineAgentError):
    """A request that cannot be carried out as written. Carries every fault found, not just the first.

    Args:
        faults: One readable line per fault: what, got, allowed, how to mend.
    """

    def __init__(self, faults: str | Sequence[str]) -> None:
        self.faults: tuple[str, ...] = (faults,) if isinstance(faults, str) else tuple(faults)
        super().__init__("\n".join(self.faults))


class EnvironmentFault(OfflineAgentError):
    """The environment broke (raised, hung, answered differently on replay); says nothing of the policy."""


class PolicyError(OfflineAgentError):
    """The policy's back end broke; a badly formed action is not an error but an `Action` with a fault."""


class JudgeError(OfflineAgentError):
    """A scorer could not score. The score is None, never 0."""


class DataError(OfflineAgentError):
    """An artifact is missing, torn, corrupted, from another version, or fails its certificate."""


class TrainingError(OfflineAgentError):
    """Training cannot go on without doing damage."""


def did_you_mean(got: str, allowed: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` for the nearest allowed name, or an empty string when none is near."""
    near = get_close_matches(got, list(allowed), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""
