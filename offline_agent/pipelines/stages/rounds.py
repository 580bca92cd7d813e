"""Rounds of roll-outs: played through `Episodes`, logged one by one, read back where an earlier session played them."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from offline_agent.errors import DataError, PolicyError
from offline_agent.records import Task
from offline_agent.rollouts.attempts import Attempt, Journal, from_record
from offline_agent.rollouts.episodes import Episodes
from offline_agent.rollouts.playing import Ask
from offline_agent.store import schemas
from offline_agent.store.events import EventLog
from offline_agent.store.run_directory import RunDirectory
from offline_agent.training.online.groups import Round, RoundSampler

if TYPE_CHECKING:
    from offline_agent.config.refine_grpo import RefineGrpoConfig
    from offline_agent.policies.weights import WeightUpdate
    from offline_agent.preferences.refusals import Refusal
    from offline_agent.records import Trajectory
    from offline_agent.rendering.renderer import Renderer
    from offline_agent.runner.pipeline import Session

ATTEMPTS, ROUNDS = "rollouts", "rounds"


class RoundLog:
    """The event logs of a run's roll-outs: one record an attempt, and one a round when it is over.

    Args:
        run: The run directory.
        tasks: The pool.

    Raises:
        DataError: A record is malformed, or of a task that is not the run's.
    """

    def __init__(self, run: RunDirectory, tasks: Sequence[Task]) -> None:
        self._attempts: EventLog = run.events(ATTEMPTS)
        self._rounds: EventLog = run.events(ROUNDS)
        self._tasks = {task.task_id: task for task in tasks}
        self._journal = Journal(self._attempts.append, (), self._tasks)
        self.rounds: dict[int, dict[str, Any]] = {record["round"]: record for record in self._rounds.read()}

    def add(self, attempt: Attempt) -> None:
        """Log an attempt that is over."""
        self._journal.add(attempt)
        self._journal.attempts.clear()  # they are read back where they are wanted

    def close_round(self, record: Mapping[str, Any]) -> None:
        """Log that a round is over; one that was logged before is not logged again."""
        if record["round"] not in self.rounds:
            self._rounds.append(dict(record))
            self.rounds[record["round"]] = dict(record)

    @property
    def refused(self) -> int:
        """Rows of the rounds that could not be trained on."""
        return sum(record.get("refused", 0) for record in self.rounds.values())

    def read(self, wanted: Callable[[int], bool]) -> Iterator[Attempt]:
        """Yield the logged attempts whose number is wanted, in the order of ending."""
        openings: dict[str, tuple[str, Sequence[Any]]] = {}
        for record in self._attempts.read():
            if "attempt" not in record:
                openings[record["name"]] = (record["system"], record["tools"])
                continue
            _, _, task_id, number = record["attempt"]
            if task_id not in self._tasks:
                raise DataError(f"the event log's attempt {record['attempt']} is of no task of this run")
            if wanted(number):
                yield from_record(record, self._tasks[task_id], openings)
        self._journal.openings |= openings

    def ordered(self, size: int) -> Iterator[Attempt]:
        """Yield all logged attempts by round, place of the task in the pool, and number; one round is in memory.

        The order of ending, in which they are logged, depends on how fast each one went.

        Args:
            size: Numbers of one round: attempt `n` is of round n // size.
        """
        places = {task_id: place for place, task_id in enumerate(self._tasks)}
        for _, played in itertools.groupby(self.read(lambda number: True), lambda attempt: attempt.number // size):
            yield from sorted(played, key=lambda attempt: (places[attempt.task.task_id], attempt.number))


class Player:
    """Plays the attempts of rounds; those that an earlier session logged are not played again.

    Args:
        episodes: Plays.
        log: Where attempts go and come from.
        size: Numbers of one round: attempt `n` is of round n // size.
        first: The first round that will be asked for.

    Attributes:
        renew: Gives the policy the round's weights again, which a server that started anew has lost; None = nothing
            to give. Raises PolicyError where it does not answer.
        seconds: Spent playing.
    """

    def __init__(self, episodes: Episodes, log: RoundLog, size: int, first: int) -> None:
        self._episodes, self._log = episodes, log
        self._known = {(a.task.task_id, a.number): a for a in log.read(lambda number: number // size >= first)}
        self.seconds = 0.0
        self.renew: Callable[[], object] | None = None

    def __call__(self, asks: Sequence[Ask], number: int) -> Iterator[Attempt]:
        """Yield the attempts, in the order of ending."""
        left = []
        for ask in asks:
            known = self._known.pop((ask.task.task_id, ask.number), None)
            if known is None:
                left.append(ask)
            else:
                yield known
        started = time.perf_counter()
        for attempt in self._play(left):
            self._log.add(attempt)
            yield attempt
        self.seconds += time.perf_counter() - started

    def _play(self, left: Sequence[Ask]) -> Iterator[Attempt]:
        """Play; where the policy is given up, renew it, and go on with what is left if that helps."""
        renewed = False
        while left:
            over = set()
            try:
                for attempt in self._episodes.play(left):
                    over.add((attempt.task.task_id, attempt.number))
                    renewed = False
                    yield attempt
                return
            except PolicyError as error:
                if renewed or self.renew is None:
                    raise
                try:
                    self.renew()
                except PolicyError:
                    raise error from None
                renewed = True
            left = [ask for ask in left if (ask.task.task_id, ask.number) not in over]


def remember(groups: RoundSampler, log: RoundLog, first: int) -> int:
    """Tell what rounds before `first` came to, and return how many steps of the environment they took.

    Raises:
        DataError: One of them is missing.
    """
    steps = 0
    for number in range(first):
        record = log.rounds.get(number)
        if record is None:
            raise DataError(f"the event log has no round {number}, but a checkpoint comes after it")
        groups.note(number, {task: (done, judged) for task, done, judged in record["outcomes"]})
        steps += record["env_steps"]
    return steps


def record_of(made: Round, seconds: float, refused: int) -> dict[str, Any]:
    """Return what is logged of a round; `refused` of its rows could not be trained on."""
    return {
        "round": made.number,
        "temperature": made.temperature,
        "env_steps": made.env_steps,
        "seconds": round(seconds, 3),
        "refused": refused,
        "outcomes": [[g.task.task_id, sum(g.successes), len(g.successes)] for g in made.groups],
        "kept": [g.task.task_id for g in made.kept],
    }


def figures(made: Round, env_steps: int, seconds: float) -> dict[str, Any]:
    """Return a round's figures for the records of its updates; what nobody can say is left out.

    Args:
        made: The round.
        env_steps: Steps of the environment up to its end, all rounds together.
        seconds: Playing it took.
    """
    attempts = list(made.attempts)
    acted = [attempt for attempt in attempts if attempt.steps]
    went = [attempt for attempt in attempts if attempt.cut_by not in ("fault", "time")]  # as far as the policy would
    rewards = [reward for group in made.groups for reward in group.scored]
    successes = [success for group in made.groups for success in group.successes]
    spreads = [spread for group in made.groups if (spread := group.spread) is not None]
    calls = sum(attempt.calls for attempt in attempts)
    tools = Counter(s.action.call.name for attempt in attempts for s in attempt.steps if s.action.call is not None)
    out: dict[str, Any] = {
        "groups": len(made.groups),
        "groups_kept": len(made.kept),
        "temperature": made.temperature,
        "env_steps": env_steps,
        "rollout_seconds": seconds,
        "unscored": sum(reward is None for _, reward in made.rewarded) / len(attempts),
    }
    if went:
        out["truncated"] = sum(attempt.truncated for attempt in went) / len(went)
    if rewards:
        mean = sum(rewards) / len(rewards)
        out |= {"reward_mean": mean, "reward_std": (sum((r - mean) ** 2 for r in rewards) / len(rewards)) ** 0.5}
    if successes:
        out["success_mean"] = sum(successes) / len(successes)
    if spreads:
        out |= {"zero_spread": sum(not s for s in spreads) / len(spreads), "group_spread": sum(spreads) / len(spreads)}
    if acted:
        out["steps"] = sum(len(attempt.steps) for attempt in acted) / len(acted)
        said = (len(step.action.token_ids or ()) for attempt in acted for step in attempt.steps)
        out["length"] = sum(said) / len(acted)
    if calls:
        out["invalid_calls"] = sum(attempt.invalid_calls for attempt in attempts) / calls
        out["repeated_calls"] = sum(attempt.repeated_calls for attempt in attempts) / calls
    if tools:
        out["tools"] = {name: count / sum(tools.values()) for name, count in sorted(tools.items())}
    return out


def figures_of_sampler(prefilled: int, cached: int, handed: WeightUpdate | None) -> dict[str, float]:
    """Return figures of who sampled a round, for the records of its updates; what nobody can say is left out.

    Args:
        prefilled, cached: Prompt tokens that it computed, and that it had in its prefix cache.
        handed: How it took the round's weights; see `weights.Taken`.
    """
    out = {}
    if prefilled + cached:
        out["prefix_cached"] = cached / (prefilled + cached)
    if handed is not None:
        out |= {"handover_seconds": handed.seconds, "handover_waited": handed.waited}
        out |= {} if handed.gap is None else {"handover_gap": handed.gap}
        out |= {} if handed.shift is None else {"handover_shift": handed.shift}
    return out


def export(renderer: Renderer, session: Session[RefineGrpoConfig], log: RoundLog) -> dict[str, Any]:
    """Write what was played as tables that the offline stages read.

    Successes that `filtered.per_task` leaves out are no refusals: all that was played is in `trajectories`.
    """
    from offline_agent.preferences.dataset.export import trajectory_rows
    from offline_agent.preferences.dataset.filters import RejectionFilter

    refusals: list[Refusal] = []
    counts = {"attempts": 0, "successes": 0, "unscored": 0, "filtered": 0}
    best = RejectionFilter(session.config.filtered.per_task)
    chosen: dict[str, list[Trajectory]] = {}

    def counted() -> Iterator[Attempt]:
        for attempt in log.ordered(session.config.rollouts.size):
            counts["attempts"] += 1
            counts["successes"] += attempt.success is True
            counts["unscored"] += attempt.reward is None
            if attempt.success is True and (trajectory := attempt.trajectory()) is not None:
                task = attempt.task.task_id
                chosen[task], _ = best.select([*chosen.get(task, ()), trajectory], task)
            yield attempt

    def rows(trajectories: Iterable[Trajectory]) -> Iterator[dict[str, Any]]:
        return (row for trajectory in trajectories for row in trajectory_rows([trajectory], renderer, refusals))

    def kept() -> Iterator[dict[str, Any]]:
        for row in rows(trajectory for task in sorted(chosen) for trajectory in chosen[task]):
            counts["filtered"] += 1
            yield row

    known = (trajectory for attempt in counted() if (trajectory := attempt.trajectory()) is not None)
    session.run.write_rows("trajectories", rows(known), schemas.TRAJECTORIES)
    session.run.write_rows("filtered", kept(), schemas.TRAJECTORIES)
    for refusal in refusals:
        session.run.quarantine(refusal.kind, refusal.name, refusal.reason, **dict(refusal.facts))
    return counts
