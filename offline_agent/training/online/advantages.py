"""Rewards to advantages: groups, turns and a critic; numbers only, no tensors.

An advantage of None means that there is none, and that the trajectory is not trained on: its reward could not be
computed, or there is nothing to compare it with. Unscored trajectories are in no mean and no deviation.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offline_agent.errors import DataError

if TYPE_CHECKING:
    from offline_agent.training.online.objectives import Objective

Group = TypeVar("Group", bound=Hashable)
Array = NDArray[np.float64]

EPSILON = 1e-4  # added to a standard deviation before dividing by it, as TRL does
DDOF = 1  # of a standard deviation, as TRL's
SAME = 1e-8  # rewards no further apart are equal: sums of shaping terms differ in their last digits


def group_advantages(
    rewards: Sequence[float | None],
    groups: Sequence[Hashable],
    objective: Objective,
) -> list[float | None]:
    """Return the advantage of every trajectory, or None.

    mean: r - mean of the group's scored rewards (GRPO, Shao et al. 2024, arXiv 2402.03300). leave_one_out: r - mean of
    the others' = G / (G - 1) (r - mean) (RLOO, Ahmadian et al. 2024, arXiv 2402.14740). none: r. Then divided by the
    standard deviation (ddof 1) of the group's, or of all scored rewards, plus 1e-4, as `objective.scale` says.

    None: the reward is None; or leave_one_out for a member that is compared with itself alone. Under the mean that
    member gets 0, like every member of a group without spread (exactly 0, whatever the rounding).

    Args:
        rewards: One for each trajectory; None = it could not be computed.
        groups: Its group, usually the task.
        objective: Says the baseline and the scale.

    Raises:
        DataError: A reward is NaN or infinite.
        ValueError: The baseline is a critic's value; that is `gae`'s.
    """
    _check(rewards)
    members = _members(rewards, groups)
    everything = _deviation([r for r in rewards if r is not None])
    found: list[float | None] = [None] * len(rewards)
    for rows in members.values():
        compared = _compared([_number(rewards[i]) for i in rows], objective, everything)
        for row, value in zip(rows, compared, strict=True):
            found[row] = value
    return found


def spread(rewards: Sequence[float | None], groups: Sequence[Group]) -> dict[Group, float | None]:
    """Return the standard deviation (ddof 1) of each group's scored rewards, in the order of the groups' appearance.

    None where fewer than two are scored: a spread that nobody knows. Exactly 0.0 where all are equal (to 1e-8).
    """
    _check(rewards)
    members = _members(rewards, groups)
    return {
        group: _deviation([_number(rewards[i]) for i in rows]) if len(rows) > 1 else None
        for group, rows in members.items()
    }


def kept_groups(rewards: Sequence[float | None], groups: Sequence[Group], objective: Objective) -> list[Group]:
    """Return the groups that are trained on, in the order of their appearance.

    `objective.dynamic` leaves only those with a spread above 0 (DAPO, Yu et al. 2025, arXiv 2503.14476). Then
    `objective.keep_spread` leaves this share of all the groups, rounded down but at least one, those of the largest
    spread (StarPO-S, Wang et al. 2025, arXiv 2504.20073); of equals the earlier ones. A group of unknown spread counts
    as the smallest.
    """
    known = spread(rewards, groups)
    left = [group for group, value in known.items() if value or not objective.dynamic]
    if objective.keep_spread < 1:
        most = max(1, math.floor(objective.keep_spread * len(known) + 1e-9))  # 0.29 * 100 is a little under 29
        size = {group: -1.0 if value is None else value for group, value in known.items()}
        best = set(sorted(left, key=size.__getitem__, reverse=True)[:most])
        left = [group for group in left if group in best]
    return left


def overlong(tokens: int, objective: Objective) -> float:
    """Return the length penalty of a trajectory of so many agent tokens, in [-1, 0]; it is added to the reward.

    0 up to `overlong_soft`, then linearly down to -1 at `overlong_hard` and beyond (DAPO, Yu et al. 2025, arXiv
    2503.14476, eq. 13, with soft = L_max - L_cache and hard = L_max); 0 where the objective has no such lengths.
    """
    soft, hard = objective.overlong_soft, objective.overlong_hard
    if soft is None or hard is None or tokens <= soft:
        return 0.0
    return max(-1.0, (soft - tokens) / (hard - soft))


def turn_advantages(
    rewards: Sequence[Sequence[float] | None],
    groups: Sequence[Hashable],
    objective: Objective,
) -> list[list[float] | None]:
    """Return the advantage of every turn, from rewards that were given for turns.

    The return of turn t is its reward and all later ones. It is compared, as `group_advantages` does it, with those
    of the same turn of the group's other trajectories (in the spirit of MT-GRPO, Zeng et al. 2025, arXiv 2505.11821);
    those that ended earlier have no such turn and are in no mean of it. batch_std is that of all returns of all turns.

    Args:
        rewards: For each trajectory one reward a turn, the outcome's with the last; None = it could not be computed.
        groups: Its group.
        objective: Says the baseline and the scale.

    Returns:
        For each trajectory one number a turn, or None for an unscored one. 0.0 for a turn that no other scored member
        of the group reached: it has nothing to be compared with (with baseline none it is the return).

    Raises:
        DataError: A reward is NaN or infinite.
        ValueError: The baseline is a critic's value; that is `gae`'s.
    """
    for turns in rewards:
        _check(turns or ())
    returns = [None if turns is None else list(accumulate(reversed(turns)))[::-1] for turns in rewards]
    everything = _deviation([value for turns in returns if turns is not None for value in turns])
    found = [None if turns is None else [0.0] * len(turns) for turns in returns]
    for rows in _members(returns, groups).values():
        for turn in range(max((len(returns[i] or ()) for i in rows), default=0)):
            reached = [(i, values) for i in rows if (values := returns[i]) is not None and turn < len(values)]
            compared = _compared([values[turn] for _, values in reached], objective, everything)
            for (row, _), value in zip(reached, compared, strict=True):
                mine = found[row]
                assert mine is not None
                mine[turn] = 0.0 if value is None else value
    return found


def over_tokens(turns: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Return every turn's advantage once for each of its agent tokens, in order.

    Args:
        turns: One number a turn: from `turn_advantages`, or given, such as a search tree's A(h, a).
        counts: Agent tokens of the same turns; 0 where the completion was empty.
    """
    return [value for value, count in zip(turns, counts, strict=True) for _ in range(count)]


def token_rewards(turns: Sequence[float], counts: Sequence[int]) -> Array:
    """Return rewards [sum of counts] for `gae`: each turn's stands at its last agent token, the others are 0.

    A turn without tokens hands its reward to the token before it, or to the first where there is none before: rewards
    are kept while there is a token at all.
    """
    rewards = np.zeros(sum(counts))
    end = 0
    for reward, count in zip(turns, counts, strict=True):
        end += count
        if len(rewards):
            rewards[max(end - 1, 0)] += reward
    return rewards


def gae(rewards: ArrayLike, values: ArrayLike, gamma: float, lam: float) -> tuple[Array, Array]:
    """Return advantages and returns [n] of one trajectory that ended after its last token.

    A_t = sum_l (gamma lam)^l d_{t+l} with d_t = r_t + gamma V_{t+1} - V_t and V_n = 0 (Schulman et al. 2016, arXiv
    1506.02438); the return is A + V. The states are agent tokens alone, in order: from a turn's last token the next
    state is the next turn's first, and observation tokens take no discount and pass nothing on.

    Args:
        rewards: [n], at each agent token; see `token_rewards`.
        values: [n], the critic's, at each agent token.
        gamma: Discount a token, in [0, 1].
        lam: In [0, 1]; 1 = the plain return less the value, 0 = one step.

    Raises:
        ValueError: The lengths differ.
    """
    reward, value = np.asarray(rewards, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if reward.shape != value.shape or reward.ndim != 1:
        raise ValueError(f"rewards are {reward.shape} and values {value.shape}; one of each for every agent token")
    advantages = np.zeros_like(reward)
    carried, following = 0.0, 0.0
    for t in range(len(reward) - 1, -1, -1):
        carried = reward[t] + gamma * following - value[t] + gamma * lam * carried
        advantages[t], following = carried, value[t]
    return advantages, advantages + value


def whiten(trajectories: Sequence[ArrayLike]) -> list[Array]:
    """Return the agent tokens' advantages less their mean over all of them, divided by their deviation (ddof 1) + 1e-4.

    What `scale="batch_std"` means with a critic. Fewer than two tokens, or no spread: exactly 0.
    """
    arrays = [np.asarray(values, dtype=np.float64) for values in trajectories]
    every = np.concatenate([np.zeros(0), *arrays]).tolist()
    mean, deviation = math.fsum(every) / max(len(every), 1), _deviation(every)
    return [(values - mean) / (deviation + EPSILON) if deviation else np.zeros_like(values) for values in arrays]


def _compared(values: Sequence[float], objective: Objective, everything: float) -> list[float | None]:
    """Return the advantages of one group's scored values; `everything` is the whole batch's deviation."""
    own, count = _deviation(values), len(values)
    if objective.baseline == "value":
        raise ValueError(f"objective {objective.name!r} takes its advantages from a critic: use advantages.gae")
    if objective.baseline == "none":
        return list(values)
    if objective.baseline == "leave_one_out" and count == 1:
        return [None]
    if own == 0.0:
        return [0.0] * count
    scale = {"group_std": own + EPSILON, "batch_std": everything + EPSILON, "none": 1.0}[objective.scale]
    factor = count / (count - 1) if objective.baseline == "leave_one_out" else 1.0
    mean = math.fsum(values) / count
    return [factor * (value - mean) / scale for value in values]


def _deviation(values: Sequence[float]) -> float:
    """Return the standard deviation; exactly 0.0 for equal values (to `SAME`) or fewer than two."""
    if len(values) < 2 or max(values) - min(values) <= SAME:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - DDOF))


def _members(scored: Sequence[object | None], groups: Sequence[Group]) -> dict[Group, list[int]]:
    """Return the scored rows of every group; a group without any has none."""
    members: dict[Group, list[int]] = {}
    for row, (value, group) in enumerate(zip(scored, groups, strict=True)):
        members.setdefault(group, [])
        if value is not None:
            members[group].append(row)
    return members


def _number(value: float | None) -> float:
    assert value is not None
    return value


def _check(rewards: Sequence[float | None]) -> None:
    for row, value in enumerate(rewards):
        if value is not None and not math.isfinite(value):
            raise DataError(f"reward {row} is {value}; allowed: a finite number, or None where there is no score")
