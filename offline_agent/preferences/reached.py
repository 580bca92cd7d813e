"""The states of one task that replays have reached, and the actions that were executed after each."""

from __future__ import annotations

from offline_agent.errors import EnvironmentFault
from offline_agent.records import Action, Context, Task, Verdict
from offline_agent.search.restore import EnvState, Outcome, Restorer


class Taken:
    """An action that was executed after a state: what answered it, and the state it led to."""

    __slots__ = ("outcome", "to")

    def __init__(self, outcome: Outcome, to: Reached) -> None:
        self.outcome = outcome
        self.to = to


class Reached:
    """A state that a replay has reached.

    Attributes:
        state: The restorer's handle.
        terminated: The episode is over.
        verdict: None where nobody asked yet.
        taken: The actions executed after it by name, or what broke.
        same: An earlier state of the same fingerprint.
    """

    __slots__ = ("state", "terminated", "verdict", "taken", "same")

    def __init__(self, state: EnvState, terminated: bool = False, verdict: Verdict | None = None) -> None:
        self.state = state
        self.terminated = terminated
        self.verdict = verdict
        self.taken: dict[str, Taken | EnvironmentFault] = {}
        self.same: Reached | None = None

    def find(self, name: str, merge: bool) -> Taken | EnvironmentFault | None:
        """Return the known result of an action here, or, with `merge`, in a state of the same fingerprint."""
        taken = self.taken.get(name)
        return self.same.taken.get(name) if taken is None and merge and self.same is not None else taken


class World:
    """The states that replays of one task have reached."""

    def __init__(self, task: Task, restorer: Restorer) -> None:
        self.task = task
        self.restorer = restorer
        self.merged = False
        self._known: dict[str, Reached] = {}

    def open(self) -> bool:
        """Reset an episode and have its start judged; return True. Raises EnvironmentFault."""
        opening = self.restorer.open()
        judged = self.restorer.judge(opening.state)
        self.canonical = opening.canonical
        self.context = Context(self.task, opening.system, opening.tools, opening.observation)
        self.goal = judged.goal
        self.root = Reached(opening.state, judged.terminated, judged.verdict)
        self._note(self.root)
        return True

    def name(self, action: Action) -> str:
        """Return a key that tells actions apart by their effect; unlike canonical keys, also for faulty actions."""
        key = self.canonical(action)
        return f"{key}\n{action.text}\n{action.detail}" if key.startswith("!") else key

    def reached(self, outcome: Outcome) -> Reached:
        """Return the state that an action led to."""
        reached = Reached(outcome.state, outcome.terminated, outcome.verdict)
        if not outcome.terminated:
            self._note(reached)
        return reached

    def _note(self, reached: Reached) -> None:
        fingerprint = reached.state.fingerprint
        if fingerprint is not None:
            same = self._known.setdefault(fingerprint, reached)
            if same is not reached:
                reached.same, self.merged = same, True
