"""On-policy distillation: a teacher says of each token that the policy sampled how much likelier it would have been.

The reverse KL of the policy to the teacher, estimated on the policy's own tokens, as advantages of the surrogate
(MiniLLM, Gu et al. 2023, arXiv 2306.08543; GKD, Agarwal et al. 2023, arXiv 2306.13649; Thinking Machines, "On-Policy
Distillation", 2025). The teacher is another model, or the policy itself with the calls of a sibling that succeeded in
its prompt (SDPO, Hübotter et al. 2026, arXiv 2601.20802). docs/objectives.md has the formula and what ours leaves out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from offline_agent.records import Context

if TYPE_CHECKING:
    from torch import Tensor

    from offline_agent.rendering.renderer import Renderer
    from offline_agent.rollouts.attempts import Attempt
    from offline_agent.training.online.groups import Group

SIBLING = "sibling"
"""The teacher that is the policy itself."""
SERVED = ("http://", "https://")
PASSAGE = "An attempt at this task that succeeded did this:"
_LARGEST = 20.0  # nats; as of the log-ratios of `losses`


def blended(advantages: Tensor, old: Tensor, teacher: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Return advantages [n] that are the teacher's to a share, (1 - share) A + share (log teacher - log old), and KL.

    Args:
        advantages: [n], the group's or a critic's.
        old: [n], log-probabilities under the weights that the round's updates begin with.
        teacher: [n], the teacher's of the same tokens; NaN = it has none, and nothing of it is added.
        share: `Objective.distil`.

    Returns:
        The advantages, and log old - log teacher [n], 0 without a teacher. Neither has a graph.
    """
    gap = (teacher - old.detach()).clamp(-_LARGEST, _LARGEST).nan_to_num(0.0)
    return (1 - share) * advantages + share * gap, -gap


def in_hindsight(group: Group, place: int, renderer: Renderer) -> Attempt | None:
    """Return a failed attempt after a prompt that shows what the group's shortest success did; its turns do not change.

    The passage stands at the end of the first observation: the calls that were carried out, as the template writes
    them, and the final answer. None: the attempt did not fail, or no member succeeded.
    """
    attempt = group.attempts[place]
    won = [one for one in group.attempts if one.success]
    if attempt.success is not False or attempt.context is None or not won:
        return None
    done = [step.action for step in min(won, key=lambda one: len(one.steps)).steps if step.fault is None]
    said = (renderer.write("", one.call) if one.call else one.thought or one.text for one in done)
    first, *rest = attempt.context.lineage()
    shown = "\n".join((f"{first.observation}\n\n{PASSAGE}", *said))
    context = Context(first.task, first.system, first.tools, shown)
    for node in rest:
        assert node.action is not None  # all but the first have one
        context = context.child(node.action, node.observation, node.role, anew=node.anew)
    return replace(attempt, context=context)
