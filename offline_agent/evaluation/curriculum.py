"""The choice of the tasks to search next, by learnability p(1 - p): tasks solved half of the time teach most."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from offline_agent.evaluation.settings import CurriculumSection
from offline_agent.records import POLICY_CUTS, Task
from offline_agent.rollouts.attempts import Known
from offline_agent.seeding import derive_seed
from offline_agent.store.run_directory import read_tree, tree_id_of, trees_in_quarantine


@dataclass(frozen=True, slots=True)
class Choice:
    """The tasks of one iteration.

    Attributes:
        tasks: In the order of the split, none twice. Empty when nothing but always-solved tasks is left.
        new: Number of those that were never searched.
        solved: Number of those that were always solved.
    """

    tasks: list[Task]
    new: int
    solved: int


def success_rates(run_dirs: Iterable[Path]) -> dict[str, Known]:
    """Return the policy's own success on each task that was searched; of several searches the last one counts.

    Rollouts that a limit of the policy's own cut are failures. Those that a fault of the world cut are neither success
    nor failure, and left out; so are trees in quarantine.

    Args:
        run_dirs: Run directories of `build_prefs`, oldest first.

    Raises:
        DataError: A tree cannot be read.
    """
    rates: dict[str, Known] = {}
    for run_dir in run_dirs:
        noise = trees_in_quarantine(run_dir)
        for file in sorted((run_dir / "trees").glob("*.json.gz")):
            graph = read_tree(file)["graph"]
            judged = [
                bool(rollout["success"])
                for rollout in graph["first_rollouts"]
                if rollout["success"] is not None or rollout["cut"] in POLICY_CUTS
            ]
            noisy = graph["quarantined"] is not None or (noise and tree_id_of(file) in noise)
            known = Known(0, 0) if noisy else Known(sum(judged), len(judged))
            rates[graph["task"]["task_id"]] = known
    return rates


def choose(
    tasks: Sequence[Task], known: Mapping[str, Known], n: int | None, keys: CurriculumSection, seed: int
) -> Choice:
    """Choose tasks: a share of new ones in order, the others by their learnability.

    Known tasks are drawn without replacement with a probability proportional to `Known.learnability`. Where there
    are too few of one kind, the other fills up; of always-solved tasks there are never more than their share, so
    there may be fewer than `n`.

    Args:
        tasks: All that may be chosen.
        known: Results of the tasks that were searched, by task id (`success_rates`).
        n: Number of tasks; None = all.
        keys: The shares.
        seed: The same seed gives the same choice.
    """
    pool = {task.task_id: task for task in tasks}
    size = len(pool) if n is None else min(n, len(pool))
    fresh = [name for name in pool if name not in known]
    seen = sorted((name for name in pool if name in known), key=lambda name: _key(name, known[name], seed))
    new = fresh[: math.floor(size * keys.new_share + 0.5)]
    room, most_solved = size - len(new), math.floor(size * keys.solved_share)
    old: list[str] = []
    solved = 0
    for name in seen:
        if len(old) == room:
            break
        if known[name].solved and solved == most_solved:
            continue
        solved += known[name].solved
        old.append(name)
    new += fresh[len(new) : len(new) + room - len(old)]
    if not new and solved == len(old):
        return Choice([], 0, 0)
    chosen = {*new, *old}
    return Choice([task for name, task in pool.items() if name in chosen], len(new), solved)


def _key(name: str, known: Known, seed: int) -> float:
    """Return a random key; the smallest n of them are a weighted draw (Efraimidis and Spirakis 2006)."""
    chance = random.Random(derive_seed(seed, "curriculum", name)).random()
    return -math.log(1.0 - chance) / known.learnability
