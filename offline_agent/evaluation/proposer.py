"""The policy as a source of tasks, `curriculum.source=proposer`: its proposals, and what each is rewarded with.

The policy plays `env=propose:NAME` (`envs.propose`); the search of its proposals is the only measurement of them.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from offline_agent.envs.propose import proposable
from offline_agent.preferences.pairs.hindsight import goal_key
from offline_agent.records import Step, Trajectory, Verdict
from offline_agent.rollouts.attempts import Known
from offline_agent.search.serialization import tree_from_json
from offline_agent.store.files import read_json
from offline_agent.store.run_directory import read_tree


def proposals(run_dir: Path) -> Iterator[dict[str, Any]]:
    """Yield the tasks that were proposed in a run of `build_prefs env=propose:NAME`, in turn of each of its tasks."""
    trees = (tree_from_json(read_tree(file)) for file in sorted((run_dir / "trees").glob("*.json.gz")))
    every = [[_proposed(tree.steps(end)) for end in tree.terminals()] for tree in trees]
    yield from (one for turn in itertools.zip_longest(*every) for one in turn if one is not None)


def pay(proposed: dict[str, Any], known: Mapping[str, Known]) -> None:
    """Note with each proposal of an iteration its `reward`, `why`, and whether its call is `learnt`.

    The reward is 1 - |2p - 1| with p the share of the solver's attempts that succeed: R-Zero's (arXiv 2508.05004), with
    verified successes in place of agreement. It is divided by how often the task was proposed; R-Zero subtracts a
    penalty. Absolute Zero (arXiv 2505.03335) pays 1 - p where 0 < p < 1: most where one attempt of many was lucky. A
    refused proposal gets 0; one that nobody tried to solve gets None. Learnt are rewards above 0 and not below the
    median of the tasks that were searched.

    Args:
        proposed: Content of `proposed.json`; its proposals and `rewards` are changed.
        known: What the iteration's search found, by task id.
    """
    often = Counter(_key(one["args"]) for one in (*proposed["tasks"], *proposed["dropped"]))
    for one in proposed["dropped"]:
        one |= {"reward": 0.0, "why": one["proof"]}
    for one in proposed["tasks"]:
        (solved, tried), times = known.get(one["task_id"], Known(0, 0)), often[_key(one["args"])]
        one |= {"reward": None, "why": "no attempt at it was judged"}
        if tried:
            one["reward"] = (1 - abs(2 * solved / tried - 1)) / times
            one["why"] = f"{solved} of {tried} attempts solved it; proposed {times} times"
    paid = [one["reward"] for one in proposed["tasks"] if one["reward"] is not None]
    for one in (*proposed["tasks"], *proposed["dropped"]):
        one["learnt"] = bool(one["reward"]) and one["reward"] >= median(paid)
    learnt = sum(one["learnt"] for one in proposed["tasks"])
    proposed["rewards"] = {"rewarded": len(paid), "mean": sum(paid) / len(paid) if paid else None, "learnt": learnt}


class Learnability:
    """Judges a proposal by what it was rewarded with (`pay`): the score is its reward, a success one that is learnt.

    Args:
        proposed: The iteration's `proposed.json`.
    """

    def __init__(self, proposed: str) -> None:
        told = read_json(Path(proposed))
        self._known = {_key(one["args"]): one for one in (*told["dropped"], *told["tasks"])}

    def __call__(self, trajectory: Trajectory) -> Verdict:
        """Return the verdict; it has no score where the proposal was not looked at or not tried."""
        task = _proposed(trajectory.steps)
        if task is None:
            return Verdict(0.0, False, "learnability", evidence={"why": "no call that proposes a task"})
        one = self._known.get(_key(task), {"reward": None, "why": "not looked at: there were enough before it"})
        if one["reward"] is None:
            return Verdict(None, None, "learnability", error=one["why"])
        return Verdict(one["reward"], one["learnt"], "learnability", evidence={"why": one["why"]})


def _proposed(steps: Sequence[Step]) -> dict[str, Any] | None:
    """Return the arguments of the call as they were executed; None where it was faulty."""
    key = steps[0].key if steps else ""
    return json.loads(key.removeprefix("propose")) if key.startswith("propose{") else None


def _key(args: Mapping[str, Any] | None) -> str:
    return goal_key(proposable(args or {}))
