"""The environment of one task as the search uses it: its start, the results of actions, and what is asked of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from offline_agent.errors import EnvironmentFault
from offline_agent.records import Action, Anew, Context, Role, Task, Verdict


class Opening(NamedTuple):
    """The start of a tree: what the policy is shown, the map from an action to its canonical key, and the state.

    Attributes:
        observation, system, tools: Of the start of the episode.
        canonical: Returns the canonical key of an action.
        state: Handle for executing actions.
    """

    observation: str
    system: str
    tools: Sequence[dict[str, Any]]
    canonical: Callable[[Action], str]
    state: Any

    def context(self, task: Task) -> Context:
        """Return the history at the root of the tree."""
        return Context(task, self.system, self.tools, self.observation)


class Outcome(NamedTuple):
    """The result of executing one edge.

    Attributes:
        observation, role: The answer shown to the policy; the observation is None when the episode ended with the
            action.
        terminated: The episode is over.
        fault: Class of the error that answered the call; None when it went through.
        verdict: The end state's verdict where `terminated`.
        fingerprint: Hash of the environment's state, where it offers one.
        goal: The task that the state achieves, as `reset`'s keyword arguments; None where the environment does not say.
        state: Handle for executing further actions.
        anew: How the policy's history goes on; see `records.Anew`.
    """

    observation: str | None
    role: Role
    terminated: bool
    fault: str | None = None
    verdict: Verdict | None = None
    fingerprint: str | None = None
    goal: dict[str, Any] | None = None
    state: Any = None
    anew: Anew | None = None


class ReplayNeeded(EnvironmentFault):
    """A state can only be restored by a replay, of a reset and at most `calls` actions, and `replay` was False."""

    def __init__(self, calls: int) -> None:
        super().__init__(f"the state after {calls} actions must be replayed; allow it with replay=True")
        self.calls = calls


class TaskEnvironment(Protocol):
    """The environment of one task as the search uses it, one per tree; its methods are called from pool threads.

    Attributes:
        one_thread: They must be called from one thread, one after the other.
    """

    @property
    def one_thread(self) -> bool:
        """See the class."""
        ...

    def open(self) -> Opening:
        """Start the episode. Raises EnvironmentFault."""
        ...

    def execute(self, state: Any, action: Action, replay: bool = True) -> Outcome:
        """Execute an action after a state without disturbing that state.

        Args:
            state: The state.
            action: The action.
            replay: Whether actions may be replayed to restore the state; each takes as long as it first did.

        Raises:
            ReplayNeeded: They must be, and `replay` is False; nothing was done.
            EnvironmentFault: The environment broke.
        """
        ...

    def remember(self, state: Any, action: Action, observation: str | None, fingerprint: str | None) -> Any:
        """Return the handle that `execute` gave for this action and observation, without executing anything."""
        ...

    def close(self) -> None:
        """Free everything held."""
        ...
