"""The trajectories of a round as token ids, masks and advantages; every row's certificate is checked before it counts.

Knows rendering and rewards, not tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from offline_agent.errors import DataError
from offline_agent.preferences.dataset.export import trajectory_row
from offline_agent.records import POLICY_CUTS
from offline_agent.rendering.columns import starts_of
from offline_agent.rendering.renderer import Renderer
from offline_agent.rollouts.attempts import Attempt
from offline_agent.training.data.rows import longest
from offline_agent.training.online import advantages
from offline_agent.training.online.credit import WAYS, JudgedAttempt, assign
from offline_agent.training.online.distillation import SIBLING, in_hindsight
from offline_agent.training.online.groups import Group, Round
from offline_agent.training.online.objectives import Objective
from offline_agent.training.online.settings import GroupSettings

Ids = tuple[int, ...]


@dataclass(frozen=True)
class TrainingSample:
    """One trajectory of a round.

    Attributes:
        name: For messages.
        task_id: Its task, which is its group.
        input_ids: int [L].
        action_mask: int [L]; 1 = sampled by the policy.
        logps: float [n], the sampler's log-probabilities of the n agent tokens at temperature 1; None = not known.
        turns: Agent tokens of each turn; their sum is n.
        reward: Its reward, overlong shaping included.
        advantages: float [n]; None where a critic has to be asked first.
        earned: float, one for each of `turns`: what it earned by itself, the outcome's share with the last; of a turn
            that is not among them, with the one before it. None = only the whole has a reward.
        starts: Where a sequence begins anew among the ids, with a prompt of its own.
        versions: Of the weights that sampled the tokens of each of `turns`; empty where one version played the round.
        hindsight: `input_ids`, `action_mask` and `starts` of the same turns after the prompt that a teacher "sibling"
            sees; None = it sees none: nothing failed, nobody succeeded, or the longer row does not fit.
        teacher: float [n], a served teacher's log-probabilities of the agent tokens; None = without one.
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
    starts: tuple[int, ...] = ()
    versions: tuple[int, ...] = ()
    hindsight: tuple[Ids, Ids, Ids] | None = None
    teacher: tuple[float, ...] | None = None

    @property
    def tokens(self) -> int:
        """Number of agent tokens."""
        return sum(self.turns)


WHOLE = GroupSettings()


def sample(
    made: Round,
    renderer: Renderer,
    objective: Objective,
    *,
    max_length: int,
    settings: GroupSettings = WHOLE,
    refused: list[tuple[str, str]] | None = None,
) -> list[TrainingSample]:
    """Return the samples that are trained on: the judged attempts of the groups that are kept, in their order.

    Unscored attempts are in no mean and in no loss. Those whose row fails its certificate, is longer than the model
    takes, or lacks what one of its turns earned where the credit asks for it, are in the group's mean, in no loss, and
    listed in `refused`; those that `objective.overlong_filter` leaves out likewise, but for the list.

    Args:
        made: The round.
        renderer: The policy's.
        objective: Says how rewards become advantages.
        max_length: Longest row in tokens.
        settings: One advantage for the whole trajectory, or one for each turn.
        refused: Gets (name, reason) of rows that cannot be trained on.
    """
    refused = [] if refused is None else refused
    rows = [
        row
        for group in made.kept
        for row in _rows(group, made.number, renderer, objective, max_length, settings, refused)
    ]
    credits = assign(rows, objective, settings)
    # without a token of its own (refused, filtered, all drawn, or empty) a row is in its group's mean alone
    trained = [(row, given) for row, given in zip(rows, credits, strict=True) if given is not None and any(row.mask)]
    return [
        TrainingSample(
            name=_name(row.group.attempts[row.place], made.number),
            task_id=row.task_id,
            input_ids=row.ids,
            action_mask=row.mask,
            logps=row.logps,
            turns=row.turns,
            reward=row.reward,
            advantages=None if objective.needs_values else tuple(advantages.over_tokens(given, row.turns)),
            earned=row.own_earned,
            starts=row.starts,
            versions=row.versions,
            hindsight=_hindsight(row, renderer, max_length) if objective.teacher == SIBLING else None,
        )
        for row, given in trained
    ]


def _rows(
    group: Group,
    number: int,
    renderer: Renderer,
    objective: Objective,
    max_length: int,
    settings: GroupSettings,
    refused: list[tuple[str, str]],
) -> list[JudgedAttempt]:
    rows, turn_rewards = [], WAYS[settings.credit].rewards
    for place, (attempt, reward) in enumerate(zip(group.attempts, group.rewards, strict=True)):
        if reward is None:
            continue
        ids, mask, starts, logps, why = _row(attempt, renderer, max_length)
        tokens = sum(mask) if mask else sum(len(step.action.token_ids or ()) for step in attempt.steps)
        shaping, earned = advantages.overlong(tokens, objective), None
        if turn_rewards is not None and attempt.steps:
            told, lacking = turn_rewards(attempt, settings)
            why = why or lacking
            if told is not None:
                earned = (*told[:-1], told[-1] + settings.outcome * reward + shaping)
        if why is not None:
            refused.append((_name(attempt, number), why))
        if why is not None or (objective.overlong_filter and attempt.cut_by in POLICY_CUTS):
            ids, mask, starts, logps = (), (), (), None
        own = None if logps is None else tuple(x for x, kept in zip(logps, mask, strict=True) if kept)
        rows.append(JudgedAttempt(group, place, ids, mask, own, reward + shaping, earned, starts))
    return rows


def _hindsight(row: JudgedAttempt, renderer: Renderer, most: int) -> tuple[Ids, Ids, Ids] | None:
    """Return `TrainingSample.hindsight`."""
    shown = in_hindsight(row.group, row.place, renderer)
    if shown is None:
        return None
    ids, mask, starts, _, why = _row(shown, renderer, most)
    return None if why is not None else (ids, mask, starts)


def _row(
    attempt: Attempt, renderer: Renderer, most: int
) -> tuple[Ids, Ids, Ids, Sequence[float] | None, str | None]:
    """Return an attempt's ids, mask, starts and log-probabilities; and why it cannot be trained on, where it cannot."""
    trajectory = attempt.trajectory()
    if trajectory is None:
        return (), (), (), None, None
    try:
        row = trajectory_row(trajectory, renderer)
    except DataError as error:
        return (), (), (), None, str(error)
    ids, mask, starts = tuple(row["input_ids"]), tuple(row["action_mask"]), starts_of(row, "sequence")
    size = longest(ids, starts)
    return ids, mask, starts, row["logps"], f"it has {size} tokens, allowed: {most}" if size > most else None


def _name(attempt: Attempt, number: int) -> str:
    return f"round {number}, {attempt.task.task_id}/{attempt.number}"
