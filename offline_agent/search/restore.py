"""Restoring: an environment is brought back to a state of the tree, by a copy or by a checked replay.

It knows environments and states, but no nodes, values or policies.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from offline_agent.envs.base import EnvSpec, Episode
from offline_agent.envs.play import ReplayMismatch, execute, repeat
from offline_agent.errors import EnvironmentFault
from offline_agent.records import Action, Task
from offline_agent.search.environment import Opening, Outcome, ReplayNeeded


@dataclass(slots=True, eq=False, repr=False)
class EnvState:
    """One state of an environment: the action that led to it, what it showed, and perhaps a live copy.

    Attributes:
        parent: The state one action earlier; None at the start of an episode.
        action: The action that led here; None at the start.
        observation: The observation seen here.
        fingerprint: The environment's hash of its state; None where it offers none.
        depth: Number of actions since the start.
        episode: A live environment in this state that nothing else uses; None where it must be restored.
    """

    parent: EnvState | None
    action: Action | None
    observation: str | None
    fingerprint: str | None
    depth: int = field(init=False)
    episode: Episode | None = None

    def __post_init__(self) -> None:
        self.depth = 0 if self.parent is None else self.parent.depth + 1


@dataclass
class RestoreCounts:
    """Costs of restoring, over all trees that share it: calls executed, calls replayed, copies, resets, mismatches."""

    executed: int = 0
    replayed: int = 0
    copies: int = 0
    resets: int = 0
    mismatches: int = 0


class Restorer:
    """The `TaskEnvironment` of an environment class.

    Where the environment can be copied, each edge costs one tool call: the parent's state is copied and the copy is
    stepped. Where it cannot be copied, or the state was evicted, actions are replayed from the nearest live ancestor
    (or a fresh episode), and each observation and fingerprint is compared with the recorded one.

    Args:
        spec: The environment.
        task: The task.
        live_states: Most live environments kept; the least recently used is closed first.
        counts: Shared counters.
        spare: Episodes of a `replay_only` environment that wait to be reset, shared with other restorers and closed by
            the owner of the list; None = this restorer keeps its own.
        copies: Whether states are copied; else a live environment goes on with the first that asks for its state.
    """

    def __init__(
        self,
        spec: EnvSpec,
        task: Task,
        live_states: int = 256,
        counts: RestoreCounts | None = None,
        spare: list[Episode] | None = None,
        copies: bool = True,
    ) -> None:
        self._spec = spec
        self._task = task
        self._limit = max(1, live_states)
        self._counts = counts if counts is not None else RestoreCounts()
        self._lock = threading.Lock()
        self._live: OrderedDict[int, EnvState] = OrderedDict()
        self._spare: list[Episode] = [] if spare is None else spare
        self._shared = spare is not None
        self._copyable = copies and not spec.replay_only
        self._closed = False

    @property
    def one_thread(self) -> bool:
        """See `TaskEnvironment`."""
        return self._spec.one_thread

    def open(self) -> Opening:
        """See `TaskEnvironment.open`."""
        episode = self._fresh()
        try:
            observation = episode.reset(self._task)
            self._counts.resets += 1
            state = EnvState(None, None, observation, episode.fingerprint())
            tools, system = episode.tools, episode.system_prompt
        except Exception:
            _close(episode)
            raise
        self._keep(state, episode)  # the first rollout goes on from here
        return Opening(observation, system, tools.schemas, tools.canonical_key, state)

    def _repeat(self, episode: Episode, target: EnvState) -> None:
        """Bring an episode from the state before to `target`, by its action or a reset. Raises ReplayMismatch."""
        if target.action is None:
            self._counts.resets += 1
        else:
            self._counts.replayed += 1
        try:
            repeat(episode, self._task, target.action, target.observation, target.depth)
            if episode.fingerprint() != target.fingerprint:
                raise ReplayMismatch(self._task, target.depth, "state fingerprint")
        except ReplayMismatch:
            self._counts.mismatches += 1
            raise

    def execute(self, state: EnvState, action: Action, replay: bool = True) -> Outcome:
        """See `TaskEnvironment.execute`."""
        episode = self._at(state, replay)
        goal = None
        try:
            self._counts.executed += 1  # one that breaks is a call, too
            result, verdict, fingerprint = execute(episode, action, fingerprint=True)
            if result.terminated:
                goal = episode.achieved_goal()
        except Exception:
            _close(episode)  # its state is unknown: it must not be used again
            raise
        child = EnvState(state, action, result.observation, fingerprint)
        if result.terminated:  # nothing goes on from an end
            self._release(episode)
        else:
            self._keep(child, episode)
        return Outcome(
            result.observation, result.role, result.terminated, result.fault, verdict, fingerprint, goal, child,
            result.anew,
        )

    def remember(self, state: EnvState, action: Action, observation: str | None, fingerprint: str | None) -> EnvState:
        """See `TaskEnvironment.remember`."""
        return EnvState(state, action, observation, fingerprint)

    def judge(self, state: EnvState) -> Outcome:
        """Return the outcome of a state with a verdict: of the start, or of one where the episode goes on.

        Raises:
            EnvironmentFault: The environment broke while the state was restored or judged.
        """
        episode = self._at(state, True)
        try:
            verdict, goal, over = episode.verdict(), episode.achieved_goal(), episode.terminated
        except Exception:
            _close(episode)
            raise
        if state.episode is None:
            self._keep(state, episode)
        else:
            self._release(episode)  # it is a copy
        return Outcome(state.observation, "user", over, None, verdict, state.fingerprint, goal, state)

    def distance(self, state: EnvState) -> int:
        """Return how many actions are replayed before the next one can be executed after a state."""
        here: EnvState | None = state
        while here is not None and here.episode is None:
            here = here.parent
        return state.depth - (0 if here is None else here.depth)

    def park(self) -> None:
        """Give up every live state; those that are needed again are restored by replay."""
        with self._lock:
            episodes = [s.episode for s in self._live.values() if s.episode is not None]
            for state in self._live.values():
                state.episode = None
            self._live.clear()
        for episode in episodes:
            self._release(episode)

    def close(self) -> None:
        """See `TaskEnvironment.close`."""
        with self._lock:
            self._closed = True
            own = [] if self._shared else self._spare
            if not self._shared:
                self._spare = []
        self.park()
        for episode in own:
            _close(episode)

    def _fresh(self) -> Episode:
        with self._lock:
            while self._spare:  # a reset costs less than a start, and undoes whatever was done in it
                if (episode := self._spare.pop()).usable_here:
                    return episode
            full = len(self._live) >= self._limit or (len(self._live) > 0 and self._spec.census.crowded)
            if self._spec.replay_only and full:
                # Starting another may be expensive; the oldest state would be given up anyway, and can be replayed.
                _, old = self._live.popitem(last=False)
                held, old.episode = old.episode, None
                if held is not None and held.usable_here:
                    return held
        return self._spec.open()

    def _release(self, episode: Episode) -> None:
        with self._lock:
            wanted = len(self._spare) < 2 and (self._shared or not (self._closed or self._spec.census.crowded))
            if self._spec.replay_only and wanted:
                self._spare.append(episode)  # starting such an environment may be expensive; a reset makes it usable
                return
        _close(episode)

    def _keep(self, state: EnvState, episode: Episode) -> None:
        evicted = None
        with self._lock:
            if self._closed:
                evicted = episode  # a call that outlived its tree
            else:
                state.episode = episode
                self._live[id(state)] = state
                if len(self._live) > self._limit or (len(self._live) > 1 and self._spec.census.crowded):
                    _, old = self._live.popitem(last=False)
                    evicted, old.episode = old.episode, None
        if evicted is not None:  # outside the lock: closing may take long
            self._release(evicted)

    def _claim(self, state: EnvState) -> Episode | None:
        """Return an episode in `state` for one user: a copy where copying works, else the live one; None without it."""
        with self._lock:
            episode = state.episode
            if episode is None:
                return None
            if not episode.usable_here:  # its thread hangs, or has ended: the state is replayed
                state.episode = None
                del self._live[id(state)]
                return None
            if self._copyable:
                self._live.move_to_end(id(state))
                try:
                    copy = episode.copy()
                except EnvironmentFault:
                    self._copyable = False  # from now on states are restored by replay
                else:
                    self._counts.copies += 1
                    return copy
            state.episode = None  # not copied: its one user takes it along
            del self._live[id(state)]
            return episode

    def _at(self, state: EnvState, replay: bool) -> Episode:
        """Return an episode in `state`: claimed, or restored from the nearest live ancestor or a reset."""
        behind: list[EnvState] = []
        here: EnvState | None = state
        episode = None
        while here is not None and (episode := self._claim(here)) is None:
            if not replay:
                raise ReplayNeeded(state.depth)  # a live ancestor may be taken before the replay begins
            behind.append(here)
            here = here.parent
        if episode is None:
            episode = self._fresh()
        try:
            for target in reversed(behind):
                self._repeat(episode, target)
        except ReplayMismatch:  # the environment works, its answers differ
            self._release(episode)
            raise
        except Exception:
            _close(episode)
            raise
        return episode


def _close(episode: Episode) -> None:
    """Close an episode; one that fails to close changes nothing that was recorded."""
    with contextlib.suppress(EnvironmentFault):
        episode.close()
