"""The trajectories of a round as token ids, masks and advantages; every row's certificate is checked before it counts.

Knows rendering and rewards, not tensors.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from offline_agent.errors import DataError
from offline_agent.preferences.dataset.export import trajectory_row
from offline_agent.records import POLICY_CUTS
from offline_agent.rendering.renderer import Renderer
from offline_agent.rollouts.attempts import Attempt
from offline_agent.store.columns import known
from offline_agent.training.online import advantages
from offline_agent.training.online.credit import (
    TRAJECTORY,
    CreditAssignment,
    branch_advantages,
    state_advantages,
    turn_rewards,
)
from offline_agent.training.online.groups import Group, Round
from offline_agent.training.online.objectives import Objective


@dataclass(frozen=True)
class TrainingSample:
    """One trajectory of a round.

    Attributes:
        name: For messages.
        task_id: Its task, which is its group.
        input_ids: int [L].
        action_mask: int [L]; 1 = sampled by the policy as it would have been without exploration. A turn whose tool was
            drawn is its own words too, but chosen by somebody else, and nothing is learnt from it; nor from turns that
            it carried out again, which are learnt from where they are first.
        logps: float [n], the sampler's log-probabilities of the n agent tokens at temperature 1; None = not known.
        turns: Agent tokens of each turn; their sum is n.
        reward: Its reward, overlong shaping included.
        advantages: float [n]; None where a critic has to be asked first.
        earned: float, one for each of `turns`: what it earned by itself, the outcome's share with the last; of a turn
            that is not among them, with the one before it. None = only the whole has a reward.
        factors: float, one for each of `turns`, by which its advantage is multiplied; None = 1. See
            `_JudgedAttempt.factors`.
    """

    name: str
    task_id: str
    input_ids: tuple[int, ...]
    action_mask: tuple[int, ...]
    logps: tuple[float, ...] | None
    turns: tuple[int, ...]
    reward: float
    advantages: tuple[float, ...] | None
    earned: tuple[float, ...] | None = None
    factors: tuple[float, ...] | None = None

    @property
    def tokens(self) -> int:
        """Number of agent tokens."""
        return sum(self.turns)


@dataclass(frozen=True)
class _JudgedAttempt:
    """A judged attempt; without ids where nothing can be learnt from it, and it only is in its group's mean."""

    group: Group
    place: int
    ids: tuple[int, ...]
    mask: tuple[int, ...]
    logps: tuple[float, ...] | None
    reward: float
    earned: tuple[float, ...] | None = None

    @property
    def turns(self) -> tuple[int, ...]:
        """Lengths of the runs of agent tokens; between two turns there always is an observation."""
        return tuple(sum(1 for _ in run) for own, run in groupby(self.mask) if own)

    @property
    def numbers(self) -> list[int]:
        """The turns that these are, among all of the attempt's."""
        attempt = self.group.attempts[self.place]
        return [number for number in _spoken(attempt) if _own(attempt, number)]

    @property
    def branched(self) -> bool:
        """Whether it branched from another member's history."""
        return self.group.attempts[self.place].branch is not None

    @property
    def factors(self) -> tuple[float, ...] | None:
        """Mean turns of a source / (number of the turn, from 1) for each turn of a branch; None for other members.

        Branches leave their sources at any turn alike, so turn s of a branch is one of s + 1 ways to get there: with
        these factors a branch's turns are expected to pull as much, at every depth, as those of one that began at the
        beginning.
        """
        return tuple(self.group.mean_turns / (number + 1) for number in self.numbers) if self.branched else None

    @property
    def own_earned(self) -> tuple[float, ...] | None:
        """`TrainingSample.earned`."""
        if self.earned is None:
            return None
        found, numbers = [0.0] * len(self.numbers), self.numbers
        _, first = self.group.attempts[self.place].branch or (0, 0)
        for number, reward in list(enumerate(self.earned))[first:] if numbers else ():
            found[max(0, bisect_right(numbers, number) - 1)] += reward
        return tuple(found)


def sample(
    made: Round,
    renderer: Renderer,
    objective: Objective,
    *,
    max_length: int,
    credit: CreditAssignment = TRAJECTORY,
    refused: list[tuple[str, str]] | None = None,
) -> list[TrainingSample]:
    """Return the samples that are trained on: the judged attempts of the groups that are kept, in their order.

    Unscored attempts are in no mean and in no loss. Those whose row fails its certificate, is longer than the model
    takes, or lacks what one of its turns earned where `credit` asks for it, are in the group's mean, in no loss, and
    listed in `refused`; those that `objective.overlong_filter` leaves out likewise, but for the list.

    Args:
        made: The round.
        renderer: The policy's.
        objective: Says how rewards become advantages.
        max_length: Longest row in tokens.
        credit: One advantage for the whole trajectory, or one for each turn.
        refused: Gets (name, reason) of rows that cannot be trained on.
    """
    refused = [] if refused is None else refused
    rows = [
        row
        for group in made.kept
        for row in _rows(group, made.number, renderer, objective, max_length, credit, refused)
    ]
    rewards = [row.reward for row in rows]
    if objective.baseline == "value":
        credits: list[list[float] | None] = [None] * len(rows)
        counted = rows
    else:
        owners = [row.group.task.task_id for row in rows]
        whole = advantages.group_advantages(rewards, owners, objective, [row.branched for row in rows])
        credits = [None if a is None else [a] * len(row.turns) for a, row in zip(whole, rows, strict=True)]
        if credit.by == "turn":
            credits = _by_turn(rows, objective)
        elif credit.by == "turn_reward":
            credits = _by_earned(rows, objective, credit)
        elif credit.by == "state":
            credits = _by_state(rows, credits, objective, credit)
        counted = [row for row, given in zip(rows, credits, strict=True) if given is not None]
        credits = [given for given in credits if given is not None]
    # without a token of its own (refused, filtered, all drawn, or empty) a row is in its group's mean alone
    spoken = [(row, given) for row, given in zip(counted, credits, strict=True) if any(row.mask)]
    return [
        TrainingSample(
            name=_name(row.group.attempts[row.place], made.number),
            task_id=row.group.task.task_id,
            input_ids=row.ids,
            action_mask=row.mask,
            logps=row.logps,
            turns=row.turns,
            reward=row.reward,
            advantages=None if given is None else tuple(advantages.over_tokens(given, row.turns)),
            earned=row.own_earned,
            factors=None if credit.by == "turn" else row.factors,  # which counts them itself
        )
        for row, given in spoken
    ]


def _rows(
    group: Group,
    number: int,
    renderer: Renderer,
    objective: Objective,
    max_length: int,
    credit: CreditAssignment,
    refused: list[tuple[str, str]],
) -> list[_JudgedAttempt]:
    rows = []
    for place, (attempt, reward) in enumerate(zip(group.attempts, group.rewards, strict=True)):
        if reward is None:
            continue
        ids, mask, logps, why = _row(attempt, renderer, max_length)
        tokens = sum(mask) if mask else sum(len(step.action.token_ids or ()) for step in attempt.steps)
        shaping, earned = advantages.overlong(tokens, objective), None
        if credit.by == "turn_reward" and attempt.steps:
            told, lacking = turn_rewards(attempt, credit)
            why = why or lacking
            if told is not None:
                earned = (*told[:-1], told[-1] + credit.outcome * reward + shaping)
        if why is not None:
            refused.append((_name(attempt, number), why))
        if why is not None or (objective.overlong_filter and attempt.cut_by in POLICY_CUTS):
            ids, mask, logps = (), (), None
        mask = _without(mask, attempt)
        own = None if logps is None else tuple(x for x, kept in zip(logps, mask, strict=True) if kept)
        rows.append(_JudgedAttempt(group, place, ids, mask, own, reward + shaping, earned))
    return rows


Ids = tuple[int, ...]


def _row(attempt: Attempt, renderer: Renderer, most: int) -> tuple[Ids, Ids, Sequence[float] | None, str | None]:
    """Return an attempt's ids, mask and log-probabilities; and why it cannot be trained on, where it cannot."""
    trajectory = attempt.trajectory()
    if trajectory is None:
        return (), (), None, None
    try:
        row = known(trajectory_row(trajectory, renderer))
    except DataError as error:
        return (), (), None, str(error)
    ids, mask = tuple(row["input_ids"]), tuple(row["action_mask"])
    return ids, mask, row["logps"], f"it has {len(ids)} tokens, allowed: {most}" if len(ids) > most else None


def _spoken(attempt: Attempt) -> list[int]:
    """Return the turns of which a token was sampled: not even an end is possible, and leaves nothing in the mask."""
    return [number for number, step in enumerate(attempt.steps) if step.action.token_ids != ()]


def _without(mask: Sequence[int], attempt: Attempt) -> tuple[int, ...]:
    """Return a mask without the attempt's turns that are not learnt from."""
    out, run, spoken = [], -1, _spoken(attempt)
    for place, own in enumerate(mask):
        run += bool(own and (place == 0 or not mask[place - 1]))
        out.append(own if not own or _own(attempt, spoken[run]) else 0)
    return tuple(out)


def _own(attempt: Attempt, turn: int) -> bool:
    """Return whether a turn is trained on: the policy chose it, and not in the attempt this one branched from."""
    return turn not in attempt.explored and (attempt.branch is None or turn >= attempt.branch[1])


def _by_turn(rows: Sequence[_JudgedAttempt], objective: Objective) -> list[list[float] | None]:
    """Return A(h, a) of each row's turns, divided as the objective divides; see `credit.branch_advantages`.

    Values and deviations are of the same attempts: all that were judged, those with nothing to learn from included.
    """
    found: dict[int, list[list[float] | None]] = {}
    out: list[list[float] | None] = []
    every = [reward for group in {id(row.group): row.group for row in rows}.values() for reward in group.scored]
    whole = advantages.spread(every, [0] * len(every)).get(0)
    for row in rows:
        if id(row.group) not in found:
            found[id(row.group)] = branch_advantages(row.group)
        turns = found[id(row.group)][row.place]
        scale = {"group_std": row.group.spread, "batch_std": whole, "none": 1.0}[objective.scale]
        divisor = 1.0 if objective.scale == "none" else (scale or 0.0) + advantages.EPSILON
        out.append(None if turns is None else [turns[number] / divisor for number in row.numbers])
    return out


def _by_earned(
    rows: Sequence[_JudgedAttempt], objective: Objective, credit: CreditAssignment
) -> list[list[float] | None]:
    """Return `advantages.turn_advantages` of each row's turns; drawn ones count in returns and means."""
    owners = [row.group.task.task_id for row in rows]
    branched = [row.branched for row in rows]
    found = advantages.turn_advantages([row.earned for row in rows], owners, objective, credit.discount, branched)
    return [
        None if turns is None else [turns[number] for number in row.numbers]
        for turns, row in zip(found, rows, strict=True)
    ]


def _by_state(
    rows: Sequence[_JudgedAttempt],
    whole: Sequence[Sequence[float] | None],
    objective: Objective,
    credit: CreditAssignment,
) -> list[list[float] | None]:
    """Return the trajectories' advantages with `credit.state_advantages` added; drawn turns count in states' means."""
    owners = [row.group.task.task_id for row in rows]
    states = [row.group.attempts[row.place].states for row in rows]
    found = state_advantages([row.reward for row in rows], states, owners, objective, credit.discount)
    out: list[list[float] | None] = []
    for row, given, turns in zip(rows, whole, found, strict=True):
        assert turns is not None  # only scored attempts are rows
        added = None if given is None else zip(given, row.numbers, strict=True)
        out.append(None if added is None else [one + credit.state_weight * turns[number] for one, number in added])
    return out


def _name(attempt: Attempt, number: int) -> str:
    return f"round {number}, {attempt.task.task_id}/{attempt.number}"
