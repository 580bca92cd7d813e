"""Credit by trajectories: all turns of a trajectory have its advantage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from offline_agent.training.online import advantages
from offline_agent.training.online.credit.judged import Advantages, JudgedAttempt

if TYPE_CHECKING:
    from offline_agent.training.online.objectives import Objective
    from offline_agent.training.online.settings import GroupSettings


def by_trajectory(rows: Sequence[JudgedAttempt], objective: Objective, settings: GroupSettings) -> Advantages:
    """Return the advantage of each row, once for each of its turns; see `advantages.group_advantages`."""
    owners, branched = [row.task_id for row in rows], [row.branched for row in rows]
    whole = advantages.group_advantages([row.reward for row in rows], owners, objective, branched)
    return [None if one is None else [one] * len(row.numbers) for one, row in zip(whole, rows, strict=True)]
