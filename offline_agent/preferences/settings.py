"""Keys of pairs and of filtered trajectories: which are built from trees. docs/pairs.md has the rules."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from offline_agent.preferences.records import PairKind
from offline_agent.sections import Section, confidence_key, key

PairKinds = tuple[PairKind, ...]
ALL_KINDS: PairKinds = ("step", "trajectory", "hindsight", "minimal")


class PairRules(Section):
    """The preference pairs to build from trees."""

    kinds: PairKinds = key(ALL_KINDS, "rules that are applied (docs/pairs.md)", strict=False)
    min_gap: float = key(0.2, "least difference of the values of a step pair", ge=0, le=1)
    min_visits: int = key(3, "least visits of each side of a step pair, unless its value is exact", ge=1)
    confidence: float = confidence_key(0.9, "least P(Q_w > Q_l) of a step pair")
    decisive: bool = key(
        False, "one rollout with a score above 0 settles an action against one that ends the episode with a score of 0"
    )
    per_node: int = key(2, "most step pairs of one node", ge=1)
    per_task: int = key(16, "most pairs of one task", ge=1)
    per_depth: int = key(4, "most pairs of one task at one depth", ge=1)
    length_tolerance: float = key(0.05, "largest |mean difference of lengths|, as a share of the mean length", ge=0)
    max_extra_steps: int = key(15, "a trajectory pair's success may be this much longer than its failure", ge=0)
    cut_failures: bool = key(True, "a trajectory pair's failure may be one that used up its steps, tokens or context")

    @field_validator("kinds")
    @classmethod
    def _each_once(cls, kinds: PairKinds) -> PairKinds:
        if len(set(kinds)) != len(kinds):
            raise ValueError("pairs.kinds names a kind twice")
        return kinds


PAIRS = PairRules()


class PairsSection(PairRules):
    """The preference pairs to build."""

    rejudge: float | None = key(
        None, "share of a task's successes (shortest first, and some failures) whose verdict is judged again after a "
        "fresh replay; a tree in which one does not repeat gives no data; null = 1, or 0.25 where states cannot be "
        "copied", ge=0, le=1,
    )  # fmt: skip
    replay_budget: float | None = key(
        1.0, "most calls that replays of a task may make (judging again, hindsight, minimal pairs), as a "
        "share of its search's; null = no limit", ge=0,
    )  # fmt: skip


Origins = tuple[Literal["search", "rollout", "hindsight", "pruned"], ...]
DEFAULT_ORIGINS: Origins = ("search", "rollout", "hindsight")


class FilteredSection(Section):
    """Trajectories for rejection fine-tuning."""

    per_task: int = key(2, "most trajectories of one task, shortest first", ge=1)
    negatives: bool = key(False, "also refusals of impossible or hallucinated calls")
    origins: Origins = key(DEFAULT_ORIGINS, "where they may come from; pruned ones teach to guess", strict=False)


FILTERED = FilteredSection()
