"""Episodes that a limit of the policy's own cut: their counts, their rows in closing tables, and advice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from offline_agent.records import POLICY_CUTS, Step

WORDS = {"max_steps": "max_steps", "tokens": "the token limit", "context": "the context's length"}
"""`records.POLICY_CUTS` in words."""
_MANY_STEPS, _MANY = 0.5, 0.05  # shares of the episodes above which advice is given, for max_steps and for the others

_MOSTLY = 0.5  # share of wasted calls above which more actions are no remedy


def counts(
    episodes: int, cut: Mapping[Any, int], max_steps: int, max_tokens: int, keys: tuple[str, str],
    calls: int = 0, wasted_calls: int = 0,
) -> dict[str, Any]:
    """Return how many episodes each limit cut, as JSON for the summary.

    Args:
        episodes: The number of all episodes.
        cut: The number of episodes by cut (`records.POLICY_CUTS`); other keys are left out.
        max_steps, max_tokens: The limits; `max_tokens` = 0 for a policy without tokens.
        keys: Configuration keys of the two limits.
        calls: The number of turns in the episodes that `max_steps` cut.
        wasted_calls: The number of those that are refused, faulty or repeated (`wasted`).
    """
    return {
        "episodes": episodes,
        **{kind: cut.get(kind, 0) for kind in POLICY_CUTS},
        "limits": {"max_steps": [keys[0], max_steps], "tokens": [keys[1], max_tokens]},
        "calls_of_cut": calls,
        "wasted_calls_of_cut": wasted_calls,
    }  # fmt: skip


def wasted(steps: Iterable[Step]) -> int:
    """Return how many turns of an episode had a fault, or repeated an earlier call and got its answer again."""
    seen: set[tuple[str, str | None]] = set()
    count = 0
    for step in steps:
        same = (step.key, step.observation)
        count += step.fault is not None or same in seen
        seen.add(same)
    return count


def rows(cut: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of a table of three columns: name, count and share, and the limit; from `counts`."""
    for kind, words in WORDS.items():
        if not cut[kind] and (kind == "context" or not cut["limits"][kind][1]):
            continue
        key, limit = cut["limits"].get(kind, ("", 0))
        note = f"{key}={limit}" if key else "the history was longer than the model's context"
        yield f"episodes cut by {words}", f"{cut[kind]:,}", f"{_share(cut, kind):.1%} of {cut['episodes']:,}; {note}"


def advice(cut: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each limit that cut so many episodes that it may decide the result; from `counts`."""
    steps, tokens = cut["limits"]["max_steps"], cut["limits"]["tokens"]
    if (share := _share(cut, "max_steps")) > _MANY_STEPS:
        calls, wasted_calls = cut.get("calls_of_cut", 0), cut.get("wasted_calls_of_cut", 0)
        told = f"Most episodes did not end: {share:.0%} used up {steps[0]}={steps[1]}, and count as failures. "
        if wasted_calls > _MOSTLY * calls:
            yield told + (
                f"{wasted_calls / calls:.0%} of their calls were refused, invalid, or repeated with the same answer, "
                "so more actions would not help: the policy does not know the tools. Look at an episode (inspect), "
                "make messages of refused calls say what is allowed, and give the model a warm start or examples"
            )
        else:
            yield told + (
                f"If the task needs more actions, raise it, for example {steps[0]}={2 * steps[1]}"
            )
    if (share := _share(cut, "tokens")) > _MANY:
        yield (
            f"{share:.0%} of the episodes ended in a turn that reached {tokens[0]}={tokens[1]}, and count as failures. "
            f"If the policy's turns are longer than that, raise it, for example {tokens[0]}={4 * tokens[1]}; if the "
            "policy repeats itself without an end, it needs training first"
        )
    if (share := _share(cut, "context")) > _MANY:
        yield (
            f"{share:.0%} of the episodes outgrew the model's context, and count as failures: shorten observations "
            f"(limits.max_observation_chars), lower {steps[0]}, or take a model with a longer context"
        )


def _share(cut: Mapping[str, Any], kind: str) -> float:
    return float(cut[kind] / cut["episodes"]) if cut["episodes"] else 0.0
