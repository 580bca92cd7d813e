"""The turns of an episode as token ids, each after the prompt that it was given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from offline_agent.errors import DataError
from offline_agent.records import Context

if TYPE_CHECKING:
    from offline_agent.rendering.renderer import Renderer

Span = tuple[int, int]


class Segment(tuple[int, ...]):
    """The ids that a context adds to its parent's, or its whole prompt.

    Attributes:
        owner: The renderer that made it; another renderer must not use it.
        whole: Whether it is the whole prompt, which does not go on with the parent's.
    """

    owner: Renderer
    whole = False


class Layout(NamedTuple):
    """The ids of some turns with their prompts.

    Attributes:
        ids: int [n], up to the end of the last action: no action was conditioned on what comes after it.
        spans: One for each action.
        logps: float [n], 0.0 where the mask is 0, or None where those of an action are unknown.
        starts: Where a prompt does not go on with the ids before it: a sequence of its own begins there.
    """

    ids: list[int]
    spans: list[Span]
    logps: list[float] | None
    starts: list[int]


def lay_out(renderer: Renderer, nodes: Sequence[Context], first: int, ids: Sequence[int] = ()) -> Layout:
    """Return the turns after the first ones of an episode, each after the prompt that it was given.

    Args:
        renderer: Gives the ids.
        nodes: The contexts of the episode, from its start.
        first: Number of the turns that are left to the prompt.
        ids: What stands before: the prompt of the first turn, where the ids are to have it.
    """
    made = Layout(list(ids), [], [], [])
    logps: list[float] | None = made.logps
    before = renderer.context_ids(nodes[first])
    for parent, node in zip(nodes[first:], nodes[first + 1 :], strict=False):
        assert node.action is not None  # all but the first have one
        prompt = renderer.context_ids(parent)
        if prompt[: len(before)] == before:
            made.ids.extend(prompt[len(before) :])
        else:
            made.starts.append(len(made.ids))
            made.ids.extend(prompt)
        sampled = renderer.action_ids(node.action)
        # log-probs are of ids; a turn that was encoded here has none
        known = node.action.logps if node.action.token_ids is not None else None
        logps = None if known is None or logps is None else [*logps, *[0.0] * (len(made.ids) - len(logps)), *known]
        made.spans.append((len(made.ids), len(made.ids) + len(sampled)))
        made.ids.extend(sampled)
        before = [*prompt, *sampled]
    return made._replace(logps=logps if made.spans else None)


def recorded_ids(context: Context) -> tuple[int, ...]:
    """Return a log's ids of a context, as `Segment` has them; raises DataError where it has none."""
    after, action = context.recorded, context.action
    if after is None or after.ids is None or (action is not None and action.token_ids is None):
        raise DataError(f"the log of task {context.task.task_id} has no token ids at depth {context.depth}")
    return after.ids if action is None or action.token_ids is None or after.whole else (*action.token_ids, *after.ids)


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the length of the common prefix of two sequences."""
    size = min(len(left), len(right))
    if left[:size] == right[:size]:
        return size
    low, high = 0, size  # left[:low] equal, left[:high] not
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low
