"""The trajectories of a round as token ids, masks and advantages; every row's certificate is checked before it counts.

Knows rendering and rewards, not tensors.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from offline_agent._store.columns import known
from offline_agent.errors import DataError
from offline_agent.preferences.export import trajectory_row
from offline_agent.rendering import Renderer
from offline_agent.rollouts.attempts import Attempt
from offline_agent.training import advantages
from offline_agent.training.groups import Group, Round, branch_advantages
from offline_agent.training.objectives import Objective


@dataclass(frozen=True)
class Sampled:
    """One trajectory of a round.

    Attributes:
        name: For messages.
        task_id: Its task, which is its group.
        input_ids: int [L].
        action_mask: int [L]; 1 = sampled by the policy as it would have been without exploration. A turn whose tool was
            drawn is its own words too, but chosen by somebody else, and nothing is learnt from it.
        logps: float [n], the sampler's log-probabilities of the n agent tokens at temperature 1; None = not known.
        turns: Agent tokens of each turn; their sum is n.
        reward: What it is worth, overlong shaping included.
        advantages: float [n]; None where a critic has to be asked first.
        earned: float, one for each of `turns`: what it earned by itself, the outcome's share with the last; of a turn
            that is not among them, with the one before it. None = only the whole has a reward.
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

    @property
    def tokens(self) -> int:
        """Number of agent tokens."""
        return sum(self.turns)


@dataclass(frozen=True)
class _Row:
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
        return [number for number in _spoken(attempt) if number not in attempt.explored]

    @property
    def own_earned(self) -> tuple[float, ...] | None:
        """`Sampled.earned`."""
        if self.earned is None:
            return None
        found, numbers = [0.0] * len(self.numbers), self.numbers
        for number, reward in enumerate(self.earned):
            found[max(0, bisect_right(numbers, number) - 1)] += reward
        return tuple(found)


@dataclass(frozen=True)
class Credit:
    """How a trajectory's reward becomes its tokens' advantages.

    Attributes:
        by: trajectory: one advantage for all of it. turn: one for each turn, from the branches of its group.
            turn_reward: one for each turn, from what the environment says that single calls earned; with a critic, what
            it learns.
        discount: Of what later turns earned, a turn; turn_reward without a critic.
        outcome: The share of the whole's reward that is added to what the last turn earned; turn_reward. 0 where the
            environment's rewards of single calls already add up to it.
    """

    by: Literal["trajectory", "turn", "turn_reward"] = "trajectory"
    discount: float = 1.0
    outcome: float = 1.0


TRAJECTORY = Credit()


def sample(
    made: Round,
    renderer: Renderer,
    objective: Objective,
    *,
    max_length: int,
    credit: Credit = TRAJECTORY,
    refused: list[tuple[str, str]] | None = None,
) -> list[Sampled]:
    """Return what is trained on: the judged attempts of the groups that are kept, in their order.

    Unscored attempts are in no mean and in no loss. So are those whose row fails its certificate, is longer than the
    model takes, or lacks what one of its turns earned where `credit` asks for it; they are listed in `refused`.

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
        whole = advantages.group_advantages(rewards, owners, objective)
        credits = [None if a is None else [a] * len(row.turns) for a, row in zip(whole, rows, strict=True)]
        if credit.by == "turn":
            credits = _by_turn(rows, objective)
        elif credit.by == "turn_reward":
            credits = _by_earned(rows, objective, credit)
        counted = [row for row, given in zip(rows, credits, strict=True) if given is not None]
        credits = [given for given in credits if given is not None]
    # without a token of its own - all drawn, or empty - a row is in its group's mean and has nothing to learn
    spoken = [(row, given) for row, given in zip(counted, credits, strict=True) if any(row.mask)]
    return [
        Sampled(
            name=_name(row.group.attempts[row.place], made.number),
            task_id=row.group.task.task_id,
            input_ids=row.ids,
            action_mask=row.mask,
            logps=row.logps,
            turns=row.turns,
            reward=row.reward,
            advantages=None if given is None else tuple(advantages.over_tokens(given, row.turns)),
            earned=row.own_earned,
        )
        for row, given in spoken
    ]


def _rows(
    group: Group,
    number: int,
    renderer: Renderer,
    objective: Objective,
    max_length: int,
    credit: Credit,
    refused: list[tuple[str, str]],
) -> list[_Row]:
    rows = []
    for place, (attempt, reward) in enumerate(zip(group.attempts, group.rewards, strict=True)):
        trajectory = attempt.trajectory()
        if reward is None or trajectory is None:
            continue
        try:
            row = known(trajectory_row(trajectory, renderer))
        except DataError as error:
            refused.append((_name(attempt, number), str(error)))
            continue
        ids, mask = tuple(row["input_ids"]), _without(row["action_mask"], attempt)
        if len(ids) > max_length:
            refused.append((_name(attempt, number), f"it has {len(ids)} tokens, allowed: {max_length}"))
            continue
        logps = row["logps"]
        own = None if logps is None else tuple(x for x, kept in zip(logps, mask, strict=True) if kept)
        shaping = advantages.overlong(sum(row["action_mask"]), objective)
        earned = None
        if credit.by == "turn_reward":
            told = [step.reward for step in attempt.steps]
            earned = tuple(one for one in told if one is not None)
            if len(earned) < len(told):
                which = f"turn {told.index(None)} of {len(told)}"
                refused.append((_name(attempt, number), f"the environment does not say what {which} earned"))
                continue
            earned = (*earned[:-1], earned[-1] + credit.outcome * reward + shaping)
        rows.append(_Row(group, place, ids, mask, own, reward + shaping, earned))
    return rows


def _spoken(attempt: Attempt) -> list[int]:
    """Return the turns of which a token was sampled: not even an end is possible, and leaves nothing in the mask."""
    return [number for number, step in enumerate(attempt.steps) if step.action.token_ids != ()]


def _without(mask: Sequence[int], attempt: Attempt) -> tuple[int, ...]:
    """Return a mask without the attempt's explored turns."""
    out, run, spoken = [], -1, _spoken(attempt)
    for place, own in enumerate(mask):
        run += bool(own and (place == 0 or not mask[place - 1]))
        out.append(own if not own or spoken[run] not in attempt.explored else 0)
    return tuple(out)


def _by_turn(rows: Sequence[_Row], objective: Objective) -> list[list[float] | None]:
    """Return A(h, a) of each row's turns, divided as the objective divides; see `groups.branch_advantages`.

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


def _by_earned(rows: Sequence[_Row], objective: Objective, credit: Credit) -> list[list[float] | None]:
    """Return `advantages.turn_advantages` of each row's turns; drawn ones count in returns and means."""
    owners = [row.group.task.task_id for row in rows]
    found = advantages.turn_advantages([row.earned for row in rows], owners, objective, credit.discount)
    return [
        None if turns is None else [turns[number] for number in row.numbers]
        for turns, row in zip(found, rows, strict=True)
    ]


def _name(attempt: Attempt, number: int) -> str:
    return f"round {number}, {attempt.task.task_id}/{attempt.number}"
