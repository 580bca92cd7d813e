"""Rounds of groups: the tasks that are played, and their outcomes. Uses no tokens and no tensors.

A round's tasks are drawn by what the rounds told that were trained on before it may begin: those that are solved about
half of the time teach most (learnability, p(1 - p)); those that failed come back; those that were always solved stay
away for a while. Groups without spread can be replaced by other tasks' (DAPO).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from offline_agent.records import Task, Trajectory
from offline_agent.rollouts.attempts import Attempt, AttemptRequest, Known
from offline_agent.seeding import derive_seed
from offline_agent.training.online import advantages
from offline_agent.training.online.settings import GroupSettings

if TYPE_CHECKING:
    from offline_agent.training.online.objectives import Objective

Play = Callable[[Sequence[AttemptRequest], int], Iterable[Attempt]]
"""Plays attempts of a round, by its number; in any order."""


@dataclass(frozen=True)
class Group:
    """The roll-outs of one task in a round.

    Attributes:
        task: The task.
        attempts: All of them, in order of their numbers; those that nobody judged too.
        rewards: Of each; None = unscored.
        kept: Whether it is trained on.
    """

    task: Task
    attempts: tuple[Attempt, ...]
    rewards: tuple[float | None, ...]
    kept: bool = True

    @property
    def scored(self) -> list[float]:
        """The rewards that are known."""
        return [reward for reward in self.rewards if reward is not None]

    @property
    def successes(self) -> list[bool]:
        """Success of those that were judged."""
        return [attempt.success for attempt in self.attempts if attempt.success is not None]

    @property
    def spread(self) -> float | None:
        """Standard deviation (ddof 1) of the rewards; None where fewer than two are known."""
        return advantages.spread(self.rewards, [0] * len(self.rewards)).get(0)


@dataclass(frozen=True)
class Round:
    """The groups that are trained on together.

    Attributes:
        number: From 0.
        temperature: Of its samples.
        groups: All that were played, those that are not trained on too, in the order of drawing.
    """

    number: int
    temperature: float
    groups: tuple[Group, ...]

    @property
    def kept(self) -> list[Group]:
        """The groups that are trained on."""
        return [group for group in self.groups if group.kept]

    @property
    def attempts(self) -> Iterator[Attempt]:
        """Every attempt."""
        return (attempt for group in self.groups for attempt in group.attempts)

    @property
    def rewarded(self) -> Iterator[tuple[Attempt, float | None]]:
        """Every attempt with its reward."""
        for group in self.groups:
            yield from zip(group.attempts, group.rewards, strict=True)

    @property
    def env_steps(self) -> int:
        """Steps of the environment that were executed."""
        return sum(attempt.tool_calls for attempt in self.attempts)


@dataclass
class RoundSampler:
    """Makes the rounds.

    Args:
        tasks: The pool; ids are distinct.
        settings: How.
        objective: Says which groups are trained on.
        play: Plays attempts.
        seed: The run's.
        composite: The reward of an attempt, shaping included, or None where it has none; without it, `settings.reward`.
    """

    tasks: Sequence[Task]
    settings: GroupSettings
    objective: Objective
    play: Play
    seed: int = 0
    composite: Callable[[Trajectory], float | None] | None = None
    # by task: the rounds of its groups, and what each came to
    _seen: dict[str, list[tuple[int, Known]]] = field(default_factory=dict)

    def make(self, number: int) -> Round:
        """Play a round; what is drawn depends on the rounds before it, which must have been made or noted."""
        making, played = self.making(number), None
        while True:
            try:
                asks = making.send(played)
            except StopIteration as end:
                made: Round = end.value
                return made
            played = list(self.play(asks, number))

    def making(self, number: int) -> Generator[list[AttemptRequest], list[Attempt] | None, Round]:
        """Make a round: yield attempts to play, take them in any order, and return the round.

        What is drawn depends on the rounds more than `settings.behind` before it: the others may still be played.
        """
        settings, groups = self.settings, list[Group]()
        chance = random.Random(derive_seed(self.seed, "round", number))
        left = settings.tasks
        most = settings.tasks * (1 + (settings.redraws if self.objective.dynamic else 0))
        while left and len(groups) < most:
            drawn = self._draw(min(left, most - len(groups)), {group.task.task_id for group in groups}, number, chance)
            if not drawn:
                break
            played = (yield self._asks(drawn, number)) or []
            groups += [self._group(task, [one for one in played if one.task.task_id == task.task_id]) for task in drawn]
            useful = sum(bool(group.spread) for group in groups)
            left = max(0, settings.tasks - useful) if self.objective.dynamic else 0
        made = Round(number, settings.temperature, tuple(self._chosen(groups)))
        self.note(made.number, {group.task.task_id: (sum(group.successes), len(group.successes)) for group in groups})
        return made

    def note(self, number: int, outcomes: Mapping[str, tuple[int, int]]) -> None:
        """Note what a round came to: successes and judged attempts by task."""
        for task_id, (successes, attempts) in outcomes.items():
            if attempts:
                self._seen.setdefault(task_id, []).append((number, Known(successes, attempts)))

    def learnability(self, task_id: str, number: int) -> float:
        """Return a task's weight in a round: E[p(1-p)] under the Beta posterior of its last group; 0 = it rests."""
        before = [entry for entry in self._seen.get(task_id, ()) if entry[0] < number - self.settings.behind]
        last, known = max(before, default=(0, Known(0, 0)))
        return 0.0 if known.solved and number - last <= self.settings.rest else known.learnability

    # -- a round -----------------------------------------------------------------------------------------------------

    def _draw(self, count: int, without: set[str], number: int, chance: random.Random) -> list[Task]:
        """Draw tasks without putting back; resting ones only where no others are left (Efraimidis and Spirakis)."""
        free = [task for task in self.tasks if task.task_id not in without]
        keys = []
        for task in free:
            dice = chance.random()
            weight = self.learnability(task.task_id, number) if self.settings.choice == "learnability" else 1.0
            keys.append((weight > 0, dice ** (1 / weight) if weight else dice, task))
        keys.sort(key=lambda entry: entry[:2], reverse=True)
        return [task for _, _, task in keys[:count]]

    def _asks(self, drawn: Sequence[Task], number: int) -> list[AttemptRequest]:
        """Return the attempts of some tasks' groups."""
        settings, first = self.settings, number * self.settings.size  # an attempt's number is its own in the whole run
        ask = partial(AttemptRequest, temperature=settings.temperature)
        return [ask(task, "sampled", first + i) for task in drawn for i in range(settings.size)]

    def _group(self, task: Task, attempts: Iterable[Attempt]) -> Group:
        ordered = tuple(sorted(attempts, key=lambda attempt: attempt.number))
        return Group(task, ordered, tuple(map(self._reward, ordered)))

    def _reward(self, attempt: Attempt) -> float | None:
        if self.composite is not None:
            done = attempt.episode()
            return None if done is None or attempt.reward is None else self.composite(done)
        if self.settings.reward == "score" or attempt.success is None:
            return attempt.reward
        return float(attempt.success)

    def _chosen(self, groups: Sequence[Group]) -> Iterator[Group]:
        rewards = [reward for group in groups for reward in group.rewards]
        owners = [place for place, group in enumerate(groups) for _ in group.rewards]
        kept = set(advantages.kept_groups(rewards, owners, self.objective))
        for place, group in enumerate(groups):
            yield replace(group, kept=place in kept)
