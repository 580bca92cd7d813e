"""Keys of the gate and of the curriculum."""

from __future__ import annotations

from offline_agent.sections import Section, confidence_key, key


class GateSection(Section):
    """The condition on which a candidate replaces the incumbent."""

    confidence: float = confidence_key(
        0.9, "P(the whole run promotes nothing whose success is below its incumbent's by more than the margin)"
    )
    margin: float = key(0.02, "a loss of success this small counts as not worse", ge=0, lt=1)
    unscored: float = key(
        0.05, "a candidate is refused where its share of unscored attempts differs from the incumbent's with a p-value "
        "below this; 0 = never", ge=0, le=1,
    )  # fmt: skip


class CurriculumSection(Section):
    """The choice of the tasks that an iteration searches."""

    enabled: bool = key(True, "prefer tasks solved about half of the time; false = in order")
    new_share: float = key(0.5, "share of tasks that were never searched", ge=0, le=1)
    solved_share: float = key(0.1, "largest share of tasks that were always solved", ge=0, lt=1)
    source: str | None = key(
        None, "new tasks: failures; proposer = the policy proposes them, and learns to by how often it solves them; "
        "module:function of your own (docs/environments.md); null = none"
    )
