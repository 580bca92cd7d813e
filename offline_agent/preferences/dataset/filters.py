"""Filtered trajectories for rejection fine-tuning: which successes are kept, and what is shown beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from offline_agent.preferences.records import Refusal
from offline_agent.preferences.settings import FILTERED, FilteredSection
from offline_agent.records import Action, Context, Step, Trajectory


class RejectionFilter:
    """Verified successes, one per canonical action sequence, shortest first.

    Args:
        keys: The keys. `negatives` are the same request with the needed tool taken away, answered by saying so
            (Agent-FLAN, Chen et al. 2024). `pruned` is no origin by default: a success without the steps that its end
            state did not need skips the looking that told the policy what to do, and teaches to guess.
        restarts: Tools that begin the task anew (`EnvSpec.restarts`): the turns before the last call of one failed, and
            are not learnt.
    """

    def __init__(self, keys: FilteredSection = FILTERED, restarts: Collection[str] = ()) -> None:
        self.keys, self.restarts = keys, restarts

    def select(self, trajectories: Iterable[Trajectory], name: str) -> tuple[list[Trajectory], list[Refusal]]:
        """Return the trajectories of one tree that are kept, shortest first, and the refusals of successes.

        Args:
            trajectories: The branches of one tree, relabelled and shortened ones included.
            name: The tree's id, for the refusals.
        """
        refusals: list[Refusal] = []
        successes = [t for t in trajectories if t.verdict is not None and t.verdict.success is True and not t.truncated]
        # Sorting is stable: among equals the order of the tree decides.
        successes.sort(key=lambda t: (len(t.steps), _size(t)))
        kept: list[Trajectory] = []
        seen: set[tuple[str, ...]] = set()
        per_task: Counter[str] = Counter()
        for trajectory in successes:
            task = trajectory.task.task_id
            key = (task, *(step.key for step in trajectory.steps))
            reason = None
            if trajectory.origin not in self.keys.origins:
                reason = f"its origin is {trajectory.origin}"
            elif key in seen:
                reason = "the same canonical actions as a trajectory that was kept"
            elif per_task[task] >= self.keys.per_task:
                reason = f"more than {self.keys.per_task} of its task"
            if reason is not None:
                refusals.append(Refusal("filtered", f"{name}/{trajectory.origin}", reason, {"actions": list(key[1:])}))
                continue
            seen.add(key)
            per_task[task] += 1
            first = max((number for number, step in enumerate(trajectory.steps) if self._begins_anew(step)), default=0)
            kept.append(replace(trajectory, first=first))
        if self.keys.negatives:
            kept += _negatives([t for t in kept if t.origin in ("search", "rollout")])
        return kept, refusals

    def _begins_anew(self, step: Step) -> bool:
        return step.fault is None and step.action.call is not None and step.action.call.name in self.restarts


def _negatives(successes: Sequence[Trajectory]) -> list[Trajectory]:
    """Return at most one refusal of a request: the first tool that every success needs is taken away."""
    for trajectory in successes:
        for step in trajectory.steps:
            call = step.action.call
            # Only a tool that every success needs makes its task impossible; sharing it is the evidence there is.
            if call is not None and step.fault is None and _all_use(call.name, successes):
                negative = impossible(trajectory.context.lineage()[0], call.name)
                if negative is not None:
                    return [negative]
    return []


def impossible(start: Context, tool: str) -> Trajectory | None:
    """Return a request whose tool was taken away, refused in words; None where no other tool would be left.

    Nobody sampled it and no verifier judged it: its verdict is None and its origin `demonstration`.

    Args:
        start: The start of an episode.
        tool: The name of the tool to take away.
    """
    left = [schema for schema in start.tools if _name(schema) != tool]
    if not left or len(left) == len(start.tools):
        return None
    told = next(str(schema["function"].get("description", "")) for schema in start.tools if _name(schema) == tool)
    description = told.strip().split("\n")[0].rstrip(".")
    what = f" ({description})" if description else ""
    text = f"I cannot do this: it needs a tool that I do not have{what}. I have: {', '.join(map(_name, left))}."
    action = Action(text, thought=text)
    context = Context(start.task, start.system, tuple(left), start.observation).child(action, None)
    step = Step(action, f"answer:{text.casefold()}", None, "user")
    return Trajectory(context, (step,), None, terminated=True, truncated=False, origin="demonstration")


def _all_use(tool: str, successes: Sequence[Trajectory]) -> bool:
    return all(any(s.action.call is not None and s.action.call.name == tool for s in t.steps) for t in successes)


def _name(schema: Any) -> str:
    return str(schema["function"]["name"])


def _size(trajectory: Trajectory) -> int:
    """Length of what the policy wrote: ids where every action has them, else characters."""
    actions = [step.action for step in trajectory.steps]
    if all(action.token_ids is not None for action in actions):
        return sum(len(action.token_ids or ()) for action in actions)
    return sum(len(action.text) for action in actions)
