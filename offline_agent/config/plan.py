"""The keys of `--plan`: the small run from which a cost is expected."""

from __future__ import annotations

from offline_agent.sections import Section, key


class PlanSection(Section):
    """The expected costs of a run."""

    probe: int = key(
        20, "tasks done beforehand, by a process of its own in a directory that is removed", ge=1, free=True
    )
    updates: int = key(3, "updates (of refine_grpo: rounds) that such a probe trains", ge=1, free=True)
