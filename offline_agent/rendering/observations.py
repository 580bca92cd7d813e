"""Observation spans: where the contents of observations stand in a trajectory's ids, found from its messages.

An observation is the environment's reply to an executed action. Its content is encoded apart from the template's text,
so its span is exact. The spans are disjoint from those of actions; docs/masks.md says what counts and what does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from offline_agent.errors import DataError
from offline_agent.rendering.hashing import ids_hash, text_hash

if TYPE_CHECKING:
    from offline_agent.rendering.renderer import Renderer

FIELD = "observations"
"""The field of a sequence's certificate entry."""


class Observed(NamedTuple):
    """The observations of one trajectory.

    Attributes:
        spans: One half-open [start, end) per observation, ascending, in the row's ids followed by `tail`.
        texts: Content of each.
        tail: int [m], ids up to the end of the reply to the last action, which a row's own ids leave out; empty where
            that action has no reply that counts.
    """

    spans: tuple[tuple[int, int], ...]
    texts: tuple[str, ...]
    tail: tuple[int, ...]

    def entry(self) -> dict[str, Any]:
        """Return the certificate's entry."""
        return {
            "spans": [list(span) for span in self.spans],
            "tokens": sum(end - start for start, end in self.spans),
            "texts": [text_hash(text) for text in self.texts],
            "tail": {"length": len(self.tail), "ids": ids_hash(self.tail)},
        }


def find(
    renderer: Renderer,
    ids: Sequence[int],
    spans: Sequence[Sequence[int]],
    messages: Sequence[Mapping[str, Any]],
    given: int = 0,
) -> Observed:
    """Return the observations of a trajectory.

    Everything between two actions is encoded again and compared with the ids, so what is found is proven. The replies
    to the first `given` turns are part of the prompt, and those to turns with a fault answer no executed action:
    neither counts.

    Args:
        renderer: Of the tokenizer that made the ids.
        ids: int [L], ending with the last action's last id.
        spans: One half-open [start, end) per action.
        messages: The whole conversation.
        given: Number of its first turns that belong to the prompt.

    Raises:
        DataError: The ids between two actions are not those of the message between them, as with logs of other
            programs.
    """
    replies = _replies(messages)[given:]
    if len(replies) != len(spans):
        raise DataError(f"its messages have {len(replies)} turns, its masked spans are {len(spans)}")
    found: list[tuple[tuple[int, int], str]] = []
    tail: tuple[int, ...] = ()
    for index, (reply, (start, end)) in enumerate(zip(replies, spans, strict=True)):
        last = index == len(spans) - 1
        if len(reply) != 1 and not (last and not reply):
            raise DataError(f"turn {index} is followed by {len(reply)} messages; one observation is wanted")
        if not reply:
            continue
        action = renderer.action_of_span(ids[start:end])
        text = str(reply[0].get("content") or "")
        before, content, after = renderer.reply_ids(action, reply[0]["role"], text, ids[end - 1] in renderer.eos_ids)
        if not last and tuple(ids[end : spans[index + 1][0]]) != (*before, *content, *after):
            raise DataError(f"the ids after turn {index} are not those of the message that follows it")
        if not content or action.fault is not None:
            continue
        if last:
            tail = (*before, *content)
        found.append(((end + len(before), end + len(before) + len(content)), text))
    return Observed(tuple(span for span, _ in found), tuple(text for _, text in found), tail)


def without_tail(entry: Any) -> Any:
    """Return a certificate's entry without the reply to the last action, which stands in no row's own ids."""
    try:
        if not entry["tail"]["length"]:
            return entry
        *spans, (start, end) = entry["spans"]
        own = {"spans": spans, "tokens": entry["tokens"] - (end - start), "texts": entry["texts"][:-1]}
    except (TypeError, KeyError, ValueError):  # no entry of `Observed`: `check` says so
        return entry
    return {**entry, **own, "tail": {"length": 0, "ids": ids_hash(())}}


def check(entry: Any, found: Observed, actions: Sequence[Sequence[int]]) -> None:
    """Compare the observations of a trajectory with its certificate.

    Args:
        entry: The certificate's `observations`.
        found: What `find` returns for the row.
        actions: The spans of its actions.

    Raises:
        DataError: They differ, or an observation shares tokens with an action.
    """
    overlap = next(
        ((a, b) for a, b in found.spans for start, end in actions if max(a, start) < min(b, end)), None
    )
    if overlap is not None:
        raise DataError(f"its observation span {list(overlap)} shares tokens with a span of an action")
    want = found.entry()
    if not isinstance(entry, dict) or entry != want:
        names = [name for name in want if not isinstance(entry, dict) or entry.get(name) != want[name]]
        raise DataError(f"its observations ({', '.join(names) or 'their fields'}) are not those that were certified")


def _replies(messages: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Return the messages that follow each assistant turn, up to the next."""
    out: list[list[Mapping[str, Any]]] = []
    for message in messages:
        if message.get("role") == "assistant":
            out.append([])
        elif out:
            out[-1].append(message)
    return out
