"""Replays: recorded actions are run again in fresh episodes, what sequences have in common once."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from offline_agent.envs.pool import EnvPool
from offline_agent.errors import EnvironmentFault
from offline_agent.preferences.records import Replay
from offline_agent.records import Action, Step, Task
from offline_agent.search.environment import Outcome
from offline_agent.search.restore import Restorer

if TYPE_CHECKING:
    from offline_agent.envs.base import EnvSpec, Episode

T = TypeVar("T")

_WORLDS = 2  # a tree's own task, and the one that its branches are tried under at present


class BudgetSpent(EnvironmentFault):
    """A replay would take more calls than are left; see `Replayer.left`."""


@dataclass(slots=True, eq=False, repr=False)
class _Reached:
    """A state that replays have reached.

    Attributes:
        outcome: Of the action that led here; of the root, what an episode begins with. It has a verdict once it was
            judged.
        taken: The states that the actions executed after it led to, by name, or what broke.
        same: An earlier state of the same fingerprint.
    """

    outcome: Outcome
    taken: dict[str, _Reached | EnvironmentFault] = field(default_factory=dict)
    same: _Reached | None = None


class _World:
    """The states that replays of one task have reached; made by opening its environment. Raises EnvironmentFault."""

    def __init__(self, task: Task, restorer: Restorer) -> None:
        opening = restorer.open()
        self.task = task
        self.restorer = restorer
        self.canonical = opening.canonical
        self.context = opening.context(task)
        self.merged = False
        self._known: dict[str, _Reached] = {}
        self.root = self.reached(restorer.judge(opening.state))

    def name(self, action: Action) -> str:
        """Return a key that tells actions apart by their effect; unlike canonical keys, also for faulty actions."""
        key = self.canonical(action)
        return f"{key}\n{action.text}\n{action.detail}" if key.startswith("!") else key

    def reached(self, outcome: Outcome) -> _Reached:
        """Return the state that an action led to, with the first one that has its fingerprint."""
        reached, fingerprint = _Reached(outcome), outcome.state.fingerprint
        if not outcome.terminated and fingerprint is not None:
            same = self._known.setdefault(fingerprint, reached)
            if same is not reached:
                reached.same, self.merged = same, True
        return reached

    def distance(self, here: _Reached) -> int:
        """Return how many actions are replayed before the next one can be executed after a state."""
        return self.restorer.distance(here.outcome.state)


class Replayer:
    """Replays sequences of actions; what they have in common is executed once.

    The states that were reached are kept as copies where the environment can be copied, so that a sequence costs only
    the actions after the nearest kept state. Where it cannot be copied a sequence begins with a reset, unless it goes
    on from the state reached last. A state that must be reached again has to show what it showed before.

    Args:
        spec: The environment. One that is dear to start (`replay_only`) is kept and reset, over all tasks.
        seconds: Time limit of each action of a replay; the world of one that takes longer is abandoned. None = no
            limit.
        reset_seconds: Time limit of opening and resetting it; None = that of an action.
        live_states: Most copies kept of one task; 0 = none is made. One where the environment cannot be copied.

    Attributes:
        count: Number of replays that executed anything.
        tool_calls: Number of actions executed.
        left: Number of actions that may still be executed; None = without limit.
        left_out: Number of replays that were not run, or not to their end, for want of them.
    """

    def __init__(
        self, spec: EnvSpec, seconds: float | None = 60.0, reset_seconds: float | None = None, live_states: int = 64
    ) -> None:
        self._spec = spec
        self._reset_seconds = reset_seconds
        self._live_states = 1 if spec.replay_only else live_states
        self._worlds: list[_World] = []  # the one used last at the end
        self._spare: list[Episode] = []
        self._pool = EnvPool(0 if seconds is None else 1, seconds, sys.maxsize)  # a hang costs its replay alone
        self._lane = self._pool.lane(own_thread=True)
        self.count = 0
        self.tool_calls = 0
        self.left: int | None = None
        self.left_out = 0

    def begin(self, calls: int | None) -> None:
        """Forget what was reached so far, and allow so many calls from here on; None = without limit."""
        self.left = calls
        while self._worlds:
            self._lane.result(self._worlds.pop().restorer.close)  # a failure changes nothing that was recorded

    @contextlib.contextmanager
    def sparing(self, share: float) -> Iterator[None]:
        """Keep a share of the calls that are left from what runs inside."""
        kept = 0 if self.left is None else int(share * self.left)
        if self.left is not None:
            self.left -= kept
        yield
        if self.left is not None:
            self.left += kept

    def run(self, task: Task, actions: Sequence[Action]) -> Replay:
        """Take the actions from the start of `task` until they are used up or the episode is over.

        Raises:
            BudgetSpent: More calls are needed than are left; none was made.
            EnvironmentFault: The environment broke, ran past the time limit, or answered differently than before.
        """
        replay = self._run(task, actions, False, None)
        assert replay is not None  # any fault is allowed
        return replay

    def attempt(self, task: Task, actions: Sequence[Action], faulty: Sequence[bool]) -> Replay | None:
        """Do as `run`, but as cheaply as can be: the answer is only as good as the environment's fingerprint.

        A state stands for every other one of the same fingerprint, and the replay ends where an action that is not
        among the `faulty` ones is answered with an error.

        Args:
            task: The task.
            actions: The actions.
            faulty: bool [actions], whether an action may be answered with an error.

        Returns:
            The replay; None where it ended that way.

        Raises:
            BudgetSpent, EnvironmentFault: As `run`.
        """
        return self._run(task, actions, True, faulty)

    def close(self) -> None:
        """Close what is kept open, and end the thread."""
        self.begin(None)
        while self._spare:
            self._lane.result(self._spare.pop().close)
        self._pool.close()

    def _run(self, task: Task, actions: Sequence[Action], merge: bool, faulty: Sequence[bool] | None) -> Replay | None:
        world = self._world(task)
        before = self.tool_calls
        try:
            if not merge:
                self._afford(world, actions)
            # What was found with the help of fingerprints is run once without.
            reserve = len(actions) if merge and world.merged else 0
            here, context = world.root, world.context
            steps: list[Step] = []
            for at, action in enumerate(actions):
                if here.outcome.terminated:
                    break
                here = self._take(world, here, action, merge, reserve)
                outcome = here.outcome
                if faulty is not None and outcome.fault is not None and not faulty[at]:
                    return None
                key = world.canonical(action)
                steps.append(Step(action, key, outcome.observation, outcome.role, outcome.fault, anew=outcome.anew))
                context = context.child(action, outcome.observation, outcome.role, anew=outcome.anew)
            return Replay(context, tuple(steps), self._judged(world, here, reserve), world.root.outcome)
        except BudgetSpent:
            self.left_out += 1
            raise
        finally:
            self.count += self.tool_calls > before

    def _afford(self, world: _World, actions: Sequence[Action]) -> None:
        """Raise BudgetSpent where all of the actions together need more calls than are left: none is made in vain."""
        if self.left is None:
            return
        here, known = world.root, 0
        for action in actions:
            taken = here.taken.get(world.name(action))
            if here.outcome.terminated or isinstance(taken, EnvironmentFault):
                return
            if taken is None:
                break
            here, known = taken, known + 1
        if known < len(actions) or here.outcome.verdict is None:
            self._check(len(actions) - known + world.distance(here))

    def _check(self, calls: int) -> None:
        if self.left is not None and calls > self.left:
            raise BudgetSpent(f"a replay needs {calls} calls, and pairs.replay_budget leaves {self.left}")

    def _take(self, world: _World, here: _Reached, action: Action, merge: bool, reserve: int) -> _Reached:
        """Return the state after an action: a known one, or, with `merge`, one of a state of the same fingerprint."""
        name, same = world.name(action), here.same if merge else None
        taken = here.taken.get(name)
        if taken is None and same is not None:
            here, taken = same, same.taken.get(name)
        if taken is None:
            calls = 1 + world.distance(here)
            self._check(calls + reserve)
            self._spend(calls)
            try:
                job = partial(world.restorer.execute, here.outcome.state, action)
                taken = world.reached(self._limited(world.restorer, job, calls))
            except EnvironmentFault as error:
                taken = error
            here.taken[name] = taken
        if isinstance(taken, EnvironmentFault):
            raise taken.with_traceback(None)
        return taken

    def _judged(self, world: _World, here: _Reached, reserve: int) -> Outcome:
        if here.outcome.verdict is None:
            calls = world.distance(here)
            self._check(calls + reserve)
            self._spend(calls)
            job = partial(world.restorer.judge, here.outcome.state)
            judged = self._limited(world.restorer, job, calls)
            here.outcome = here.outcome._replace(verdict=judged.verdict, goal=judged.goal)
        return here.outcome

    def _spend(self, calls: int) -> None:
        self.tool_calls += calls
        if self.left is not None:
            self.left -= calls

    def _world(self, task: Task) -> _World:
        if self._worlds and self._worlds[-1].task != task and self._spec.replay_only:
            self._lane.result(self._worlds[-1].restorer.park)  # one episode is enough: another may be dear to start
        for world in self._worlds:
            if world.task == task:
                self._worlds.remove(world)
                self._worlds.append(world)
                return world
        while len(self._worlds) >= _WORLDS:
            self._lane.result(self._worlds.pop(0).restorer.close)
        live = self._live_states
        restorer = Restorer(self._spec, task, live, spare=self._spare, copies=live > 0)
        try:
            self._worlds.append(self._limited(restorer, partial(_World, task, restorer), 0))
        except EnvironmentFault:
            self._lane.submit(restorer.close, _ignore)
            raise
        return self._worlds[-1]

    def _limited(self, restorer: Restorer, job: Callable[[], T], calls: int) -> T:
        """Return a job's result; its limit is that of a reset and so many calls, beyond which its world is given up."""
        hung = self._pool.hung
        answer = self._lane.result(job, self._pool.limit_of(self._reset_seconds, calls))
        if not isinstance(answer, EnvironmentFault):
            return answer  # type: ignore[no-any-return]
        if self._pool.hung > hung:  # the job may hold what the restorer needs, for ever
            self._worlds = [world for world in self._worlds if world.restorer is not restorer]
            self._lane.submit(restorer.close, _ignore)
        raise answer


def _ignore(result: Any) -> None:
    """Ignore the result of closing an environment: a failure changes nothing that was recorded."""
