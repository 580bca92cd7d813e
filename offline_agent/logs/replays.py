"""Replays of logged episodes in their environment: do the answers and the outcome repeat?

An episode whose actions are answered differently, or end in another verdict, is no evidence: its branch is put in
quarantine. One that cannot be replayed (an unknown task, several calls in one turn, a fault of the environment) stays
as the log tells it, and is counted with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

from offline_agent.envs.base import SPLITS, EnvSpec
from offline_agent.envs.play import ReplayMismatch
from offline_agent.errors import ConfigError, EnvironmentFault
from offline_agent.preferences.pairs.trajectory import trajectory
from offline_agent.preferences.records import UNREAD, Replay
from offline_agent.preferences.replayer import Replayer
from offline_agent.records import Context, Task, Trajectory, Verdict
from offline_agent.search.tree import SearchTree, quarantine

_TASKS = 1_000_000  # of each split, at most
_TOLERANCE = 1e-6  # of a score, which a log may have rounded


class Unplayable(Exception):
    """An episode that cannot be replayed; the text says why."""


class Replays:
    """Replays logged episodes, and judges them as their environment does; callable as a judge.

    Args:
        spec: The environment. Its tasks are found by the ids that the log has.
        step_seconds, reset_seconds: Limits of a call and of a reset.

    Attributes:
        name, version: Of the judge that gives its verdicts.
        confirmed: Number of ends whose answers and verdict repeated.
        disagreed: Number of those in which something differed.
        unplayable: Why the others could not be replayed, with their number.

    Raises:
        ConfigError: The environment does not list its tasks.
    """

    def __init__(self, spec: EnvSpec, step_seconds: float | None = None, reset_seconds: float | None = None) -> None:
        self._spec = spec
        self.name = f"{spec.name}.get_reward" if spec.judge is None else spec.judge.name
        self.version = spec.version if spec.judge is None else spec.judge.version
        self._replayer = Replayer(spec, step_seconds, reset_seconds)
        self._listed = self._tasks()
        self._known: dict[str, Task] = {}
        if self._task(None) is None and not self._known:
            raise ConfigError(f"env: {spec.name} has no tasks, so no episode of a log can be replayed in it")
        self.confirmed = self.disagreed = 0
        self.unplayable: Counter[str] = Counter()

    @property
    def identity(self) -> dict[str, Any]:
        """JSON-serialisable facts for the manifest."""
        return self._spec.identity

    @property
    def calls(self) -> int:
        """The number of actions executed."""
        return self._replayer.tool_calls

    def __call__(self, episode: Trajectory) -> Verdict:
        """Return the environment's verdict on an episode; none where it could not be replayed, or another one came."""
        try:
            replay = self._replay(episode)
        except Unplayable as error:
            return Verdict(None, None, self.name, self.version, error=f"not replayed: {error}")
        difference = _difference(episode, replay)
        if difference is not None:
            return Verdict(None, None, self.name, self.version, error=difference[1])
        return replay.verdict

    def confirm(self, tree: SearchTree) -> None:
        """Replay every end of a tree; put what does not repeat in quarantine."""
        for end in list(tree.terminals()):
            if end.quarantined is not None or end.edge is None:
                continue
            episode = trajectory(tree, end)
            try:
                replay = self._replay(episode)
            except Unplayable as error:
                self.unplayable[str(error)] += 1
                continue
            difference = _difference(episode, replay) or _other_verdict(episode, replay)
            if difference is None:
                self.confirmed += 1
                continue
            self.disagreed += 1
            action, reason = difference
            edge = tree.path(end)[min(action, end.depth - 1)]
            quarantine(tree, edge, f"replayed in {self._spec.name}: {reason}", 1.0)

    def close(self) -> None:
        """Close what is kept for replays."""
        self._replayer.close()

    def _replay(self, episode: Trajectory) -> Replay:
        """Return the replay of an episode; raises Unplayable."""
        task = self._task(episode.task.task_id)
        if task is None:
            raise Unplayable("the environment has no task of that id")
        for number, step in enumerate(episode.steps, 1):
            calls = step.action.message().get("tool_calls", ())
            if len(calls) > 1:
                raise Unplayable("a turn has several calls, and an environment takes one")
            if not calls and number < len(episode.steps):
                raise Unplayable("a turn before the last one has no call, and may be an answer or a mistake")
        try:
            return self._replayer.run(task, [step.action for step in episode.steps])
        except ReplayMismatch as error:
            raise Unplayable("the environment is not deterministic") from error
        except EnvironmentFault as error:
            raise Unplayable(f"the environment broke: {error}") from error

    def _task(self, id: str | None) -> Task | None:
        """Return a task by its id; None looks at the first one."""
        while id is None or id not in self._known:
            task = next(self._listed, None)
            if task is None:
                return None
            self._known.setdefault(task.task_id, task)
            if id is None:
                return task
        return self._known[id]

    def _tasks(self) -> Iterator[Task]:
        for split in SPLITS:
            yield from islice(self._spec.tasks(split), _TASKS)


def _difference(episode: Trajectory, replay: Replay) -> tuple[int, str] | None:
    """Return from which action on an episode differs from its replay, and how; None where it does not."""
    shown = [_shown(node) for node in episode.context.lineage()[1:]]
    if len(shown) == len(replay.steps) and None in (shown[-1], replay.steps[-1].observation):
        shown[-1] = UNREAD  # after the last turn a log may show less than the environment, or more
    return replay.difference(shown, episode.terminated)


def _shown(node: Context) -> str | None:
    """Return what a log shows after a turn; None where that is nothing."""
    if node.recorded is None:
        return node.observation
    return "\n".join(str(message["content"]) for message in node.recorded) if node.recorded else None


def _other_verdict(episode: Trajectory, replay: Replay) -> tuple[int, str] | None:
    old = episode.verdict
    if old is None or episode.cut_by is not None:
        return None
    # A log of successes and failures does not say how near a failure was.
    reason = replay.other_verdict(old, 1.0 if old.score in (0.0, 1.0) else _TOLERANCE)
    return None if reason is None else (len(replay.steps) - 1, reason)
